"""What is under way in an environment, so that it can be stopped when its session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from mcpenv_client.errors import SessionLost

from .eager import eager

T = TypeVar("T")


class UnderWay:
    """The pieces of work that are under way; one object for all of an environment's.

    Attributes:
        stopped: nothing more begins.
    """

    __slots__ = ("_waiting", "_works", "stopped")

    def __init__(self) -> None:
        self.stopped = False
        # Which task each is in, and how often that had been cancelled before; None while it has not waited yet: until
        # then it holds its thread, and nobody can stop it.
        self._works: dict[object, tuple[asyncio.Task[object], int] | None] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        """How many pieces of work are under way."""
        return len(self._works)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a piece of work.

        Raises:
            SessionLost: `stop` was called, and that and nothing else cut it short.
        """
        self._works[work] = None
        try:
            result = await eager(work, lambda: self._waits(work))
        except BaseException as error:
            if self._ended(work) and isinstance(error, asyncio.CancelledError):
                raise SessionLost("the session was closed") from None
            raise
        self._ended(work)
        return result

    async def alone(self) -> None:
        """Return when nothing else is under way; nothing more may begin meanwhile."""
        while len(self._works) > 1:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            if len(self._works) > 1:
                await future

    def stop(self) -> None:
        """Cancel what is under way, and let nothing more begin. From the loop that drives it all."""
        self.stopped = True
        for begun in self._works.values():
            if begun is not None:
                begun[0].cancel()

    def _waits(self, work: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._works[work] = task, task.cancelling()
        if self.stopped:
            task.cancel()

    def _ended(self, work: object) -> bool:
        """It is under way no more; whether `stop`, and nobody else, cancelled it."""
        begun = self._works.pop(work)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                future.get_loop().call_soon_threadsafe(_wake, future)
        if begun is None or not self.stopped:
            return False
        # Whatever becomes of the cancellation here, it must not reach what the task does next.
        task, before = begun
        return task.uncancel() <= before


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
