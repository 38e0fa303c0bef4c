"""Chains: the turns of an episode, put together to samples as far as each prompt continues the tokens before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcpenv_client.scores import score_of, whole_status
from mcpenv_client.types.records import Reward, Trajectory, components_of, summed
from mcpenv_client.types.tasks import LABELS

from .sample import Gap, LeftOut, Place, Sample, SampledTurn, Span, finite_logprobs

_UNKNOWN = 0.0
"""Stands for the log-probability of a token that the model did not write."""

_NEAR = 1000
"""The number of tokens that are compared before all."""


@dataclass
class _Chain:
    """A sequence that the next turn may continue."""

    gap: Gap | None
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    tokenizer: str | None = None

    def continues(self, prompt: list[int]) -> bool:
        """Return True if a prompt begins with all tokens of this sequence."""
        length = len(self.tokens)
        # Most differ in length, or in the last token.
        return length <= len(prompt) and prompt[length - 1] == self.tokens[-1] and prompt[:length] == self.tokens

    def common(self, prompt: list[int], least: int) -> int:
        """Return the number of first tokens that a prompt repeats; ``least`` if there are no more."""
        low, high = least, min(len(self.tokens), len(prompt))
        near = slice(max(0, low - _NEAR), low + 1)  # where most of those differ that repeat fewer
        if low >= high or self.tokens[near] != prompt[near] or self.tokens[: low + 1] != prompt[: low + 1]:
            return low
        while low < high:  # the first ``low`` tokens are equal
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.tokens[low:middle] == prompt[low:middle] else (low, middle - 1)
        return low

    def add(self, turn: SampledTurn, rewards: Mapping[int, Reward]) -> None:
        """Append what the turn's prompt adds, and the turn's tokens."""
        between = turn.prompt_ids[len(self.tokens) :]
        start = len(self.tokens) + len(between)
        self.tokens += [*between, *turn.ids]
        self.mask += [*(0 for _ in between), *(1 for _ in turn.ids)]
        known = None if turn.logprobs is None else finite_logprobs(turn.logprobs)
        if self.logprobs is not None:
            self.logprobs = None if known is None else [*self.logprobs, *(_UNKNOWN for _ in between), *known]
        earned = [rewards[step] for step in turn.steps if step in rewards]
        reward = summed(each.value for each in earned) if earned else None
        place = (start, len(self.tokens), turn.index)
        self.spans.append(Span(*place, reward, tuple(turn.steps), turn.policy_version, components_of(earned)))
        self.tokenizer = self.tokenizer or turn.tokenizer

    def place(self, at: int) -> Place:
        """Return the part of the sequence in which a token is."""
        if at < self.spans[0].start:
            return "prompt"
        return "model" if self.mask[at] else "answer"


def chains(turns: Iterable[SampledTurn], rewards: Mapping[int, Reward]) -> list[_Chain]:
    """Return the sequences of an episode.

    A turn continues the longest sequence whose tokens, all of them, its prompt begins with; else it begins one. So a
    conversation beside the first one, as of a sub-agent, is a sequence of its own.

    Args:
        turns: the turns in their order. One without sampled tokens is left out.
        rewards: the rewards of steps, by their numbers.
    """
    found: list[_Chain] = []
    for turn in turns:
        if not turn.ids:
            continue
        prompt = list(turn.prompt_ids)
        continued = (each for each in found if each.continues(prompt))
        chain = max(continued, key=lambda each: len(each.tokens), default=None)
        if chain is None:
            chain = _Chain(_gap(turn.index, prompt, found))
            found.append(chain)
        chain.add(turn, rewards)
    return found


def _gap(turn: int, prompt: list[int], earlier: Sequence[_Chain]) -> Gap | None:
    """Return where a prompt leaves the sequence with which it has most in common; None without an earlier one."""
    if not earlier:
        return None
    near, at = earlier[-1], 0
    for chain in reversed(earlier):
        common = chain.common(prompt, at)
        if common > at:
            near, at = chain, common
    return Gap(turn, at, len(near.tokens), near.place(at))


def samples_of(
    turns: Iterable[SampledTurn],
    trajectory: Trajectory | None = None,
    *,
    left_out: Sequence[LeftOut] = (),
    **about: Any,
) -> list[Sample]:
    """Return the samples of an episode.

    If all of its turns are left out, this is one sample without tokens, which is not usable and says why.

    Args:
        turns: the model's turns, in their order. One without sampled tokens is left out.
        trajectory: the episode, for its rewards, status and task; None leaves them out.
        left_out: further turns that are in no sample.
        about: further fields of each sample.
    """
    turns = list(turns)
    empty = [LeftOut(turn.index, "the model sampled no tokens") for turn in turns if not turn.ids]
    about["left_out"] = tuple(sorted((*left_out, *empty), key=lambda each: -1 if each.turn is None else each.turn))
    rewards = {}
    if trajectory is not None:
        rewards = {step.call.step: step.reward for step in trajectory.steps if step.reward is not None}
        about = {**about_episode(trajectory), **about}
    made = chains(turns, rewards)
    if not made and about["left_out"]:
        return [Sample([], [], **{**about, "usable": False})]
    return [
        Sample(
            chain.tokens,
            chain.mask,
            chain.logprobs,
            spans=chain.spans,
            piece=number,
            pieces=len(made),
            gap=chain.gap,
            tokenizer=chain.tokenizer,
            **about,
        )
        for number, chain in enumerate(made)
    ]


def about_episode(trajectory: Trajectory) -> dict[str, Any]:
    """Return the fields of a sample that are the episode's."""
    status, task = trajectory.status, trajectory.task
    reward = score_of(trajectory) if status is not None and status.usable else None
    whole = whole_status(trajectory)
    end = trajectory.end_reward
    rewards = (*(step.reward for step in trajectory.steps), end)
    return {
        "reward": reward,
        "parts": components_of(reward for reward in rewards if reward is not None),
        "end_reward": None if end is None else end.value,
        "end_parts": {} if end is None else dict(end.components),
        "status": "unfinished" if status is None else status.code.value,
        "usable": reward is not None and whole is not None and whole.usable,
        "truncated": trajectory.truncated,
        "episode_id": trajectory.episode_id,
        "task": None if task is None else task.id,
        "seed": trajectory.seed,
        "labels": {} if task is None else {name: found for name in LABELS if (found := getattr(task, name))},
        "tree": trajectory.episode_id if trajectory.forked_from is None else trajectory.forked_from.episode_id,
        "tree_step": None if trajectory.forked_from is None else trajectory.forked_from.step,
    }
