"""OpenEnv's own clients, as programs of their own virtual environment, against ``mcpenv run``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openenv_servers import PROGRAMS, program, run_each

# Each process that imports OpenEnv needs seconds for it, and a test has up to four of them.
pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples"))
from serving import ECHO_MCP, served  # noqa: E402


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """``mcpenv run envs/echo_mcp``."""
    with served(ECHO_MCP) as base_url:
        yield base_url


@pytest.fixture(scope="module")
def printed(url: str) -> list[str]:
    """Return the output of each of OpenEnv's programs."""
    with served(ECHO_MCP, "--mode", "production") as production:
        return run_each(
            program("clients", url),
            program("rollout", url),
            ["openenv.cli", "validate", "--url", url, "--json"],
            ["openenv.cli", "validate", "--url", production, "--json"],
        )


@pytest.fixture(scope="module")
def seen(printed: list[str]) -> dict[str, Any]:
    """Return what each of OpenEnv's clients saw."""
    clients: dict[str, Any] = json.loads(printed[0])
    return clients


TOOLS = ["echo_message", "echo_with_length", "say_goodbye"]


def test_the_generic_client_rolls_out(seen: dict[str, Any]) -> None:
    generic = seen["generic"]
    assert generic["reset"] == [None, False]
    assert generic["tools"] == TOOLS
    assert generic["step"] == ["two words", 0.2, False]
    assert generic["unknown"] == "tool_not_found"
    assert "dance" in generic["refused"]
    assert generic["end"] is True
    assert (generic["state"]["episode_id"], generic["state"]["step_count"]) == ("mine", 3)


def test_the_blocking_client_rolls_out(seen: dict[str, Any]) -> None:
    assert seen["blocking"]["step"] == ["two words", 0.2, False]


def test_a_typed_client_gets_its_own_classes(seen: dict[str, Any]) -> None:
    assert seen["typed"] == {"step": ["two words", 0.2, False], "words": 2}


def test_the_mcp_tool_client_lists_and_calls(seen: dict[str, Any]) -> None:
    tools = seen["tools"]
    assert tools["tools"] == TOOLS
    assert tools["schema"]["properties"] == {"message": {"type": "string"}}
    assert tools["called"] == "two words"
    assert "Unknown tool: 'shout'" in tools["unknown"]


def test_calls_over_json_rpc_and_steps_are_of_one_episode(seen: dict[str, Any]) -> None:
    tools = seen["tools"]
    assert tools["step"] == ["one", 0.1]
    assert tools["steps"] == 3  # two calls over JSON-RPC and a step
    assert tools["reset"] is True
    assert tools["steps_after_reset"] == 0


def test_openenv_validate_passes_every_criterion(printed: list[str]) -> None:
    report = json.loads(printed[2])
    assert report["passed"] is True
    assert (report["standard_profile"], report["mode"]) == ("openenv-http/1.x", "simulation")
    assert report["summary"]["passed_count"] == report["summary"]["total_count"] == 6


def test_openenv_validate_misses_only_its_own_json_rpc_in_production(printed: list[str]) -> None:
    report = json.loads(printed[3])
    assert report["mode"] == "production"
    assert report["summary"]["failed_criteria"] == ["mcp_endpoint"]


def test_a_program_of_its_users_runs_unchanged(printed: list[str]) -> None:
    assert printed[1].splitlines() == [
        "reset: False",
        "step: to | reward 0.1 | done False",
        "step: and fro | reward 0.2 | done False",
        "steps: 2",
        "tools: echo_message, echo_with_length, say_goodbye",
        "call: hello",
        "steps: 1",
    ]
    code = (PROGRAMS / "rollout.py").read_text().partition('"""\n\n')[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
