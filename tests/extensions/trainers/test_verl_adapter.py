"""The adapter for verl by its own agent loop worker, in a virtual environment that has no server."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interrupted import ends_at_ctrl_c
from served import served
from trainer_worlds import Booth, Diary, Doors, ShakyDisk, Shop

from mcpenv.cli import execute
from mcpenv.server.app import create_app
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client import EnvClient
from mcpenv_client.types.model_turns import ModelTurn, TurnCall, TurnTokens
from mcpenv_client.types.records import Reward, StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.tasks import Task

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]

LOOK = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>'
OPEN = '<tool_call>\n{{"name": "open_door", "arguments": {{"colour": "{}"}}}}\n</tool_call><|im_end|>'
BROKEN = "<tool_call>\n{not JSON}\n</tool_call><|im_end|>"


@pytest.fixture(scope="module")
def served_urls() -> Iterator[list[str]]:
    with (
        served(create_app(Doors)) as doors,
        served(create_app(Shop)) as shop,
        served(create_app(Diary)) as diary,
        served(create_app(Booth)) as booth,
        served(create_app(ShakyDisk)) as disk,
    ):
        ShakyDisk.calls, ShakyDisk.failing = 0, {1, 3}  # the first call of each rollout; one is played again
        yield [address.removesuffix("/mcp") for address in (doors, shop, diary, booth, disk)]


def turn(prompt: list[int], ids: list[int], *steps: int) -> ModelTurn:
    calls = [TurnCall(None, "look", {}, number) for number in steps]
    made = ModelTurn("chat_completions", "/v1", {"messages": []}, status=200, answer={}, calls=calls)
    made.prompt_ids, made.tokens = prompt, [TurnTokens(ids, [-0.5] * len(ids))]
    return made


def recorded(name: str, reward: float, *turns: ModelTurn) -> RecordedEpisode:
    step = StepRecord(ToolCall("look", {}, 1), ToolOutcome.returned("red", 0.1), Reward(reward))
    trajectory = Trajectory(name, task=Task(id="red"), steps=[step], total_reward=reward, seed=3, terminated=True)
    return RecordedEpisode(trajectory, RecordedEnvironment("doors"), model_turns=list(turns))


def exported(folder: Path) -> Path:
    """Return the file of two exported episodes of a group."""
    with Recorder(folder / "record") as recorder:
        recorder.write(recorded("good", 1.0, turn([1, 2], [10, 11], 1), turn([1, 2, 10, 11, 5], [12])))
        recorder.write(recorded("bad", 0.0, turn([1, 2], [13], 1)))
    out = folder / "rows.jsonl"
    assert execute(["trajectories", "export", str(folder / "record"), "--format", "verl", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def found(served_urls: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    rows = exported(tmp_path_factory.mktemp("exports"))
    command = [_python(), str(Path(__file__).with_name("verl_program.py")), *served_urls, str(rows)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    with EnvClient(served_urls[0]).sync() as client:
        sessions = client.capacity().active_sessions
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**answers, "sessions": sessions}


def _python() -> str:
    python = os.environ.get("MCPENV_VERL")
    assert python, "MCPENV_VERL names no Python that has verl and mcpenv-client; .ci/run makes one"
    return python


def test_a_group_is_one_task_and_gets_the_verifiers_reward_at_its_last_token(found: dict[str, Any]) -> None:
    red = found["groups"][:2]
    assert [each["reward"] for each in red] == [1.25, 1.25] and all(each["rewarded"] for each in red)
    assert [each["parts"] for each in red] == [{"verified": 1.0}] * 2
    assert [each["status"] for each in red] == ["completed", "completed"]


def test_the_models_tokens_are_trained_on_and_those_of_tools_are_masked(found: dict[str, Any]) -> None:
    seen = '\n<|im_start|>user\n<tool_response>\n{"colour":"red"}\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
    red = found["groups"][0]
    assert red["text"] == f"{LOOK}{seen}{OPEN.format('red')}" and red["logprobs"]
    assert red["trained"] == f"{LOOK}{OPEN.format('red')}"


def test_a_call_that_cannot_be_read_is_answered_and_the_episode_goes_on(found: dict[str, Any]) -> None:
    green = found["groups"][2:]
    assert [each["reward"] for each in green] == [1.25, 1.25]
    assert all("Error: this call was not made. It is not JSON" in each["text"] for each in green)
    assert green[0]["trained"] == f"{BROKEN}{LOOK}{OPEN.format('green')}"


def test_an_episode_in_which_a_step_failed_is_played_again_unless_it_shall_keep_its_score(
    found: dict[str, Any],
) -> None:
    (masked,), (kept,) = found["masked"], found["kept"]
    assert (masked["reward"], kept["reward"]) == (1.0, 1.0)
    # Played again, nothing of the first attempt is left; otherwise the model saves again after the error.
    assert (masked["trained"].count("save"), kept["trained"].count("save")) == (1, 2)


def test_a_failed_episode_is_played_three_times_and_then_raises(found: dict[str, Any]) -> None:
    assert found["failed"].startswith("EpisodeFailed: the episode has no reward, its status is judge_error")
    assert found["asked of the failed"] == 3 * 2


def test_an_episode_that_verl_cuts_off_is_truncated_and_its_last_calls_are_not_made(found: dict[str, Any]) -> None:
    (cut,) = found["cut"]
    assert cut["status"] == "truncated" and cut["reward"] == 0.0 and cut["text"] == LOOK


def test_an_episode_that_nothing_scored_raises(found: dict[str, Any]) -> None:
    told = "EpisodeFailed: the episode has no reward, its status is completed: nothing scored it"
    assert found["unscored"] == told


def test_a_message_without_calls_goes_to_the_user_whose_words_are_masked(found: dict[str, Any]) -> None:
    for each in found["booth"]:
        assert (each["reward"], each["status"]) == (1.0, "completed")
        assert "<|im_start|>user\nTwo.<|im_end|>" in each["text"]
        assert "Two." not in each["trained"] and each["trained"].count("Done.<|im_end|>") == 2


def test_a_schema_reaches_the_prompt_whole_and_nested_arguments_the_tool(found: dict[str, Any]) -> None:
    with Shop() as world:
        (tool,) = world.list_tools()
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    assert found["tool"] == {"type": "function", "function": function}
    assert [each["reward"] for each in found["bought"]] == [1.0]


def test_a_template_that_leaves_out_schemas_is_refused(found: dict[str, Any]) -> None:
    assert found["refused"].startswith("ToolNotExpressible") and "tool 'buy': the prompt lacks" in found["refused"]


def test_verls_worker_makes_a_batch_of_exported_rows(found: dict[str, Any]) -> None:
    read = found["read"]
    assert (read["responses"], read["response_mask"]) == ([[10, 11, 5, 12], [13]], [[1, 1, 0, 1], [1]])
    assert read["rollout_log_probs"] == [[-0.5, -0.5, 0.0, -0.5], [-0.5]]
    assert (read["rm_scores"], read["turn_scores"]) == ([[0.0, 0.0, 0.0, 1.0], [0.0]], [[1.0, None], [0.0]])
    good, bad = read["advantages"]
    assert good[0] == good[1] == good[3] > 0.0 == good[2] > bad[0]
    assert read["unknown"] == []


def test_the_sessions_of_all_episodes_have_ended(found: dict[str, Any]) -> None:
    assert found["sessions"] == 1


@pytest.mark.parametrize("by", ["model", "tool"])
def test_ctrl_c_ends_a_rollout_and_its_sessions(stuck: str, by: str) -> None:
    ends_at_ctrl_c(os.environ["MCPENV_VERL"], "verl", stuck, by, modules="verl.experimental.agent_loop.agent_loop")


def test_the_lines_of_the_page_are_at_most_ten_and_make_a_dataset(served_urls: list[str], tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "train-verl.md").read_text(encoding="utf-8")
    lines, yaml = (
        "".join(re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)) for kind in ("py", "yaml")
    )
    assert len(list(filter(None, (lines + yaml).splitlines()))) <= 10
    program = lines.replace("http://127.0.0.1:8000", served_urls[0])
    read = "import pandas; print(pandas.read_parquet('test.parquet').episode.tolist())"
    command = [_python(), "-c", f"{program}\n{read}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[{'split': 'test', 'index': 0}, " in done.stdout
    assert yaml.splitlines()[1].split(": ")[1] == "mcpenv_client.trainers.verl.McpenvLoop"
