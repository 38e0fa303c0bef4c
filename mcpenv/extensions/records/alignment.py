"""The alignment of two episodes by their calls, so that an extra step is one difference."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import inf
from typing import Any

from mcpenv.trajectories.episode import OBSERVATIONS, RecordedEpisode
from mcpenv_client.fingerprint import digest, facts_of_step

MAX_PAIRS = 250_000
"""Maximum pairs of steps that are compared. In longer episodes, steps between equal ends are paired by number."""

ALONE = "only one episode has this step"

Fact = tuple[str, str, str]
"""The tool of a step, and hashes of its call and of its outcome."""


def aligned(one: RecordedEpisode, other: RecordedEpisode) -> list[tuple[int | None, int | None, str | None]]:
    """Return the pairs of steps of two episodes, in order.

    Returns:
        The index of each step, None if that episode has no such step, and their difference in words; None if call and
        outcome are equal. The pairs differ as little as possible: an extra step counts 1, another outcome of the same
        call 1, other arguments of the same tool 1.5. Steps of different tools are never paired.
    """
    left, right = _facts_of(one), _facts_of(other)
    head = 0
    while head < min(len(left), len(right)) and left[head] == right[head]:
        head += 1
    tail = 0
    while tail < min(len(left), len(right)) - head and left[-1 - tail] == right[-1 - tail]:
        tail += 1
    middle = _paired(left[head : len(left) - tail], right[head : len(right) - tail])
    pairs: list[tuple[int | None, int | None]] = [(at, at) for at in range(head)]
    pairs += [(None if a is None else head + a, None if b is None else head + b) for a, b in middle]
    pairs += [(len(left) - by, len(right) - by) for by in range(tail, 0, -1)]
    return [(a, b, ALONE if a is None or b is None else _difference(left[a], right[b])) for a, b in pairs]


def _paired(left: Sequence[Fact], right: Sequence[Fact]) -> list[tuple[int | None, int | None]]:
    rows, columns = len(left), len(right)
    if rows * columns > MAX_PAIRS:
        longest = max(rows, columns)
        return [(at if at < rows else None, at if at < columns else None) for at in range(longest)]
    # The least cost of what follows each pair (Needleman and Wunsch, 1970), from the end on.
    costs = [array("d", [0.0]) * (columns + 1) for _ in range(rows + 1)]
    for a in range(rows, -1, -1):
        for b in range(columns, -1, -1):
            if a < rows or b < columns:
                costs[a][b] = min(
                    _cost(left[a], right[b]) + costs[a + 1][b + 1] if a < rows and b < columns else inf,
                    1 + costs[a + 1][b] if a < rows else inf,
                    1 + costs[a][b + 1] if b < columns else inf,
                )
    pairs: list[tuple[int | None, int | None]] = []
    a = b = 0
    while a < rows or b < columns:
        if a < rows and b < columns and costs[a][b] == _cost(left[a], right[b]) + costs[a + 1][b + 1]:
            pairs.append((a, b))
            a, b = a + 1, b + 1
        elif a < rows and costs[a][b] == 1 + costs[a + 1][b]:
            pairs.append((a, None))
            a += 1
        else:
            pairs.append((None, b))
            b += 1
    return pairs


def _cost(one: Fact, other: Fact) -> float:
    if one[1] == other[1]:
        return float(one[2] != other[2])
    return 1.5 if one[0] == other[0] else inf


def _difference(one: Fact, other: Fact) -> str | None:
    called, found = one[1] != other[1], one[2] != other[2]
    if called:
        return "call and outcome differ" if found else "the call differs"
    return "the outcome differs" if found else None


def _facts_of(episode: RecordedEpisode) -> list[Fact]:
    observations: dict[str, Any] = episode.extra.get(OBSERVATIONS, {})
    return [
        (
            step.call.name,
            digest({"name": step.call.name, "arguments": step.call.arguments}),
            digest(facts_of_step(step, observations.get(str(step.call.step)))),
        )
        for step in episode.trajectory.steps
    ]
