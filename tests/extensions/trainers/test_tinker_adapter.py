"""The adapter for tinker-cookbook by its own rollouts, in a virtual environment that has no server."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from interrupted import ends_at_ctrl_c
from served import served
from trainer_worlds import Booth, Diary, Doors, Many, Shop

from mcpenv.server.app import create_app
from mcpenv_client import EnvClient

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    python = os.environ.get("MCPENV_TINKER")
    assert python, "MCPENV_TINKER names no Python that has tinker-cookbook and mcpenv-client; .ci/run makes one"
    program = Path(__file__).with_name("tinker_program.py")
    with (
        served(create_app(Doors)) as doors,
        served(create_app(Shop)) as shop,
        served(create_app(Diary)) as diary,
        served(create_app(Booth)) as booth,
        served(create_app(Many)) as many,
    ):
        urls = [address.removesuffix("/mcp") for address in (doors, shop, diary, booth, many)]
        command = [python, str(program), *urls]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        with EnvClient(doors.removesuffix("/mcp")).sync() as client:
            sessions = client.capacity().active_sessions
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**answers, "sessions": sessions}


def test_groups_that_were_pickled_get_the_verifiers_reward(found: dict[str, Any]) -> None:
    assert found["batches"] == [2, 1]
    assert found["groups"]["red"]["rewards"] == [1.25, 1.25]
    assert [metrics["parts/verified"] for metrics in found["groups"]["red"]["metrics"]] == [1.0, 1.0]


def test_the_tasks_of_a_batch_are_read_when_it_is_taken(found: dict[str, Any]) -> None:
    assert found["many"] == {"batches": 250_000, "tasks": [f"train-{index}" for index in range(999_996, 1_000_000)]}
    made = set(Many.made)
    assert made >= set(range(999_996, 1_000_000)) and len(made) < 50


def test_a_call_that_the_renderer_cannot_read_is_answered_and_the_episode_goes_on(found: dict[str, Any]) -> None:
    assert found["groups"]["green"]["rewards"] == [1.25, 1.25]


def test_a_failed_environment_raises_after_the_strategys_retries(found: dict[str, Any]) -> None:
    assert found["groups"]["blue"].startswith("EpisodeFailed: the episode has no reward, its status is judge_error")


def test_an_episode_that_nothing_scored_raises(found: dict[str, Any]) -> None:
    assert found["unscored"] == "the episode has no reward, its status is completed: nothing scored it"


def test_a_message_without_calls_goes_to_the_user_who_may_end_the_episode(found: dict[str, Any]) -> None:
    booth = found["booth"]
    assert (booth["rewards"], booth["turns"]) == ([1.0, 1.0], [3, 3])
    assert "<|im_start|>user\nTwo.<|im_end|>" in booth["last"] and "respond" not in booth["last"]


def test_a_schema_reaches_the_prompt_whole_and_nested_arguments_the_tool(found: dict[str, Any]) -> None:
    with Shop() as world:
        (tool,) = world.list_tools()
    assert found["tool"] == tool.to_openai() and found["bought"] == [1.0]


def test_renderers_that_leave_out_schemas_are_refused_at_the_start(found: dict[str, Any]) -> None:
    assert "tool 'buy': the prompt lacks buy." in found["refused"]
    assert "this renderer writes no tools" in found["without tools"]


def test_the_sessions_of_all_groups_have_ended(found: dict[str, Any]) -> None:
    assert found["sessions"] == 1


def test_the_lines_of_the_page_are_at_most_ten_and_run(found: dict[str, Any]) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "train-tinker.md"
    (lines,) = re.findall(r"^```py\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(list(filter(None, lines.splitlines()))) <= 10
    command = [os.environ["MCPENV_TINKER"], "-c", f"{lines}\nassert dataset_builder.group_size == 8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("by", ["model", "tool"])
def test_ctrl_c_ends_a_group_and_its_sessions(stuck: str, by: str) -> None:
    ends_at_ctrl_c(os.environ["MCPENV_TINKER"], "tinker", stuck, by, modules="tinker_cookbook.rl.rollouts")
