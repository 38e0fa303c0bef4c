"""Run blocking requests without blocking the event loop, each in a separate daemon thread.

There are few requests, and creating an instance may take minutes. Daemon threads do not keep the interpreter from
exiting.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def started(function: Callable[[], T]) -> asyncio.Future[T]:
    """Start a function in a thread, and return the future of its result. Cancelling that does not stop it."""
    result: concurrent.futures.Future[T] = concurrent.futures.Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(function())
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            result.set_exception(error)

    threading.Thread(target=run, name="mcpenv-fleet", daemon=True).start()
    return asyncio.wrap_future(result)


__all__ = ["started"]
