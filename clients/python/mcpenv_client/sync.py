"""The blocking form of the clients: the same methods, delegated."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import porters
from .shared_loop import SHARED_LOOP

if TYPE_CHECKING:
    from typing_extensions import Self

    from .client import EnvClient
    from .records import StepResult, Trajectory
    from .snapshots import SnapshotRef
    from .tasks import Task
    from .tools import Tool

Run = Callable[[Coroutine[Any, Any, Any]], Any]
ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")
T = TypeVar("T")


class BlockingClient:
    """An async client with blocking methods; safe to use from any thread.

    Every method of the wrapped client, also those that a subclass adds, is here under its name.
    """

    def __init__(self, client: Any, run: Run = SHARED_LOOP.run) -> None:
        self._client = client
        self._run = run

    def __getattr__(self, name: str) -> Any:
        if name == "_client":  # not initialized: copy and pickle ask
            raise AttributeError(name)
        attribute = getattr(self._client, name)
        if not inspect.ismethod(attribute):
            return attribute

        # The function does not hold this object, which is freed, its socket with it, when nobody has it any more.
        run, mine, its = self._run, type(self), type(self._client)

        @functools.wraps(attribute)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            result = attribute(*args, **kwargs)
            if not inspect.iscoroutine(result):
                return result
            given = run(result)
            return mine(given) if isinstance(given, its) else given  # a fork blocks too

        self.__dict__[name] = blocking
        return blocking

    def __enter__(self) -> Self:
        self._run(self._client.connect())
        return self

    def __exit__(self, *exc: object) -> None:
        self._run(self._client.close())


class SyncEnvClient(BlockingClient, Generic[ObsT, StateT]):
    """`EnvClient` with blocking methods: what `EnvClient.sync` gives.

    The thread that calls sends, waits for the reply and reads it. Handlers of signals run while it waits, or when the
    call is over. Only a client whose class has methods of its own, which may use asyncio, is served by the event loop
    that the sync clients of a process share.
    """

    def __init__(self, client: EnvClient[Any, ObsT, StateT]) -> None:
        self._waits_here = not _has_ways_of_its_own(type(client))
        if self._waits_here:
            super().__init__(client._in_thread(), porters.run)
        else:
            super().__init__(client)
        self._original = client  # which may own what its subclass has made

    if TYPE_CHECKING:
        # ruff: noqa: D102 - the methods are `EnvClient`'s

        mcp_url: str | None

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


_KNOWN = ("__init__", "_step_payload", "_parse_result", "_parse_state")
"""What a typed client overrides; none of it waits."""


def _has_ways_of_its_own(cls: type[Any]) -> bool:
    """Whether a class of clients has methods that this package does not know, so that they may wait for anything."""
    ours = __name__.partition(".")[0]
    for base in cls.__mro__:
        if base in (object, Generic) or base.__module__.partition(".")[0] == ours:
            continue
        for name, attribute in vars(base).items():
            if inspect.isroutine(attribute) and (name not in _KNOWN or inspect.iscoroutinefunction(attribute)):
                return True
    return False
