"""The calls of agents, which may outlive their clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

logger = logging.getLogger("mcpenv")

T = TypeVar("T")


class AgentCall:
    """The call of an agent, in a task of its own that may outlive its client.

    Cancelling `result` cancels a call that waits for the lock or runs an async tool. Any other call cannot be stopped:
    it runs to its end in the background, and is scored and recorded once. So a client that disconnects cannot leave
    the world of other clients half changed.

    Attributes:
        stoppable: False while sync code runs in a thread, and after the tool has returned.
    """

    __slots__ = ("_task", "stoppable")

    def __init__(self) -> None:
        self.stoppable = True

    async def result(self, call: Coroutine[Any, Any, T]) -> T:
        """Run ``call`` and return its result."""
        task = asyncio.ensure_future(call)
        try:
            # Shielded: the cancellation of this coroutine must not reach a call that cannot be stopped.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise
            if self.stoppable:
                task.cancel()
                # Until it has released the lock and its step is recorded. `wait` does not raise its exception.
                await asyncio.wait([task])
            else:
                logger.info("a client left during a call that cannot be stopped; the call runs to its end")
                _OUTLIVING.add(task)
                task.add_done_callback(_ended)
            raise


_OUTLIVING: set[asyncio.Task[Any]] = set()
"""The calls that have outlived their clients. A loop refers to its tasks only weakly."""


def _ended(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, so that asyncio does not report it. The record contains the step."""
    _OUTLIVING.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.info("a call whose client had left ended with %s", type(error).__name__)
