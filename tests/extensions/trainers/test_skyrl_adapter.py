"""The adapter for SkyRL by its own generator, in a virtual environment that has no server."""

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
from trainer_worlds import Booth, Diary, Doors, ShakyDisk, Shop

from mcpenv.server.app import create_app

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    python = os.environ.get("MCPENV_SKYRL")
    assert python, "MCPENV_SKYRL names no Python that has skyrl, skyrl-gym and mcpenv-client; .ci/run makes one"
    program = Path(__file__).with_name("skyrl_program.py")
    with (
        served(create_app(Doors)) as doors,
        served(create_app(Shop)) as shop,
        served(create_app(Diary)) as diary,
        served(create_app(Booth)) as booth,
        served(create_app(ShakyDisk)) as disk,
    ):
        ShakyDisk.calls, ShakyDisk.failing = 0, {1, 4}  # one of each group; the first is played again
        urls = [address.removesuffix("/mcp") for address in (doors, shop, diary, booth, disk)]
        command = [python, str(program), *urls]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_the_generator_gets_the_verifiers_reward_and_trains_on_the_models_tokens_only(found: dict[str, Any]) -> None:
    assert found["rewards"] == [1.25] * 4 and found["masked"] == [True] * 4
    assert found["metrics"]["environment/verified"] == 1.0 and found["metrics"]["environment/return"] == 1.25


def test_a_failed_environment_is_played_again_and_then_raises(found: dict[str, Any]) -> None:
    assert "its status is judge_error" in found["failed"]
    # Two rollouts, three attempts each, two messages an attempt.
    assert found["attempts"] == 12


def test_a_rollout_in_which_a_step_failed_is_played_again_unless_it_shall_keep_its_reward(
    found: dict[str, Any],
) -> None:
    assert (found["disk, masked"], found["disk, kept"]) == ([1.0, 1.0], [0.0, 1.0])


def test_a_schema_reaches_the_prompt_whole_and_nested_arguments_the_tool(found: dict[str, Any]) -> None:
    with Shop() as world:
        (tool,) = world.list_tools()
    assert found["tool"] == tool.to_openai()
    assert found["bought"] == [1.0, 1.0]


def test_a_message_without_calls_goes_to_the_user_who_may_end_the_episode(found: dict[str, Any]) -> None:
    assert found["booth"] == [1.0, 1.0]
    assert "<|im_start|>user\nTwo.<|im_end|>" in found["prompt of booth"]
    assert "respond" not in found["prompt of booth"].replace("tool_response", "")


def test_the_verifier_is_asked_where_the_generator_stops_in_the_middle(found: dict[str, Any]) -> None:
    assert found["cut"] == {"return": 0.25, "truncated": 1.0, "verified": 0.0}


def test_an_episode_that_nothing_scored_raises_also_where_the_generator_stops(found: dict[str, Any]) -> None:
    told = "the episode has no reward, its status is {}: nothing scored it"
    assert found["unscored"] == [told.format("completed"), told.format("truncated")]


@pytest.mark.parametrize("by", ["model", "tool"])
def test_ctrl_c_ends_a_rollout_and_its_sessions(stuck: str, by: str) -> None:
    ends_at_ctrl_c(os.environ["MCPENV_SKYRL"], "skyrl", stuck, by, modules="skyrl.train.generators.skyrl_gym_generator")


def test_the_lines_of_the_page_are_at_most_ten_and_run(found: dict[str, Any], tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "train-skyrl.md"
    (lines,) = re.findall(r"^```py\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(list(filter(None, lines.splitlines()))) <= 10
    with served(create_app(Doors)) as doors:
        program = lines.replace("http://127.0.0.1:8000", doors.removesuffix("/mcp"))
        command = [os.environ["MCPENV_SKYRL"], "-c", program]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "train.parquet").exists()
