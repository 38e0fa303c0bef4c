"""The samples of a group of played episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mcpenv_client.samples import Sample, SampledTurn, samples_of, turns_of
from mcpenv_client.samples.chain import about_episode
from mcpenv_client.scores import advantages_of_scores, whole_status
from mcpenv_client.types.model_turns import ModelTurn

from .assignment import Played, world_of


def samples_of_group(group: Sequence[Played]) -> list[Sample]:
    """Return the samples of the episodes of a group, with their advantages.

    Args:
        group: episodes of one task and seed.

    Raises:
        TypeError: a policy gave no tokens.
    """
    rewards = [each.reward if _usable(each) else None for each in group]
    values = advantages_of_scores(rewards)
    return [sample for each, value in zip(group, values, strict=True) for sample in _samples(each, value)]


def _samples(played: Played, advantage: float | None) -> list[Sample]:
    about: dict[str, Any] = {
        "group": played.assignment.group,
        "environment": world_of(played.assignment.row),
        "advantage": advantage,
        "reward": played.reward,
        "status": played.status.code.value,
        "usable": _usable(played),
    }
    given = played.value if isinstance(played.value, list) else [played.value]
    if played.turns:
        return samples_of(played.turns, played.trajectory, **about)
    if given and all(isinstance(each, Sample) for each in given):
        whole = {} if played.trajectory is None else about_episode(played.trajectory)
        return [replace(each, **{**whole, **about}, piece=at, pieces=len(given)) for at, each in enumerate(given)]
    if given and all(isinstance(each, SampledTurn) for each in given):
        return samples_of(given, played.trajectory, **about)
    if given and all(isinstance(each, ModelTurn) for each in given):
        return samples_of(turns_of(given)[0], played.trajectory, **about)
    if played.trajectory is None or not played.status.usable:
        return []  # it failed before its model wrote anything
    raise TypeError(
        f"the policy returned {type(played.value).__name__} and called no episode.wrote(); return a Sample, or turns"
    )


def _usable(played: Played) -> bool:
    """Return True if the optimiser may see an episode: each of its steps and its end are about the agent."""
    whole = None if played.trajectory is None else whole_status(played.trajectory)
    return played.reward is not None and played.status.usable and whole is not None and whole.usable
