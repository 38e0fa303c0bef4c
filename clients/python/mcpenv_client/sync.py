"""The blocking form of the clients: the same methods, delegated. One thread serves all of a process."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

    from .client import EnvClient
    from .records import StepResult, Trajectory
    from .snapshots import SnapshotRef
    from .tasks import Task
    from .tools import Tool

ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")
T = TypeVar("T")


class _Call(Generic[T]):
    """A coroutine that runs in one thread while another waits for its result."""

    __slots__ = ("_began", "_coroutine", "_done", "_error", "_result", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[None] | None = None
        self._began = False
        self._error: BaseException | None = None
        self._result: T
        # Half the price of a future, which brings a condition and a callback in another turn of the loop.
        self._done = threading.Lock()
        self._done.acquire()

    def wait(self) -> T:
        """In the caller's thread: its result. Ctrl-C interrupts it."""
        self._done.acquire()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None
        return self._result

    def start(self) -> None:
        """In the loop's thread: begin."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """In the loop's thread: nobody waits any more."""
        if self._task is not None:
            self._task.cancel()
        if not self._began:
            self._coroutine.close()

    async def _run(self) -> None:
        self._began = True
        try:
            self._result = await self._coroutine
        except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
            self._error = error
        finally:
            self._done.release()


class _Loop:
    """An event loop in a daemon thread, begun at the first use and shared by every sync client of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._of_parents: list[asyncio.AbstractEventLoop] = []

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. What interrupts the caller (Ctrl-C, say) cancels it.

        Raises:
            RuntimeError: called on the shared thread itself, which would wait for itself.
        """
        loop = self._loop or self._running()
        if threading.get_ident() == self._thread:
            coroutine.close()
            raise RuntimeError("a sync client was used inside a coroutine of its own loop; use the async client there")
        call = _Call(coroutine)
        try:
            # Ctrl-C may come at any point here; asyncio.run_coroutine_threadsafe would leave the call running if it
            # came before its future is in our hands.
            loop.call_soon_threadsafe(call.start)
            return call.wait()
        except BaseException:
            loop.call_soon_threadsafe(call.cancel)  # does nothing if it is the coroutine that raised
            raise

    def after_fork(self) -> None:
        """In a child process: the thread is gone, and the lock may have been held; begin anew at the next use."""
        self._lock = threading.Lock()
        if self._loop is not None:
            # Kept, because collecting it would close sockets that the parent still uses.
            self._of_parents.append(self._loop)
        self._loop = self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="mcpenv-client", daemon=True)
                thread.start()
                # Last, because `run` looks at it without the lock.
                self._thread, self._loop = thread.ident, loop
            return self._loop


_LOOP = _Loop()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_LOOP.after_fork)


class BlockingClient:
    """An async client with blocking methods; safe to use from any thread.

    Every method of the wrapped client, also those that a subclass adds, is here under its name.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        if name == "_client":  # not initialized: copy and pickle ask
            raise AttributeError(name)
        attribute = getattr(self._client, name)
        if not inspect.ismethod(attribute):
            return attribute

        @functools.wraps(attribute)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            result = attribute(*args, **kwargs)
            if not inspect.iscoroutine(result):
                return result
            given = _LOOP.run(result)
            return type(self)(given) if isinstance(given, type(self._client)) else given  # a fork blocks too

        self.__dict__[name] = blocking
        return blocking

    def __enter__(self) -> Self:
        _LOOP.run(self._client.connect())
        return self

    def __exit__(self, *exc: object) -> None:
        _LOOP.run(self._client.close())


class SyncEnvClient(BlockingClient, Generic[ObsT, StateT]):
    """`EnvClient` with blocking methods: what `EnvClient.sync` gives."""

    if TYPE_CHECKING:
        # ruff: noqa: D102 - the methods are `EnvClient`'s

        mcp_url: str | None

        def __init__(self, client: EnvClient[Any, ObsT, StateT]) -> None: ...
        def connect(self) -> None: ...
        def close(self) -> None: ...
        def reset(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            *,
            timeout_s: float | None = None,
            **options: Any,
        ) -> StepResult[ObsT]: ...
        def step(
            self, action: Any, *, timeout_s: float | None = None, request_id: str | None = None
        ) -> StepResult[ObsT]: ...
        def call_tool(
            self,
            name: str,
            arguments: dict[str, Any] | None = None,
            *,
            timeout_s: float | None = None,
            request_id: str | None = None,
        ) -> StepResult[ObsT]: ...
        def end(
            self, *, truncated: bool = False, reason: str | None = None, timeout_s: float | None = None
        ) -> StepResult[ObsT]: ...
        def wait(self, timeout_s: float | None = None) -> StepResult[ObsT]: ...
        def trajectory(self) -> Trajectory: ...
        def cancel(self, request_id: str) -> bool: ...
        def snapshot(self, *, timeout_s: float | None = None) -> SnapshotRef: ...
        def restore(self, snapshot: SnapshotRef | str, *, timeout_s: float | None = None) -> StepResult[ObsT]: ...
        def fork(self, snapshot: SnapshotRef | str | None = None, *, timeout_s: float | None = None) -> Self: ...
        def drop_snapshot(self, snapshot: SnapshotRef | str) -> bool: ...
        def list_tools(self) -> list[Tool]: ...
        def state(self) -> StateT: ...
        def splits(self) -> list[str]: ...
        def num_tasks(self, split: str) -> int: ...
        def task(self, split: str, index: int) -> Task: ...
        def tasks(self, split: str, start: int = 0, stop: int | None = None) -> list[Task]: ...
        def metadata(self) -> dict[str, Any]: ...
        def schema(self) -> dict[str, Any]: ...
