"""The groups of a play: each as soon as its episodes are done, or without those that take too long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from .assignment import Played
from .clock import Clock
from .stream import Episodes

logger = logging.getLogger("mcpenv")


@dataclass
class _Group:
    """The episodes of a group that are done, and the time when the others are no longer waited for."""

    deadline: float
    played: list[Played] = field(default_factory=list)


async def groups_of(
    stream: Episodes, size: int, timeout_s: float | None, clock: Clock
) -> AsyncGenerator[list[Played], None]:
    """Yield the episodes of each group, in the order of their numbers.

    Args:
        stream: the episodes, of one world or of several.
        size: the number of episodes in a group.
        timeout_s: the seconds after the end of a group's first episode, after which the group is yielded without the
            others. They play on to their own limits, and what they return is dropped. None: all are waited for.
        clock: the clock of those seconds.
    """
    groups: dict[int, _Group] = {}
    cut: dict[int, int] = {}  # the groups that were yielded early, with the number of episodes that are still to come
    coming: asyncio.Future[Played] | None = None
    try:
        while True:
            if coming is None:
                coming = asyncio.ensure_future(anext(stream))
            first = min((group.deadline for group in groups.values()), default=float("inf"))
            await clock.wait_until(first, coming)
            if not coming.done():
                for number in [number for number, group in groups.items() if group.deadline <= clock.now()]:
                    played = groups.pop(number).played
                    cut[number] = size - len(played)
                    logger.warning("pool: group %d goes on without %d of its episodes", number, cut[number])
                    yield _in_order(played)
                continue
            taken, coming = coming, None
            try:
                each = taken.result()
            except StopAsyncIteration:
                break
            number = each.assignment.group
            if number in cut:
                cut[number] -= 1
                if not cut[number]:
                    del cut[number]
                continue
            if number not in groups:
                groups[number] = _Group(float("inf") if timeout_s is None else clock.now() + timeout_s)
            groups[number].played.append(each)
            if len(groups[number].played) == size:
                yield _in_order(groups.pop(number).played)
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait({coming})
        await stream.aclose()


def _in_order(played: list[Played]) -> list[Played]:
    return sorted(played, key=lambda each: each.assignment.sample)
