"""Exported rows for slime and NeMo RL, read by small readers in the shape of their code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer_rows import nemo_batch, slime_batch

from mcpenv.cli import execute
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client.types.model_turns import ModelTurn, TurnTokens
from mcpenv_client.types.records import Reward, Trajectory
from mcpenv_client.types.tasks import Task


def turn(prompt: list[int], ids: list[int]) -> ModelTurn:
    made = ModelTurn("chat_completions", "/v1/chat/completions", {}, status=200, answer={}, prompt_ids=prompt)
    made.tokens = [TurnTokens(ids, [-0.5] * len(ids))]
    return made


def exported(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a group: an episode of two turns, a truncated one, and one of two samples."""
    turns = {
        "whole": [turn([1, 2], [10, 11]), turn([1, 2, 10, 11, 5], [12])],
        "cut": [turn([1, 2], [13])],
        "split": [turn([1, 2], [14]), turn([1, 9, 9], [15, 16])],
    }
    with Recorder(folder / "record") as recorder:
        for at, (name, given) in enumerate(turns.items()):
            about: dict[str, Any] = {"end_reward": Reward(at / 2), "total_reward": at / 2}
            about["truncated" if name == "cut" else "terminated"] = True
            trajectory = Trajectory(name, 3, task=Task(id="t1"), **about)
            recorder.write(RecordedEpisode(trajectory, RecordedEnvironment("w"), model_turns=given))
    rows = {}
    for form in ("slime", "nemo"):
        out = folder / f"{form}.jsonl"
        assert execute(["trajectories", "export", str(folder / "record"), "--format", form, "--out", str(out)]) == 0
        rows[form] = [json.loads(line) for line in out.read_text().splitlines()]
    return rows


def test_slime_trains_on_the_models_tokens_and_weighs_an_episode_once(tmp_path: Path) -> None:
    batch = slime_batch(exported(tmp_path)["slime"])
    assert batch["tokens"] == [[1, 2, 10, 11, 5, 12], [1, 2, 13], [1, 2, 14], [1, 9, 9, 15, 16]]
    assert batch["loss_masks"] == [[1, 1, 0, 1], [1], [1], [1, 1]]
    assert (batch["raw_reward"], batch["truncated"]) == ([0.0, 0.5, 1.0, 1.0], [0, 1, 0, 0])
    whole, cut, one, other = batch["rollout_ids"]
    assert one == other and len({whole, cut, one}) == 3
    assert batch["rollout_mask_sums"] == [3, 1, 3, 3]  # both samples are divided by the tokens of their episode
    assert [logprobs[0] for logprobs in batch["rollout_log_probs"]] == [-0.5] * 4


def test_nemo_rl_trains_on_the_models_tokens(tmp_path: Path) -> None:
    batch = nemo_batch(exported(tmp_path)["nemo"])
    assert batch["token_ids"] == [[1, 2, 10, 11, 5, 12], [1, 2, 13, 0, 0, 0], [1, 2, 14, 0, 0, 0], [1, 9, 9, 15, 16, 0]]
    assert batch["token_loss_mask"] == [
        [0, 0, 1, 1, 0, 1],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 0],
    ]
    assert batch["generation_logprobs"][0] == [0.0, 0.0, -0.5, -0.5, 0.0, -0.5]
    assert batch["input_lengths"] == [6, 3, 3, 5]
