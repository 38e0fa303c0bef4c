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

    Cancelling `result` cancels the call only if it can be stopped: it waits for the lock, or its tool is async. A call
    that cannot be stopped runs to its end in the background, and is scored and recorded once. Nothing that the client
    of one call does may change the world of others.

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
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise
            if self.stoppable:
                task.cancel()
                await asyncio.wait([task])
            else:
                logger.info("a client left during a call that cannot be stopped; the call runs to its end")
                _OUTLIVING.add(task)
                task.add_done_callback(_ended)
            raise


_OUTLIVING: set[asyncio.Task[Any]] = set()


def _ended(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, so that asyncio does not report it. The record has the step."""
    _OUTLIVING.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.info("a call whose client had left ended with %s", type(error).__name__)
