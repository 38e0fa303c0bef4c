"""A real run of TRL's trainer on CPU, in a virtual environment that has trl and the client, without a server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from interrupted import ends_at_ctrl_c
from served import served
from trainer_worlds import Booth, Coin, Doors, Late, Shop, Together

from mcpenv.cli import execute
from mcpenv.server.app import create_app
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client.types.model_turns import ModelTurn, TurnTokens
from mcpenv_client.types.records import Reward, Trajectory
from mcpenv_client.types.tasks import Task

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]


def test_the_trainer_plays_learns_from_the_verifier_and_shows_schemas_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    python = os.environ.get("MCPENV_TRL")
    assert python, "MCPENV_TRL names no Python that has trl and mcpenv-client; .ci/run makes one and sets it"
    program = Path(__file__).with_name("trl_program.py")
    monkeypatch.setattr(Late, "failing", {1: 2})
    with (
        served(create_app(Doors)) as doors,
        served(create_app(Shop)) as shop,
        served(create_app(Together)) as together,
        served(create_app(Late)) as late,
    ):
        urls = [address.removesuffix("/mcp") for address in (doors, shop, together, late)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        command = [python, str(program), *urls]
        ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["whole"] and "tool 'buy': the prompt lacks" in found["refused"]
    steps = [entry for entry in found["logged"] if "reward" in entry]
    assert len(steps) == 2 and sum(step["tools/call_frequency"] for step in steps) > 0
    # Of three doors the model opens the red one, which is right for one task.
    assert 0.0 < sum(step["rewards/McpenvEpisode/mean"] for step in steps) < 2.0
    assert set(found["ended"]) == {"completed"}
    side = found["side"]
    steps = [entry for entry in side["logged"] if "reward" in entry]
    assert len(steps) == 2 and 0.0 < sum(step["rewards/episode_return/mean"] for step in steps) < 2.0
    with Shop() as world:
        (tool,) = world.list_tools()
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    assert side["bought"] == {"tool": {"type": "function", "function": function}, "rewards": [1.0]}
    example = side["example"]
    assert example["episode_status"] == ["completed", "judge_error"] and example["episode_reward"] == [1.25, None]
    call = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call><|im_end|>'
    look, opened = call.format("look", "{}"), call.format("open_door", '{"colour": "red"}')
    seen = '\n<|im_start|>user\n<tool_response>\n{"colour":"red"}\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
    assert example["texts"][0] == f"{look}{seen}{opened}"
    assert example["trained"][0] == f"{look}{opened}"
    assert example["trained"][1] == f"{look}{call.format('break_verifier', '{}')}Done.<|im_end|>"
    two = call.format("look", "{}").removesuffix("<|im_end|>")
    both = 2 * '\n<tool_response>\n{"colour":"red"}\n</tool_response>'
    assert side["twice"] == {
        "text": f"{two}\n{look}\n<|im_start|>user{both}<|im_end|>\n<|im_start|>assistant\n{opened}",
        "trained": f"{two}\n{look}{opened}",
        "reward": 1.5,
    }
    unbegun = side["unbegun"]
    assert (unbegun["completion_ids"], unbegun["env_mask"]) == ([[unbegun["end"]]], [[0]]) and unbegun["prompt_ids"][0]
    assert (unbegun["episode_reward"], Late.failing) == ([None], {1: 0})
    assert len(side["met"]) == 4 and all("True" in text for text in side["met"])


@pytest.fixture(scope="module")
def scored() -> dict[str, Any]:
    python = os.environ.get("MCPENV_TRL")
    assert python, "MCPENV_TRL names no Python that has trl and mcpenv-client; .ci/run makes one and sets it"
    program = Path(__file__).with_name("trl_masked_program.py")
    with served(create_app(Coin)) as coin, served(create_app(Booth)) as booth:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        command = [python, str(program), *(address.removesuffix("/mcp") for address in (coin, booth))]
        ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("by", ["spec", "rollouts"])
@pytest.mark.parametrize("function", ["masked", "masked async"])
def test_a_failed_episode_has_no_advantage_with_a_reward_function_of_a_users_own(
    scored: dict[str, Any], function: str, by: str
) -> None:
    rewards, advantages = scored["batches"][f"{function}, {by}"]
    assert sorted(map(str, rewards)) == ["0.0", "1.0", "None", "None"]
    by_reward = dict(zip(map(str, rewards), advantages, strict=True))
    assert by_reward["None"] == 0.0 and [each for each in advantages if each == 0.0] == [0.0, 0.0]
    assert by_reward["1.0"] == pytest.approx(-by_reward["0.0"]) and by_reward["1.0"] > 0.5
    # What the page warns of: TRL takes the function's reward for the whole.
    rewards, advantages = scored["batches"][
        f"{function.replace('masked async', 'async').replace('masked', 'plain')}, {by}"
    ]
    assert dict(zip(map(str, rewards), advantages, strict=True))["None"] < -0.1


def test_in_rollouts_the_model_writes_to_the_user(scored: dict[str, Any]) -> None:
    assert scored["spoken"]["rewards"] == [1.0]
    assert "<|im_start|>user\nTwo.<|im_end|>\n<|im_start|>assistant\n" in scored["spoken"]["text"]


def test_an_answer_without_an_end_is_cut_and_one_that_just_fits_is_not(scored: dict[str, Any]) -> None:
    assert scored["cut"] == [True, True, False, False]


def test_rollouts_of_two_worlds_are_one_batch_each_with_its_own_tools(scored: dict[str, Any]) -> None:
    found = scored["mixed rollouts"]
    assert sorted({(world, task) for world, task, _ in found["seen"]}) == [("booth", "two"), ("coin", "throw")]
    assert found["batches"][0] == 4  # one generation for the episodes of both
    assert_own_tools(found["prompts"])
    (step,) = [entry for entry in found["logged"] if "reward" in entry]
    assert "rewards/booth/mean" in step and "rewards/coin/mean" in step


def assert_own_tools(prompts: list[str]) -> None:
    """Assert that half of the prompts are of `Coin`, half of `Booth`, and none has a tool of the other."""
    assert sum("Throw." in prompt for prompt in prompts) == 2 == len(prompts) // 2
    for prompt in prompts:
        tools = ('"name": "throw"', '"name": "sell"') if "Throw." in prompt else ('"name": "sell"', '"name": "throw"')
        assert tools[0] in prompt and tools[1] not in prompt


def test_rows_of_two_worlds_are_trained_on_in_one_batch_each_with_its_own_tools(scored: dict[str, Any]) -> None:
    found = scored["mixed"]
    played = sorted({(world, name, task) for world, name, _, task in found["seen"]})
    assert played == [("booth", "booth", "two"), ("coin", "coin", "throw")]
    assert [reward for world, _, reward, _ in found["seen"] if world == "booth"] == [0.0, 0.0]
    assert_own_tools(found["prompts"])
    (step,) = [entry for entry in found["logged"] if "reward" in entry]
    assert step["rewards/booth/mean"] == 0.0 and "rewards/coin/mean" in step


def test_masks_are_those_of_the_trainer_but_for_line_breaks_of_the_template() -> None:
    python = os.environ.get("MCPENV_TRL")
    assert python, "MCPENV_TRL names no Python that has trl and mcpenv-client; .ci/run makes one and sets it"
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [python, str(Path(__file__).with_name("mask_program.py"))]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [each["template"] for each in found] == ["qwen3", "qwen2_5", "lfm2_v2"]
    for each in found:
        ours, theirs, texts = each["ours"], each["theirs"], each["texts"]
        assert ours["samples"] == 1
        assert theirs["tokens"] == [*ours["tokens"], *theirs["tokens"][-1:]]  # a line break behind the last answer
        marks = list(zip([*ours["mask"], 0], theirs["mask"], texts, strict=True))
        assert sum(one for one, *_ in marks) > 50
        # The trainer marks what its template writes around an answer, too; a model does not sample it.
        assert {text for one, other, text in marks if one != other} == {"\n"}
        assert all(other for one, other, _ in marks if one)
        # The same conversation by the APIs of Claude Code and Codex, with parallel calls.
        assert each["apis"]["messages"] == each["apis"]["responses"] == each["apis"]["chat_completions"]
        ((tokens, mask, tokenizer),) = each["apis"]["messages"]["tokens"]
        assert (tokens, mask, tokenizer) == (ours["tokens"], ours["mask"], "small")
        thoughts = each["thoughts"]
        assert thoughts["messages"] == thoughts["responses"] == thoughts["chat_completions"]
    qwen3, qwen2_5, lfm2 = (each["thoughts"]["messages"] for each in found)
    assert len(qwen3["tokens"]) == 1 and qwen3["left_out"] == []
    for without in (qwen2_5, lfm2):  # templates without thoughts
        assert len(without["left_out"]) == 3 and without["tokens"] == [[[], [], None]]
        assert all("cannot express the thought of an answer" in reason for reason in without["left_out"])


@pytest.mark.parametrize("by", ["rollouts", "spec", "tool"])
def test_ctrl_c_ends_a_training_and_its_sessions(stuck: str, by: str) -> None:
    ends_at_ctrl_c(os.environ["MCPENV_TRL"], "trl", stuck, by, modules="torch, trl.trainer.grpo_trainer")


def test_an_export_makes_tokens_by_a_tokenizer_for_an_endpoint_that_gives_none(tmp_path: Path) -> None:
    asked = {"messages": [{"role": "user", "content": "Go."}]}
    said = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Gone."}}]}
    turn = ModelTurn("chat_completions", "/v1/chat/completions", asked, status=200, answer=said)
    with Recorder(tmp_path / "record") as recorder:
        trajectory = Trajectory("e1", total_reward=1.0, terminated=True)
        recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("w"), model_turns=[turn]))
    program = Path(__file__).with_name("trl_rows_program.py")
    command = [os.environ["MCPENV_TRL"], str(program), str(tmp_path)]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["text"].startswith("<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n")
    assert found["written"].endswith("Gone.<|im_end|>") and "Go.<" not in found["written"]
    assert (found["row"]["tokenizer"], found["row"]["logprobs"]) == (str(tmp_path / "tokenizer"), None)


def test_the_trainer_learns_from_exported_rows_with_their_masks(tmp_path: Path) -> None:
    def turn(prompt: list[int], ids: list[int]) -> ModelTurn:
        made = ModelTurn("chat_completions", "/v1/chat/completions", {}, status=200, answer={}, prompt_ids=prompt)
        made.tokens = [TurnTokens(ids, [-0.5] * len(ids))]
        return made

    with Recorder(tmp_path / "record") as recorder:
        for number, reward in enumerate((1.0, 0.0)):
            turns = [turn([15, 16, 17], [20, 21 + number])]
            if number == 0:
                turns.append(turn([15, 16, 17, 20, 21, 30, 31], [22]))
            trajectory = Trajectory(f"e{number}", terminated=True, task=Task(id="t"))
            trajectory.end_reward, trajectory.total_reward = Reward(reward), reward
            recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("w"), model_turns=turns))
    out = tmp_path / "rows.jsonl"
    assert execute(["trajectories", "export", str(tmp_path / "record"), "--format", "trl", "--out", str(out)]) == 0
    program = Path(__file__).with_name("trl_read_program.py")
    command = [os.environ["MCPENV_TRL"], str(program), str(out)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    # The trainer shuffles a batch.
    order = sorted(range(2), key=lambda at: -found["advantages"][at])
    trained = [
        [token for token, *marks in zip(*each, strict=True) if all(marks)]
        for each in zip(found["completion_ids"], found["completion_mask"], found["tool_mask"], strict=True)
    ]
    assert [trained[at] for at in order] == [[20, 21, 22], [20, 22]]
    seen = [
        [token for token, mark in zip(*each, strict=True) if mark]
        for each in zip(found["completion_ids"], found["completion_mask"], strict=True)
    ]
    assert [seen[at] for at in order] == [[20, 21, 30, 31, 22], [20, 22]]
    assert found["prompt_ids"] == [[15, 16, 17]] * 2 and found["advantages"][order[0]] > 0.5
    assert found["reward"] == 0.5 and found["learned"]
