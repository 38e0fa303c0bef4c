"""The blocking form of the clients: the same methods, delegated."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .portal import PORTAL

if TYPE_CHECKING:
    from typing_extensions import Self

    from .client import EnvClient
    from .rows import Rows
    from .types.records import StepResult, Trajectory
    from .types.server import ServerCapacityStatus, SessionInfo
    from .types.snapshots import SnapshotRef
    from .types.starts import Recorded, Start
    from .types.tasks import Task
    from .types.tools import Tool

ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")


class BlockingClient:
    """An async client with blocking methods. Any thread may call, even if an event loop runs in it.

    Every method of the wrapped client, including a subclass's own, is available under its name. Its coroutines run in
    the event loop that the blocking clients of a process share. Ctrl-C, and any other exception from a signal handler,
    cancels the call that it interrupts.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        if name == "_client":  # not initialized: copy and pickle ask
            raise AttributeError(name)
        attribute = getattr(self._client, name)
        if not inspect.ismethod(attribute):
            return attribute
        mine, its = type(self), type(self._client)

        # The function does not refer to this object, so that the client is freed with its last user.
        @functools.wraps(attribute)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            make = functools.partial(attribute, *args, **kwargs)
            if not inspect.iscoroutinefunction(attribute):
                made = make()
                if not inspect.iscoroutine(made):
                    return made
                make = functools.partial(lambda coroutine: coroutine, made)
            result = PORTAL.call(make)
            return mine(result) if isinstance(result, its) else result  # a fork blocks too

        self.__dict__[name] = blocking
        return blocking

    def close(self) -> None:
        """End the session and close the socket; a running call raises `SessionLost`. Safe to call twice.

        It returns at once if it cannot wait: in a finalizer that runs in the event loop's thread, or at the
        interpreter's shutdown.
        """
        if sys.is_finalizing():
            return  # the system closes the socket
        if PORTAL.is_current_thread:
            PORTAL.start(self._client.close)
        else:
            PORTAL.call(self._client.close)

    def __enter__(self) -> Self:
        PORTAL.call(self._client.connect)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SyncEnvClient(BlockingClient, Generic[ObsT, StateT]):
    """`EnvClient` with blocking methods: the result of `EnvClient.sync`."""

    def __init__(self, client: EnvClient[Any, ObsT, StateT]) -> None:
        super().__init__(client)

    if TYPE_CHECKING:
        # ruff: noqa: D102 - the methods are `EnvClient`'s

        mcp_url: str | None

        def connect(self) -> None: ...
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
        def branch(
            self, record: Trajectory | Recorded | Start | str, step: int, *, timeout_s: float | None = None
        ) -> StepResult[ObsT]: ...
        def drop_snapshot(self, snapshot: SnapshotRef | str) -> bool: ...
        def list_tools(self) -> list[Tool]: ...
        def state(self) -> StateT: ...
        def splits(self) -> list[str]: ...
        def num_tasks(self, split: str) -> int: ...
        def get_task(self, split: str, index: int) -> Task: ...
        def get_tasks(self, split: str, start: int = 0, stop: int | None = None) -> list[Task]: ...
        def rows(self, split: str) -> Rows: ...
        def metadata(self) -> dict[str, Any]: ...
        def schema(self) -> dict[str, Any]: ...
        def sessions(self) -> list[SessionInfo]: ...
        def capacity(self) -> ServerCapacityStatus: ...
