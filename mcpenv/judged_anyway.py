"""Judged anyway: a call whose agent goes away is stopped while its tool runs, and judged once that has returned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

logger = logging.getLogger("mcpenv")

T = TypeVar("T")


async def judged_anyway(call: Callable[[Callable[[], None]], Coroutine[Any, Any, T]]) -> T:
    """The result of ``call``, which runs in a task of its own.

    Cancelling stops it, and is waited for, until it says that the tool has returned; from then on it goes on alone.

    Args:
        call: is given what it has to call then.
    """
    ran = False

    def on_ran() -> None:
        nonlocal ran
        ran = True

    task = asyncio.ensure_future(call(on_ran))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.done():
            raise
        if ran:
            task.add_done_callback(_retrieve)
            raise
        task.cancel()
        await asyncio.wait([task])
        raise


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more; the record has what came of it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.info("a call whose agent had gone ended with %s", type(error).__name__)
