"""Rewards: what `score` and `finish` said, as one `Reward`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcpenv_client.records import Reward


@dataclass(frozen=True, slots=True)
class Finish:
    """What the first ``finish(...)`` of a step said."""

    reward: Reward | None
    truncated: bool
    reason: str | None


def reward_of(value: Any) -> Reward | None:
    """A `Reward` for what an author gave: None, a bool, a number or a Reward.

    Raises:
        TypeError, ValueError: it is no finite number.
    """
    if value is None or isinstance(value, Reward):
        return value
    return Reward(value)


def total(*parts: Reward | None) -> Reward | None:
    """The sum of the parts that are there; None only if all are None. Components of the same name add up."""
    given = [part for part in parts if part is not None]
    if len(given) <= 1:
        return given[0] if given else None
    components: dict[str, float] = {}
    for part in given:
        for name, value in part.components.items():
            components[name] = components.get(name, 0.0) + value
    return Reward(sum(part.value for part in given), components)
