"""The watchers of a session, who follow its episodes from the console."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MAX_ENCODED = 256
"""Maximum encoded steps that are kept for further watchers of one session."""


class Live:
    """The watchers of one session. All methods belong to the event loop of the session.

    A step wakes them, and never waits: each reads the steps of the trajectory at its own pace.

    Attributes:
        watched: True while there are watchers.
        closed: True once nothing more will happen.
    """

    __slots__ = ("_encoded", "_wakers", "closed", "watched")

    def __init__(self) -> None:
        self._wakers: set[asyncio.Event] | None = None
        self._encoded: dict[tuple[str, int], bytes] = {}
        self.watched = False
        self.closed = False

    def tell(self) -> None:
        """Wake the watchers: there is something new."""
        for waker in self._wakers or ():
            waker.set()

    def close(self) -> None:
        """Tell the watchers that nothing more will happen."""
        self.closed = True
        self.tell()

    @contextmanager
    def watching(self) -> Iterator[asyncio.Event]:
        """Watch: yield the event that is set when there is something new. The watcher clears it before it looks."""
        waker = asyncio.Event()
        if self._wakers is None:
            self._wakers = set()
        self._wakers.add(waker)
        self.watched = True
        try:
            yield waker
        finally:
            self._wakers.discard(waker)
            if not self._wakers:
                self._wakers, self.watched = None, False
                self._encoded.clear()

    def encoded(self, episode: str, position: int, make: Callable[[], bytes]) -> bytes:
        """Return the encoded step of an episode, which is encoded once for all watchers.

        Args:
            make: encodes it.
        """
        found = self._encoded.get((episode, position))
        if found is None:
            found = self._encoded[episode, position] = make()
            if len(self._encoded) > MAX_ENCODED:
                del self._encoded[next(iter(self._encoded))]
        return found
