"""Run all connections of this process on one event loop, in a daemon thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

STARTS_AT_ONCE = max(4, 2 * (os.cpu_count() or 1))
"""Maximum processes of servers that start at the same time.

With more, each start would slow down the others and exceed its timeout.
"""

CANCELLED_WITHIN_S = 10.0
"""Seconds that a cancelled coroutine has to end before its caller goes on."""


class BackgroundLoop:
    """An event loop in a thread of its own. The thread starts with the first coroutine.

    Connections outlive the loop of any caller: a script's, a test's, a server's. Threads may share it. A forked child
    process gets a new loop.

    Attributes:
        starts: the semaphore of processes that start. For coroutines on this loop.
    """

    starts: asyncio.Semaphore

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine, and return the future of its result. Cancelling the future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running())

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and await its result on the caller's loop.

        Cancelling cancels the coroutine and waits up to `CANCELLED_WITHIN_S` for its end, so that what it releases is
        released, such as a container that was being started.
        """
        tasks: list[asyncio.Task[T]] = []
        cancelled = False

        async def watched() -> asyncio.Task[T]:
            tasks.append(asyncio.ensure_future(coroutine))
            if cancelled:
                tasks[0].cancel()
            await asyncio.wait(tasks)
            if not tasks[0].cancelled():
                tasks[0].exception()  # asyncio does not report it, also if nobody awaits the result
            return tasks[0]

        running = asyncio.wrap_future(self.submit(watched()))
        try:
            return (await asyncio.shield(running)).result()
        except asyncio.CancelledError:
            if not running.done():
                cancelled = True
                assert self._loop is not None
                self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
                await asyncio.wait([running], timeout=CANCELLED_WITHIN_S)
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._mutex:
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.SelectorEventLoop(), os.getpid()
                self.starts = asyncio.Semaphore(STARTS_AT_ONCE)
                threading.Thread(target=self._loop.run_forever, name="mcpenv-upstreams", daemon=True).start()
            return self._loop


UPSTREAMS = BackgroundLoop()
"""The loop of all upstream connections."""
