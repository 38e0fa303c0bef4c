"""What is under way in an environment, so that it can be stopped when its session ends."""

from __future__ import annotations

import asyncio
from types import TracebackType

from mcpenv_client.errors import SessionLost


class UnderWay:
    """A context manager around each piece of work; one object for all of an environment's.

    Attributes:
        stopped: nothing more begins.
    """

    __slots__ = ("_cancelling", "_waiting", "stopped")

    def __init__(self) -> None:
        self.stopped = False
        # How often each task had been cancelled before it began; None once it was stopped.
        self._cancelling: dict[asyncio.Task[object], int] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        """How many pieces of work are under way."""
        return len(self._cancelling)

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._cancelling[task] = task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Tell whoever asked that the session is over, if that and nothing else cut the work short.

        Raises:
            SessionLost: `stop` was called.
        """
        task = asyncio.current_task()
        assert task is not None
        before = self._cancelling.pop(task)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                future.get_loop().call_soon_threadsafe(_wake, future)
        if not self.stopped:
            return
        # Whatever becomes of the cancellation here, it must not reach what the task does next.
        others = task.uncancel() > before
        if isinstance(error, asyncio.CancelledError) and not others:
            raise SessionLost("the session was closed") from None

    async def alone(self) -> None:
        """Return when nothing else is under way; nothing more may begin meanwhile."""
        while len(self._cancelling) > 1:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            if len(self._cancelling) > 1:
                await future

    def stop(self) -> None:
        """Cancel what is under way, and let nothing more begin. From the loop that drives it all."""
        self.stopped = True
        for task in self._cancelling:
            task.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
