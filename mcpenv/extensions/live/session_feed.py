"""The feed of the list of sessions: one sample a moment, whose changes go to everybody who watches the list."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import PING, PING_S, event
from mcpenv.server.control.session_routes import info_of
from mcpenv_client.errors import SessionLost
from mcpenv_client.types.server import SessionInfo

from .session_events import Position

INTERVAL_S = 0.5
"""Seconds between two samples. Steps in between are one change, however many they are."""

SHARE = 0.05
"""Maximum share of the event loop's time that samples take. A server of many sessions takes them less often."""

LINGER_S = 15.0
"""Seconds for which samples go on when the last watcher has left, so that one that reconnects can resume."""

MAX_CHANGES = 64
"""Maximum changes that are kept for watchers that are behind. One that is further behind begins anew."""

CHUNK = 100
"""Maximum sessions that are described without returning to the event loop, where the steps run."""


class SessionFeed:
    """The changes of the list of all sessions of the server. Without watchers nothing is sampled.

    Steps know nothing of it, and it waits for none of its watchers.
    """

    def __init__(self, server: EnvServer, *, linger_s: float = LINGER_S) -> None:
        self._server = server
        self._linger_s = linger_s
        self._watchers: set[asyncio.Event] = set()
        self._sampling: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self._rows: dict[str, SessionInfo] = {}
        self._changes: deque[bytes] = deque(maxlen=MAX_CHANGES)
        self._epoch = ""
        self._number = 0
        self._left_at = 0.0
        self._closed = False

    @property
    def sampling(self) -> bool:
        """True while samples are taken."""
        return self._sampling is not None

    def close(self) -> None:
        """End the streams, because the server ends."""
        self._closed = True
        if self._sampling is not None:
            self._sampling.cancel()
        self._wake()

    async def events(self, last: Position | None) -> AsyncGenerator[bytes, None]:
        """Yield ``sessions``, the list, and ``changed`` for each change of it, until the server ends.

        Args:
            last: the last event that the watcher has seen, after which it continues if that is known.
        """
        news = asyncio.Event()
        self._watchers.add(news)
        seen = None if last is None else (last.episode, last.step)
        try:
            while not self._closed:
                await self._begin()
                news.clear()
                now = (self._epoch, self._number)
                if seen != now:
                    yield self._changes_after(seen) or await self._list()
                    seen = now
                    continue
                try:
                    async with asyncio.timeout(PING_S):
                        await news.wait()
                except TimeoutError:
                    yield PING
            yield event("closed", None, {})
        finally:
            self._watchers.discard(news)
            self._left_at = time.monotonic()

    def _changes_after(self, seen: tuple[str, int] | None) -> bytes:
        """Return the changes that a watcher has not seen; none if they are not all kept."""
        if seen is None or seen[0] != self._epoch or not 0 <= self._number - seen[1] <= len(self._changes):
            return b""
        return b"".join(list(self._changes)[len(self._changes) - (self._number - seen[1]) :])

    async def _list(self) -> bytes:
        name = self._id
        return event("sessions", name, {"sessions": await _plain(list(self._rows.values()))})

    async def _begin(self) -> None:
        async with self._beginning:
            if self._sampling is None and not self._closed:
                self._rows = await self._sample()
                self._epoch, self._number = secrets.token_hex(4), 0
                self._changes.clear()
                self._sampling = asyncio.create_task(self._sample_on())

    async def _sample_on(self) -> None:
        try:
            spent_s = 0.0
            while self._watchers or time.monotonic() < self._left_at + self._linger_s:
                await asyncio.sleep(max(INTERVAL_S, spent_s / SHARE))
                began = time.monotonic()
                await self._take(await self._sample())
                spent_s = time.monotonic() - began
        except SessionLost:
            self._closed = True  # the hub of the workers has ended
        finally:
            self._sampling = None
            self._rows = {}
            self._changes.clear()
            self._wake()

    async def _take(self, rows: dict[str, SessionInfo]) -> None:
        changed = await _plain([row for session_id, row in rows.items() if self._rows.get(session_id) != row])
        gone = [session_id for session_id in self._rows if session_id not in rows]
        self._rows = rows
        if changed or gone:
            self._number += 1
            self._changes.append(event("changed", self._id, {"sessions": changed, "gone": gone}))
            self._wake()

    async def _sample(self) -> dict[str, SessionInfo]:
        own = []
        for number, session in enumerate(self._server.pool.sessions(), 1):
            own.append(info_of(session))
            if number % CHUNK == 0:
                await asyncio.sleep(0)
        rows, partial = await self._server.membership.sessions(own)
        # Sessions of a worker that does not answer are not gone.
        return {**(self._rows if partial else {}), **{row.session_id: row for row in rows}}

    @property
    def _id(self) -> str:
        return f"{self._epoch}.{self._number}"

    def _wake(self) -> None:
        for news in self._watchers:
            news.set()


async def _plain(rows: list[SessionInfo]) -> list[dict[str, Any]]:
    plain = []
    for number, row in enumerate(rows, 1):
        plain.append(row.to_plain())
        if number % CHUNK == 0:
            await asyncio.sleep(0)
    return plain
