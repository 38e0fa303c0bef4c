"""What is under way in an environment, so that it can be stopped when its session ends.

What only a piece of work needs that waits (the name of its task, a timer) is made when it first waits; most never do.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from mcpenv_client.errors import SessionLost

from .eager import go_on

if TYPE_CHECKING:
    from .deadline import Deadline

T = TypeVar("T")


class Piece:
    """A piece of work.

    Attributes:
        task: the task that it is in; None while it has not waited yet: until then it holds its thread, and nobody can
            stop it.
        before: how often that had been cancelled before.
        deadline: that of the part of it that is under way, to be armed when it waits.
    """

    # Of the class: a step is made for every call, and few of these are set.
    task: asyncio.Task[Any] | None = None
    before = 0
    deadline: Deadline | None = None

    def waits(self) -> None:
        """It waits for the first time."""
        task = asyncio.current_task()
        assert task is not None
        self.task, self.before = task, task.cancelling()
        if self.deadline is not None:
            self.deadline.arm(task)


class UnderWay:
    """The pieces of work that are under way; one object for all of an environment's.

    Attributes:
        stopped: nothing more begins.
    """

    __slots__ = ("_pieces", "_waiting", "stopped")

    def __init__(self) -> None:
        self.stopped = False
        self._pieces: list[Piece] = []
        self._waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        """How many pieces of work are under way."""
        return len(self._pieces)

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, T], piece: Piece | None = None) -> Generator[Any, Any, T]:
        """Await ``work``.

        Raises:
            SessionLost: `stop` was called, and that and nothing else cut it short.
        """
        if piece is None:
            piece = Piece()
        self._pieces.append(piece)
        try:
            awaited = work.send(None)
        except StopIteration as done:
            self._pieces.remove(piece)
            if self._waiting:
                self._wake()
            result: T = done.value
            return result
        except BaseException:
            self._ended(piece)
            raise
        try:
            piece.waits()
            if self.stopped and piece.task is not None:
                piece.task.cancel()
            result = yield from go_on(work, awaited)
        except BaseException as error:
            if self._ended(piece) and isinstance(error, asyncio.CancelledError):
                raise SessionLost("the session was closed") from None
            raise
        self._ended(piece)
        return result

    async def alone(self) -> None:
        """Return when nothing else is under way; nothing more may begin meanwhile."""
        while len(self._pieces) > 1:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            if len(self._pieces) > 1:
                await future

    def stop(self) -> None:
        """Cancel what is under way, and let nothing more begin. From the loop that drives it all."""
        self.stopped = True
        for piece in self._pieces:
            if piece.task is not None:
                piece.task.cancel()

    def _ended(self, piece: Piece) -> bool:
        """It is under way no more; whether `stop`, and nobody else, cancelled it."""
        self._pieces.remove(piece)
        if self._waiting:
            self._wake()
        if not self.stopped or piece.task is None:
            return False
        # Whatever becomes of the cancellation here, it must not reach what the task does next.
        return piece.task.uncancel() <= piece.before

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.get_loop().call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
