"""Over time: what steps add up to at the end, and what comes late is worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from mcpenv_client.records import finite

from .composites import Ask, Composite, Moment
from .rubric import Rubric

How = Literal["sum", "mean", "min", "max", "last"]

_HOW: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "min": min,
    "max": max,
    "last": lambda values: values[-1],
}


class OverSteps(Composite):
    """Asks a rubric about every step and scores once, at the end of the episode.

    Steps that the rubric does not score do not count.

    Args:
        rubric: what is asked.
        how: what its values become: "sum", "mean", "min", "max" or "last".
        discount: the value of step t (from 1) counts ``discount ** (t - 1)``; 0 to 1.
    """

    def __init__(self, rubric: Rubric, how: How = "sum", discount: float = 1.0) -> None:
        super().__init__([rubric])
        if how not in get_args(How):
            raise ValueError(f"OverSteps: how is {how!r}; it is one of {', '.join(get_args(How))}")
        self.how = how
        self.discount = discount_of(discount)
        self.values: list[float] = []

    async def combine(self, ask: Ask, moment: Moment) -> float | None:
        """Nothing for a step; at the end what its values are together."""
        if moment.trajectory is not None:
            return _HOW[self.how](self.values) if self.values else None
        reward = await ask(next(iter(self.parts)))
        if reward is not None:
            self.values.append(reward.value * self.discount ** (moment.step - 1))
        return None


class Discounted(Composite):
    """What comes late is worth less: the value at step t (from 1) counts ``discount ** (t - 1)``.

    At the end of the episode t is the number of its steps, so that the same success in fewer steps is worth more.

    Args:
        rubric: what is asked.
        discount: 0 to 1.
    """

    def __init__(self, rubric: Rubric, discount: float = 0.99) -> None:
        super().__init__([rubric])
        self.discount = discount_of(discount)

    async def combine(self, ask: Ask, moment: Moment) -> float | None:
        """The part's value, discounted."""
        reward = await ask(next(iter(self.parts)))
        return None if reward is None else reward.value * self.discount ** (moment.step - 1)


def discount_of(value: float) -> float:
    """A discount.

    Raises:
        TypeError, ValueError: it is no number from 0 to 1.
    """
    discount = finite("discount", value)
    if not 0 <= discount <= 1:
        raise ValueError(f"discount is {discount:g}; it is from 0 to 1")
    return discount
