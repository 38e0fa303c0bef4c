"""Rollouts for TRL with concurrent episodes: a ``rollout_func`` of `GRPOTrainer`.

Needs the package trl.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from trl.models.utils import unwrap_model_for_generation

from mcpenv_client.conversation import Conversation
from mcpenv_client.pool.assignment import WORLD
from mcpenv_client.samples.formats import trl

from .sessions import Place, Sessions
from .trl_dataset import dataset_of
from .trl_rewards import masked
from .trl_rollout import Rollout

Generate = Callable[[Any, list[list[int]]], list[list[int]]]
"""Returns the tokens with which the trainer's model continues each prompt. One without an end token was cut."""


def generate(trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Generate by transformers, with the trainer's own settings: one batch for all prompts."""
    pad, marks = trainer.processing_class.pad_token_id, trainer.generation_config.eos_token_id
    ends = {*marks} if isinstance(marks, list | tuple) else {marks}
    length = max(map(len, prompts))
    ids = torch.tensor([[pad] * (length - len(prompt)) + prompt for prompt in prompts], device=trainer.model.device)
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=ids.device)
    with torch.no_grad(), unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        made = model.generate(input_ids=ids, attention_mask=mask, generation_config=trainer.generation_config)
    continued: list[list[int]] = []
    for tokens in made[:, length:].tolist():
        end = next((at + 1 for at, token in enumerate(tokens) if token in ends), len(tokens))
        continued.append(tokens[:end])
    return continued


class McpenvRollouts:
    """The ``rollout_func`` of an environment, with its `train_dataset` and `reward_funcs`.

    The episodes of a batch run in lockstep: their resets, the generation, their tool calls, their ends. With a server,
    a turn takes one round trip; `McpenvSpec` takes one for each call. Each episode has the tools of its own task. The
    model's tokens are trained on as generated; tokens of tools are masked.

    Args:
        target: servers or an environment in this process, as `Sessions` takes it.
        split: the split with the tasks for the rows; None: rows have seeds instead of tasks.
        num_tasks: the maximum of rows; the number of seeds without a split.
        max_turns: the maximum of the model's messages in an episode.
        retries: the number of retries of a reset after the environment failed.
        mask_failed_steps: give an episode no reward after a step that failed by no fault of the agent.
        generate: generates; `generate` of this module by default.
        settings: settings of the target, in this process.
        client: arguments of `EnvClient`, for a URL.

    Attributes:
        rows: the tasks' columns, read when they are used.

    Raises:
        ValueError: there are no rows.
        WireError, ConnectionFailed, PoolError: the environment cannot list its tools or tasks.
    """

    def __init__(
        self,
        target: Place,
        *,
        split: str | None = "train",
        num_tasks: int | None = None,
        max_turns: int = 20,
        retries: int = 2,
        mask_failed_steps: bool = True,
        generate: Generate = generate,
        settings: Sequence[str] = (),
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.sessions = Sessions(target, settings, client)
        self.retries = retries
        self._mask_failed_steps = mask_failed_steps
        self._max_turns = max_turns
        self._generate = generate
        self.rows, _ = self.sessions.listed(split, num_tasks)
        self._slots: list[Rollout] = []

    @property
    def train_dataset(self) -> Dataset:
        """One row for each task. Its ``prompt`` names the episode as JSON: a ``rollout_func`` gets no other data."""
        return dataset_of(self.rows, prompted)

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """The returns of the episodes; None masks one: nothing was scored, or the agent is not to blame.

        Add functions of your own to it, each `masked`.
        """
        return [episode_return]

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play one episode for each prompt, and return the data that TRL trains on."""
        return play(self.slots(len(prompts)), rows_of(prompts), self._generate, trainer)

    def slots(self, count: int) -> list[Rollout]:
        """Return that many rollouts, which are used again for each batch."""
        while len(self._slots) < count:
            conversation = Conversation(
                self.sessions.open(),
                tool_format="hf",
                max_turns=self._max_turns,
                mask_failed_steps=self._mask_failed_steps,
            )
            self._slots.append(Rollout(self.sessions, conversation, self.retries))
        return self._slots[:count]


def play(
    rollouts: Sequence[Rollout], rows: Sequence[Mapping[str, Any]], generate: Generate, trainer: Any
) -> dict[str, Any]:
    """Play a row in each rollout, all of them in lockstep, and return the data that TRL trains on."""
    _run(rollouts, (rollout.begin(row, trainer) for rollout, row in zip(rollouts, rows, strict=True)))
    while playing := [rollout for rollout in rollouts if not rollout.done]:
        generated = generate(trainer, [rollout.prompt for rollout in playing])
        _run(playing, (rollout.act(tokens, trainer) for rollout, tokens in zip(playing, generated, strict=True)))
    _run(rollouts, (rollout.end() for rollout in rollouts))
    made = [trl(rollout.sample) for rollout in rollouts]
    for sample in made:
        if not sample["completion_ids"]:  # there is nothing to learn from, but TRL needs a token
            sample["completion_ids"], sample["env_mask"] = [trainer.processing_class.eos_token_id], [0]
    given = ("prompt_ids", "completion_ids", "env_mask", "episode_reward", "episode_status")
    return {"logprobs": None} | {name: [sample[name] for sample in made] for name in given}


def _run(rollouts: Sequence[Rollout], calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run a call of each rollout: those on servers at once, then those in this process, which has another loop."""
    of = [*zip(rollouts, calls, strict=True)]
    for remote in (True, False):
        mine = [(rollout, call) for rollout, call in of if rollout.sessions.remote == remote]
        if mine:
            mine[0][0].sessions.run_all(call for _, call in mine)


def rows_of(prompts: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what the prompts of rows name."""
    return [json.loads(prompt[-1]["content"]) for prompt in prompts]


def episode_return(episode_reward: list[float | None], **columns: Any) -> list[float | None]:
    """Return the returns of the episodes, which the rollouts contain."""
    return episode_reward


def prompted(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose prompt names its episode."""
    named = {name: row[name] for name in ("split", "index", "seed", WORLD) if name in row}
    return {**row, "prompt": [{"role": "user", "content": json.dumps(named)}]}


__all__ = ["McpenvRollouts", "episode_return", "generate", "masked"]
