"""A scripted agent with a dial for mistakes, which measures how difficult tasks are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from mcpenv import Task


def demonstration(
    task: Task, mistakes: float, seed: int, looks: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the calls of an agent that knows the solution and makes mistakes.

    A mistake in a call that changes something is to leave it out, to take the neighbour of the right row, or to write
    another text. A mistake in a call that looks something up leads to nothing but the call.

    Args:
        task: a task with an oracle.
        mistakes: the probability of a mistake in each call, from 0 to 1.
        seed: another seed makes other mistakes.
        looks: how the names of tools begin that change nothing.
    """
    rng = random.Random(seed)
    for call in task.oracle or ():
        wrong = rng.random() < mistakes
        if not wrong or call.tool_name.startswith(looks):
            yield call.tool_name, call.arguments
        elif (spoilt := _spoilt(rng, call.arguments)) is not None:
            yield call.tool_name, spoilt


def _spoilt(rng: random.Random, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Return arguments of which one is wrong; None for no call at all."""
    name = rng.choice([None, *(name for name in arguments if name != "part")])
    if name is None:
        return None
    value = arguments[name]
    if isinstance(value, bool):
        return {**arguments, name: not value}
    if isinstance(value, int | float):
        return {**arguments, name: value + 1}
    return {**arguments, name: f"{value}x" if isinstance(value, str) else [*value, 1]}
