"""Convert the values given to `score` and `finish` to one `Reward`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcpenv_client.types.records import Reward


@dataclass(frozen=True, slots=True)
class Finish:
    """The arguments of the first ``finish(...)`` call of a step."""

    reward: Reward | None
    truncated: bool
    reason: str | None


def reward_of(value: Any) -> Reward | None:
    """Convert None, a bool, a number or a `Reward` to a `Reward` or None.

    Raises:
        TypeError, ValueError: if it is not a finite number.
    """
    if value is None or isinstance(value, Reward):
        return value
    return Reward(value)


def total(*parts: Reward | None) -> Reward | None:
    """Return the sum of the parts that are not None; None if all are None. Components of the same name add up."""
    given = [part for part in parts if part is not None]
    if len(given) <= 1:
        return given[0] if given else None
    components: dict[str, float] = {}
    for part in given:
        for name, value in part.components.items():
            components[name] = components.get(name, 0.0) + value
    return Reward(sum(part.value for part in given), components)
