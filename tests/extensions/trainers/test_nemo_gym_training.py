"""NeMo Gym's session contract, environment server and agent against a server, in a virtual environment of theirs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from interrupted import ends_at_ctrl_c
from trainer_worlds import Booth, Doors, FullDisk, Shop, Stuck

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client.trainers.nemo_gym import rows

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

LIBRARY = "responses_api_agents.simple_agent.app, environment_servers.single_agent_turn.app"
SHOPPING = {
    "to": {"name": "High Street", "number": 7},
    "payment": {"kind": "card", "digits": "1234"},
    "amounts": [1, 2],
}


def played(
    world: type[Any], *calls: list[tuple[str, dict[str, Any]]], tmp_path: Path, **options: Any
) -> tuple[dict[str, Any], Any]:
    """Return what NeMo Gym answered for episodes of a world, one for each list of calls, and the world's rows."""
    python = os.environ.get("MCPENV_NEMO_GYM")
    assert python, "MCPENV_NEMO_GYM names no Python that has nemo-gym; .ci/run makes one and sets it"
    with serving(world, ServerConfig(wires=("nemo-gym",))) as url:
        given = rows(url, **options)
        file = tmp_path / "rows.json"
        plays = []
        for at, made in enumerate(calls):
            row = json.loads(json.dumps(given[at % len(given)]))
            row["responses_create_params"]["input"] = [{"role": "user", "content": json.dumps(made)}]
            plays.append(row)
        file.write_text(json.dumps(plays))
        program = Path(__file__).with_name("nemo_gym_program.py")
        ran = subprocess.run([python, str(program), url, str(file)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found, given


def test_the_contract_holds_and_episodes_are_scored_or_masked(tmp_path: Path) -> None:
    found, _ = played(
        Doors,
        [("look", {}), ("open_door", {"colour": "red"})],
        [("open_door", {"colour": "pink"}), ("open_door", {"colour": "red"})],
        [("break_verifier", {})],
        [("nothing", {})],
        tmp_path=tmp_path,
    )
    right, wrong, broken, idle = (answer["result"] for answer in found["answers"])
    assert right["reward"] == 1.25 and right["reward_components"] == {"verified": 1.0}
    assert (wrong["reward"], idle["reward"]) == (0.0, 0.0) and not wrong["mask_sample"] and not idle["mask_sample"]
    assert broken["mask_sample"] and broken["failure_kind"] == "verifier_error"
    outputs = [item["output"] for item in right["response"]["output"] if item["type"] == "function_call_output"]
    assert outputs == ['{"colour":"red"}', "opened"]
    assert "Input should be 'red', 'green' or 'blue'" in json.dumps(wrong["response"]["output"])


@pytest.mark.parametrize("mask", [True, False])
def test_a_sample_in_which_a_step_failed_is_masked_unless_its_row_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: bool
) -> None:
    monkeypatch.setattr(FullDisk, "full", 1)
    found, _ = played(FullDisk, [("save", {})], tmp_path=tmp_path, mask_failed_steps=mask)
    result = found["answers"][0]["result"]
    assert (result["reward"], result["mask_sample"], result["failure_kind"]) == (
        (0.0, True, "mcpenv:env_error") if mask else (0.0, False, None)
    )


def test_the_user_is_a_tool_whose_last_answer_ends_the_episode(tmp_path: Path) -> None:
    asked, told = (("respond", {"message": text}) for text in ("How many?", "Here you are."))
    found, _ = played(Booth, [asked, ("sell", {"count": 2}), told], [asked, ("sell", {"count": 2})], tmp_path=tmp_path)
    left, stopped = (answer["result"] for answer in found["answers"])
    assert {tool["name"] for tool in found["tools"][0]} == {"respond", "sell"}
    assert (left["reward"], stopped["reward"]) == (1.0, 1.0) and not left["mask_sample"]
    outputs = [item["output"] for item in left["response"]["output"] if item["type"] == "function_call_output"]
    assert outputs == ["Two.", "sold", "That was all. Goodbye."]


def test_a_tools_schema_reaches_the_model_whole_and_its_arguments_the_environment(tmp_path: Path) -> None:
    found, given = played(Shop, [("buy", SHOPPING)], tmp_path=tmp_path)
    (answer,) = found["answers"]
    assert answer["result"]["reward"] == 1.0, answer
    listed = given[0]["responses_create_params"]["tools"]
    schema = listed[0]["parameters"]
    assert {"Street", "Cash", "Card"} <= schema["$defs"].keys() and schema["properties"]["size"]["default"] == "small"
    assert all(tools == listed for tools in found["tools"])


@pytest.mark.parametrize("by", ["tool", "model"])
def test_ctrl_c_ends_an_episode_and_its_session(by: str) -> None:
    python = os.environ["MCPENV_NEMO_GYM"]
    Stuck.called.clear()
    Stuck.released.clear()
    with serving(Stuck, ServerConfig(wires=("nemo-gym",))) as url:
        (row,) = rows(url)
        row["responses_create_params"]["input"] = [{"role": "user", "content": json.dumps([("stick", {})])}]
        try:
            ends_at_ctrl_c(python, "nemo_gym", url, by, json.dumps(row), modules=LIBRARY)
        finally:
            Stuck.released.set()
