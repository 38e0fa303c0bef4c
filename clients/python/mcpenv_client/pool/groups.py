"""The groups of a play: each as soon as its episodes are done, or without those that take too long."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from .assignment import Assignment, Played, PlayError
from .clock import Clock
from .stream import Stream

logger = logging.getLogger("mcpenv")


@dataclass
class _Group:
    """The episodes of a group that are done, and the time when the others are no longer waited for."""

    deadline: float
    played: list[Played] = field(default_factory=list)


async def groups_of(
    stream: Stream[Played],
    size: int,
    rests: Mapping[int, int],
    timeout_s: float | None,
    clock: Clock,
    unfinished: list[Assignment],
) -> AsyncGenerator[list[Played], None]:
    """Yield the episodes of each group, in the order of their numbers.

    Args:
        stream: the episodes, of one world or of several.
        size: the number of episodes in a group.
        rests: the numbers of episodes in the groups of which a part was yielded by an earlier play.
        timeout_s: the seconds after the end of a group's first episode, after which the group is yielded without the
            others. They play on to their own limits, and what they return is dropped. None: all are waited for.
        clock: the clock of those seconds.
        unfinished: gets the episodes of the groups that were not yielded.

    Raises:
        PlayError: as `stream`; ``finished`` has the episodes of the groups that were not whole.
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
                    cut[number] = rests.get(number, size) - len(played)
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
            if len(groups[number].played) == rests.get(number, size):
                yield _in_order(groups.pop(number).played)
    except PlayError as error:
        error.finished = [each for group in groups.values() for each in _in_order(group.played)]
        raise
    finally:
        done = [each for group in groups.values() for each in group.played]
        if coming is not None:
            coming.cancel()
            await asyncio.wait({coming})
            if not coming.cancelled() and coming.exception() is None:
                done.append(coming.result())
        await stream.aclose()
        left = itertools.chain((each.assignment for each in done), stream.unfinished)
        unfinished += [each for each in left if each.group not in cut]


def _in_order(played: list[Played]) -> list[Played]:
    return sorted(played, key=lambda each: each.assignment.sample)
