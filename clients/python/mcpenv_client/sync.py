"""The blocking form of `EnvClient`: the same methods, delegated. One thread serves all of a process."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from .client import EnvClient
    from .records import StepResult
    from .tools import Tool

ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")
T = TypeVar("T")


class _Loop:
    """An event loop in a daemon thread, begun at the first use and shared by every sync client of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid: int | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. Ctrl-C in the caller cancels it.

        Raises:
            RuntimeError: called on the shared thread itself, which would wait for itself.
        """
        loop = self._running()
        if threading.get_ident() == self._thread.ident:
            coroutine.close()
            raise RuntimeError("a sync client was used inside a coroutine of its own loop; use the async client there")
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                # After a fork the thread is gone; the child begins one of its own.
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._loop.run_forever, name="mcpenv-client", daemon=True)
                self._thread.start()
            return self._loop


_LOOP = _Loop()


class SyncEnvClient(Generic[ObsT, StateT]):
    """`EnvClient` with blocking methods; safe to use from any thread, one call at a time each.

    Every coroutine method of the wrapped client, also those a subclass adds, is here under its name.
    """

    def __init__(self, client: EnvClient[Any, ObsT, StateT]) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if not inspect.iscoroutinefunction(attribute):
            return attribute

        @functools.wraps(attribute)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            return _LOOP.run(attribute(*args, **kwargs))

        self.__dict__[name] = blocking
        return blocking

    def __enter__(self) -> SyncEnvClient[ObsT, StateT]:
        _LOOP.run(self._client.connect())
        return self

    def __exit__(self, *exc: object) -> None:
        _LOOP.run(self._client.close())

    if TYPE_CHECKING:

        def connect(self) -> None: ...
        def close(self) -> None: ...
        def reset(
            self, seed: int | None = None, episode_id: str | None = None, *, timeout_s: float | None = None, **options: Any
        ) -> StepResult[ObsT]: ...
        def step(self, action: Any, *, timeout_s: float | None = None) -> StepResult[ObsT]: ...
        def call_tool(
            self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
        ) -> StepResult[ObsT]: ...
        def list_tools(self) -> list[Tool]: ...
        def state(self) -> StateT: ...
        def metadata(self) -> dict[str, Any]: ...
        def schema(self) -> dict[str, Any]: ...
