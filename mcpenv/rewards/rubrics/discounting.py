"""Aggregate scores over the steps of an episode, and discount late ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from mcpenv_client.scores import discount_of
from mcpenv_client.types.records import summed

from .composites import Ask, Composite, Moment
from .rubric import Rubric

How = Literal["sum", "mean", "min", "max", "last"]

_HOW: dict[str, Callable[[list[float]], float]] = {
    "sum": summed,
    "mean": lambda values: summed(values) / len(values),
    "min": min,
    "max": max,
    "last": lambda values: values[-1],
}


class OverSteps(Composite):
    """Score every step with a rubric, and return one aggregate at the end of the episode.

    Steps that the rubric does not score are left out.

    Args:
        rubric: scores the steps.
        how: the aggregate: "sum", "mean", "min", "max" or "last".
        discount: 0 to 1. The value of step t (from 1) is multiplied by ``discount ** (t - 1)``.
    """

    def __init__(self, rubric: Rubric, how: How = "sum", discount: float = 1.0) -> None:
        super().__init__([rubric])
        if how not in get_args(How):
            raise ValueError(f"OverSteps: how is {how!r}; it must be one of {', '.join(get_args(How))}")
        self.how = how
        self.discount = discount_of(discount)
        self.values: list[float] = []

    async def combine(self, ask: Ask, moment: Moment) -> float | None:
        """Return None for a step, and the aggregate at the end."""
        if moment.trajectory is not None:
            return _HOW[self.how](self.values) if self.values else None
        reward = await ask(next(iter(self.parts)))
        if reward is not None:
            self.values.append(reward.value * self.discount ** (moment.step - 1))
        return None


class Discounted(Composite):
    """Multiply the value at step t (from 1) by ``discount ** (t - 1)``.

    At the end of the episode t is the number of its steps, so that the same success in fewer steps is worth more.

    Args:
        rubric: gives the values.
        discount: 0 to 1.
    """

    def __init__(self, rubric: Rubric, discount: float = 0.99) -> None:
        super().__init__([rubric])
        self.discount = discount_of(discount)

    async def combine(self, ask: Ask, moment: Moment) -> float | None:
        """Return the discounted value of the part."""
        reward = await ask(next(iter(self.parts)))
        return None if reward is None else reward.value * self.discount ** (moment.step - 1)
