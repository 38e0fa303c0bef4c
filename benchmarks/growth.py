"""The cost of a step with more sessions, all of which step at once, beside the floor's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from . import load
from .effort import Effort
from .load import WebSocketConnection, drive
from .pairs import middle
from .rows import CALLS, CPU, Rounds, Row, add_ratios, compare
from .serving import Server, together
from .sessions import SLOWER, STARTS, address, opened
from .steps import ASYNC, FLOOR, OPENENV, stepping

MANY, GROWING = "/ws step, sessions held at once", "/ws step, more sessions"

OPENENV_SESSIONS = 1_000
"""OpenEnv, which has a thread for each session, is measured with no more."""

A_SECOND = 4_000
"""Sessions for which a round is made a second longer, so that each has a few steps."""

Figures = dict[int, dict[str, float]]
"""By the number of sessions."""


def run(effort: Effort) -> list[Row]:
    """Measure each number of sessions of a side, on a server of its own, in alternation.

    Sides are measured one after the other, because a process has not sockets for two of the largest.
    """
    rows = {count: Row(MANY, f"{count:,} sessions") for count in effort.sessions}
    growing = {count: Row(GROWING, rows[count].load) for count in effort.sessions[1:]}
    for name, start in STARTS.items():
        counts = [count for count in effort.sessions if name != OPENENV or count <= OPENENV_SESSIONS]
        with ExitStack() as stack:
            servers = together(stack, {str(count): start() for count in counts})
            seen, slower = drive(_at_once(name, dict(zip(counts, servers.values(), strict=True)), effort))
        for count in counts:
            rows[count].sides[name] = seen[count]
        for count in counts[1:]:
            growing[count].sides[name] = slower[count]
    for row in rows.values():
        add_ratios(row, CALLS, CPU)
    return [*rows.values(), *growing.values()]


async def _at_once(name: str, servers: Mapping[int, Server], effort: Effort) -> tuple[Figures, Figures]:
    """Return the figures of sessions that all step as often as they can.

    The second are the ratios of a step's processor time to that with the fewest sessions, round by round.
    """
    held: dict[int, list[WebSocketConnection]] = {
        count: await opened(address(server, name), count, reset=name != FLOOR) for count, server in servers.items()
    }
    async with load.closing([socket for sockets in held.values() for socket in sockets]):
        mark = b"" if name == FLOOR else ASYNC.mark
        sides = {
            count: Rounds(stepping(server, held[count], ASYNC, mark), count / A_SECOND)
            for count, server in servers.items()
        }
        row = await compare(MANY, name, {str(count): side for count, side in sides.items()}, effort)
    fewest = next(iter(sides.values())).played[1:]  # without the round that is thrown away
    slower = {
        count: {SLOWER: middle([more.cpu_us / few.cpu_us for more, few in zip(side.played[1:], fewest, strict=True)])}
        for count, side in sides.items()
    }
    return {count: row.sides[str(count)] for count in sides}, slower
