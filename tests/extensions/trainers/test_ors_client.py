"""The real client of openreward against a server, in a virtual environment of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from interrupted import ends_at_ctrl_c
from trainer_worlds import Booth, Doors, Shop, Stuck

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

pytestmark = [pytest.mark.world, pytest.mark.timeout(180)]

TOKEN = "the-control-token"

SHOPPING = {
    "to": {"name": "High Street", "number": 7},
    "payment": {"kind": "card", "digits": "1234"},
    "amounts": [1, 2],
}


def played(world: type[Any], *calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what the client got in an episode for each list of calls; the same with and without a variant."""
    python = os.environ.get("MCPENV_OPENREWARD")
    assert python, "MCPENV_OPENREWARD names no Python that has openreward; .ci/run makes one and sets it"
    program = Path(__file__).with_name("ors_program.py")
    with serving(world, ServerConfig(wires=("ors",), control_token=TOKEN)) as url:
        command = [python, str(program), url, world.__name__, TOKEN, json.dumps(calls)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    bare, named = ([_without_ids(play) for play in plays] for plays in found.values())
    assert bare == named
    return bare


def _without_ids(play: dict[str, Any]) -> dict[str, Any]:
    for output in play["outputs"]:
        output.get("metadata", {}).pop("episode_id", None)
        if "failed" in output:
            output["failed"] = re.sub(r"sid=\S+|incident \w+", "", output["failed"])
    return play


def test_episodes_are_played_ended_and_scored_and_a_failed_one_raises() -> None:
    right, left, wrong, broken = played(
        Doors,
        [("look", {}), ("open_door", {"colour": "red"}), ("look", {})],
        [("look", {})],
        [("open_door", {"colour": "pink"}), ("nothing", {}), ("open_door", {"colour": "red"})],
        [("break_verifier", {})],
    )
    assert right["prompt"] == ["Number 0."] and right["messages"][0]["role"] == "user"
    looked, opened, over = right["outputs"]
    assert looked["texts"] == ['{"colour":"red"}'] and looked["reward"] == 0.25
    assert opened["reward"] == 1.0 and opened["metadata"]["return"] == 1.25
    assert over == {"refused": "episode_finished"}
    assert left["finished"] and left["outputs"][-1]["reward"] == 0.0
    assert [output.get("refused") for output in wrong["outputs"]] == ["input_validation", "not_found", None]
    assert (
        broken["outputs"][-1]["failed"].endswith("VerifierFailed") or "judge_error" in broken["outputs"][-1]["failed"]
    )


def test_the_user_is_a_tool_whose_last_answer_ends_the_episode() -> None:
    asked, told = (("respond", {"message": text}) for text in ("How many?", "Here you are."))
    left, told_nothing = played(Booth, [asked, ("sell", {"count": 2}), told, ("sell", {"count": 1})], [asked])
    assert {tool["name"] for tool in left["tools"]} == {"respond", "sell"}
    first, sold, goodbye, over = left["outputs"]
    assert (first["texts"], sold["texts"], goodbye["texts"]) == (["Two."], ["sold"], ["That was all. Goodbye."])
    assert (goodbye["reward"], over) == (1.0, {"refused": "episode_finished"})
    assert told_nothing["finished"] and told_nothing["outputs"][-1]["reward"] == 0.0


def test_a_tools_schema_arrives_whole_and_its_arguments_too() -> None:
    (play,) = played(Shop, [("buy", SHOPPING)])
    assert play["outputs"][0]["reward"] == 1.0
    (tool,) = play["tools"]
    assert tool["schema"] == Shop().list_tools()[0].input_schema


@pytest.mark.parametrize("by", ["model", "tool"])
def test_ctrl_c_ends_an_episode_and_its_session(by: str) -> None:
    Stuck.called.clear()
    Stuck.released.clear()
    with serving(Stuck, ServerConfig(wires=("ors",))) as url:
        try:
            ends_at_ctrl_c(os.environ["MCPENV_OPENREWARD"], "ors", url, by, modules="openreward")
        finally:
            Stuck.released.set()
