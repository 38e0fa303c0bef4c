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

    __slots__ = ("_cancelling", "stopped")

    def __init__(self) -> None:
        self.stopped = False
        # How often each task had been cancelled before it began; None once it was stopped.
        self._cancelling: dict[asyncio.Task[object], int] = {}

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
        if not self.stopped:
            return
        # Whatever becomes of the cancellation here, it must not reach what the task does next.
        others = task.uncancel() > before
        if isinstance(error, asyncio.CancelledError) and not others:
            raise SessionLost("the session was closed") from None

    def stop(self) -> None:
        """Cancel what is under way, and let nothing more begin. From the loop that drives it all."""
        self.stopped = True
        for task in self._cancelling:
            task.cancel()
