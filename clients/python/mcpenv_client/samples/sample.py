"""A sample: one sequence of tokens to train on, with the part of the episode that it shows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple

Place = Literal["prompt", "answer", "model"]
"""The part of a sequence: the first prompt, what came between two answers of the model, or an answer of the model."""


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One answer of the model, as it was sampled.

    Attributes:
        prompt_ids: the tokens that the model was given, all of them.
        ids: the sampled tokens.
        logprobs: the log-probability of each sampled token; None if they are unknown.
        steps: the numbers (from 1) of the episode's steps that its calls made.
        index: its number among the model's turns of the episode, from 0.
        policy_version: the version of the weights that sampled it; None if unknown.
        tokenizer: the name of the tokenizer that made the tokens from text afterwards; None if they are the
            endpoint's own.

    Raises:
        ValueError: there is not one log-probability for each token.
    """

    prompt_ids: Sequence[int]
    ids: Sequence[int]
    logprobs: Sequence[float | None] | None = None
    steps: list[int] = field(default_factory=list)
    index: int = 0
    policy_version: int | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        """Check the lengths."""
        if self.logprobs is not None and len(self.logprobs) != len(self.ids):
            raise ValueError(f"there are {len(self.ids)} tokens and {len(self.logprobs)} log-probabilities")


class LeftOut(NamedTuple):
    """A turn of the model that is in no sample.

    Attributes:
        turn: its index among the turns of the episode; None: there are no turns, or their value cannot be read.
        reason: why.
    """

    turn: int | None
    reason: str


class Gap(NamedTuple):
    """Where a prompt is not the earlier tokens with more behind them.

    Attributes:
        turn: the index of the turn whose prompt it is.
        at: the number of first tokens that are equal.
        of: the number of tokens that should have been equal.
        place: the part of the earlier tokens in which the first difference is.
    """

    turn: int
    at: int
    of: int
    place: Place

    def __str__(self) -> str:
        """Say it in a sentence."""
        what = {
            "prompt": "its first prompt",
            "answer": "what came between two answers of the model",
            "model": "an answer of the model",
        }
        return f"turn {self.turn}: the prompt repeats {self.at} of {self.of} tokens, and differs in {what[self.place]}"


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens that the model wrote in one turn, ``tokens[start:end]`` of a sample.

    Attributes:
        turn: as `SampledTurn.index`.
        reward: the sum of the rewards of its steps; None if none was scored.
        steps, policy_version: as in `SampledTurn`.
        parts: the sums of the named components of those rewards.
    """

    start: int
    end: int
    turn: int
    reward: float | None = None
    steps: tuple[int, ...] = ()
    policy_version: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """One sequence of tokens of an episode.

    An episode is one sample, unless its agent changed what the model had seen: then it is several, each with ``gap``.
    The rewards of steps are in the spans; the return is the episode's, the same in all of its samples.

    Attributes:
        tokens: all tokens, of the prompt, the model and the answers of tools.
        mask: 1 for each token that the model wrote, else 0.
        logprobs: the log-probability of each token where ``mask`` is 1; elsewhere the number means nothing. None if
            they are unknown.
        messages: the conversation, for logs.
        spans: the turns of the model, in order; without any, one for each run of tokens that the model wrote.
        reward: the episode's return; None if nothing was scored, or if the status is not about the agent.
        parts: the sums of the named components of the rewards.
        end_reward, end_parts: the reward of an end that was not a step, and its named components; None and empty if
            the last step has it.
        advantage: the advantage over the group; None without a group or a reward.
        status: the episode's `StatusCode`.
        usable: False if the optimiser must not see it: the reward is None, or a step is not about the agent.
        truncated: True if a limit ended the episode.
        episode_id, environment, task, seed: the episode.
        labels: the task's ``level``, ``family`` and ``tags``, those that it has.
        group: the number of the group, whose episodes have the same task and seed.
        tree: the episode that this one was forked from, or else the episode itself.
        tree_step: the number of steps that it has in common with that episode; None if it is no fork.
        piece, pieces: the number of the sample in its episode, from 0, and their number.
        gap: why the piece does not continue an earlier one; None for the first.
        tokenizer: as in `SampledTurn`, of the first turn that has one.
        left_out: the turns of the episode that are in none of its samples. If all are, ``tokens`` is empty.

    Raises:
        ValueError: the lists have different lengths, or the mask has other numbers than 0 and 1.
    """

    tokens: list[int]
    mask: list[int]
    logprobs: list[float] | None = None
    messages: list[dict[str, Any]] | None = None
    spans: list[Span] = field(default_factory=list)
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    end_reward: float | None = None
    end_parts: Mapping[str, float] = field(default_factory=dict)
    advantage: float | None = None
    status: str = "completed"
    usable: bool = True
    truncated: bool = False
    episode_id: str | None = None
    environment: str | None = None
    task: str | None = None
    seed: int | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    group: int | None = None
    tree: str | None = None
    tree_step: int | None = None
    piece: int = 0
    pieces: int = 1
    gap: Gap | None = None
    tokenizer: str | None = None
    left_out: Sequence[LeftOut] = ()

    def __post_init__(self) -> None:
        """Check the lengths and the mask."""
        if not len(self.tokens) == len(self.mask) == len(self.mask if self.logprobs is None else self.logprobs):
            raise ValueError("tokens, mask and logprobs have one entry for each token")
        if not set(self.mask) <= {0, 1}:
            raise ValueError("the mask has a number that is not 0 or 1")
        if not self.spans:
            runs = [len([*run]) if mine else -len([*run]) for mine, run in groupby(self.mask)]
            ends = [*accumulate(map(abs, runs))]
            wrote = [(end - run, end) for run, end in zip(runs, ends, strict=True) if run > 0]
            object.__setattr__(self, "spans", [Span(*place, turn) for turn, place in enumerate(wrote)])

    @property
    def start(self) -> int:
        """The number of tokens before the model's first."""
        return self.mask.index(1) if 1 in self.mask else len(self.mask)

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens before the model's first."""
        return self.tokens[: self.start]

    @property
    def completion_ids(self) -> list[int]:
        """The tokens from the model's first on, with the answers of tools."""
        return self.tokens[self.start :]

    @property
    def completion_mask(self) -> list[int]:
        """The mask of `completion_ids`."""
        return self.mask[self.start :]

    @property
    def completion_logprobs(self) -> list[float] | None:
        """The log-probabilities of `completion_ids`; None if they are unknown."""
        return None if self.logprobs is None else self.logprobs[self.start :]

    @property
    def policy_version(self) -> int | None:
        """The oldest version of the weights that wrote a part of it; None if unknown."""
        return min((span.policy_version for span in self.spans if span.policy_version is not None), default=None)

    def to_plain(self) -> dict[str, Any]:
        """Return plain JSON data, with ``policy_version``."""
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        plain["spans"] = [dataclasses.asdict(span) for span in self.spans]
        plain["gap"] = None if self.gap is None else {**self.gap._asdict(), "text": str(self.gap)}
        plain["left_out"] = [each._asdict() for each in self.left_out]
        for name in ("parts", "end_parts", "labels"):
            plain[name] = dict(plain[name])
        return {**plain, "policy_version": self.policy_version}


def finite_logprobs(values: Sequence[float | None]) -> list[float] | None:
    """Return log-probabilities; None if one of them is missing or not finite."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    return found if len(found) == len(values) else None
