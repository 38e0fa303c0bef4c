"""Executors for blocking policies: the main thread, and threads that do not outlive the program."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class MainThread(Executor):
    """Runs calls in the thread that calls `run`. Some libraries of environments need the main thread."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Queue a call."""
        future: Future[T] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                    future.set_exception(error)

        self._calls.put(call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End `run` after the queued calls."""
        self._calls.put(None)

    def run(self) -> None:
        """Run calls until `shutdown`."""
        while (call := self._calls.get()) is not None:
            call()


class DaemonThreads(MainThread):
    """Runs calls in daemon threads: unlike `ThreadPoolExecutor`, the end of the program does not wait for them.

    Args:
        most: the maximum number of threads.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._threads: list[threading.Thread] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Queue a call, in one more thread until there are ``most``. Call it in one thread only."""
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self.run, name="mcpenv-pool", daemon=True)
            self._threads.append(thread)
            thread.start()
        return super().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End each thread after its call. Return at once."""
        for _ in self._threads:
            super().shutdown()
