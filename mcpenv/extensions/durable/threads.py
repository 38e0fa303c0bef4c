"""Calls that block, in threads of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def answer_of(
    threads: ThreadPoolExecutor, work: Callable[[], T], timeout_s: float, abort: Callable[[], None] = lambda: None
) -> T:
    """Return the result of a call in a thread. What a cancelled caller has begun goes on.

    Args:
        abort: called if the call runs and has not ended in time. One that still waits for a thread is never made.

    Raises:
        TimeoutError: it has not ended in time.
    """
    begun = threads.submit(work)
    running = asyncio.wrap_future(begun)
    running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    done, _ = await asyncio.wait({running}, timeout=timeout_s)
    if not done:
        if not begun.cancel():
            abort()
        raise TimeoutError
    return running.result()
