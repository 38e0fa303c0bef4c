"""The places where an adapter's episodes are played: on a server, on many, or in this process."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from mcpenv_client.client import EnvClient
from mcpenv_client.errors import ConnectionFailed
from mcpenv_client.pool.backend import all_of
from mcpenv_client.pool.instances import Instances, Target, instances_of
from mcpenv_client.pool.pooled_session import PooledSession
from mcpenv_client.pool.servers import MANY, Listed, Servers
from mcpenv_client.pool.sessions import Session
from mcpenv_client.portal import PORTAL, Portal
from mcpenv_client.rows import Rows
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Tool

T = TypeVar("T")

Place = Target | Listed
"""An environment in this process, or servers."""

_HERE = Portal()
"""The event loop of environments in this process, so that their tools do not block the clients' loop."""


class Sessions:
    """Opens sessions of one environment. Any thread may use it, and it can be pickled.

    Args:
        target: the URL of a server (``http://``, ``https://``); many servers of one environment: a list, a mapping of
            URLs to weights, a file (``@PATH``) or a name (``dns+http://``), as `EnvPool` takes them; or an environment
            in this process: a TARGET of ``mcpenv run``, a class, a function that makes one. The latter need the
            package ``mcpenv``.
        settings: ``NAME=VALUE`` for each setting; only for a target that is a text.
        client: arguments of `EnvClient`; only for servers.

    Raises:
        ValueError: settings for servers, or client arguments for another target.
    """

    def __init__(self, target: Place, settings: Sequence[str] = (), client: Mapping[str, Any] | None = None) -> None:
        self.remote = not callable(target) and (
            not isinstance(target, str) or target.startswith(("http://", "https://", *MANY))
        )
        if self.remote and settings:
            raise ValueError(f"settings are for an environment in this process; {target} has its own")
        if client and not self.remote:
            raise ValueError("client has arguments of EnvClient, for the URL of a server; the target is none")
        self.target = target
        self._servers: Servers | None = None
        self._settings = tuple(settings)
        self._client = dict(client or {})
        self._instances: Instances | None = None
        self._class: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the parts to pickle: everything but loaded code."""
        return {**self.__dict__, "_instances": None, "_servers": None, "_class": None}

    def open(self) -> Session:
        """Return a new session.

        Raises:
            PoolError: the package ``mcpenv`` is missing, the target cannot be loaded, or no servers are listed.
            ConnectionFailed: there is no server.
            WireError: the server refused.
        """
        servers = self._many()
        if servers is not None:
            return PooledSession(servers)
        if self.remote:
            client = EnvClient(str(self.target), **self._client)
            self.run(client.connect)
            return client
        if self._instances is None:
            self._instances = instances_of(cast("Target", self.target), self._settings)
        return self._instances.session()

    def _many(self) -> Servers | None:
        """Return the servers, if the target is more than a URL."""
        single = isinstance(self.target, str) and self.target.startswith("http")
        if self.remote and not single and self._servers is None:
            self._servers = self.run(self._started)
        return self._servers

    async def _started(self) -> Servers:
        servers = Servers(cast("Listed", self.target), sys.maxsize, connect=lambda url: EnvClient(url, **self._client))
        await servers.start()
        return servers

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``await function()`` in the sessions' event loop, and return its result."""
        return (PORTAL if self.remote else _HERE).call(function)

    def run_all(self, calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Run calls concurrently, and return their results. If one raises, wait for the others first."""
        return self.run(lambda: all_of(calls))

    def close(self, session: Session) -> None:
        """End a session."""
        self.run(session.close)

    def listed(self, split: str | None, num_tasks: int | None) -> tuple[Sequence[dict[str, Any]], list[Tool]]:
        """Return the rows of a dataset, and the tools after the first row's reset. Other rows are read on use.

        Before a reset there may be no tools.

        Args:
            split: the split with the tasks for the rows; None: rows have seeds instead of tasks.
            num_tasks: the maximum of rows; the number of seeds without a split.

        Raises:
            ValueError: the split has no tasks, or there is neither a split nor a number of tasks.
            WireError, ConnectionFailed, PoolError: the environment cannot list its tools or tasks.
        """
        if split is None and num_tasks is None:
            raise ValueError("without a split, num_tasks says how many seeds there are; give one of them")
        session: Any = self.open()
        try:
            if split is None:
                rows: Sequence[dict[str, Any]] = [{"seed": seed} for seed in range(num_tasks or 0)]
            else:
                rows = Rows(range(self.num_tasks(split))[:num_tasks], functools.partial(self.tasks, split), split)
            if not rows:
                raise ValueError(f"the split {split!r} has no tasks" if split else "num_tasks must be 1 or more")
            row = {name: value for name, value in rows[0].items() if name in ("split", "index", "seed")}
            self.run(lambda: session.reset(**row))
            tools: list[Tool] = self.run(session.list_tools)
        finally:
            self.close(session)
        return rows, tools

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks in a split.

        Raises:
            InvalidMessage: the environment has no tasks, or no such split.
        """
        size: int = self._asked("num_tasks", split)
        return size

    def tasks(self, split: str, start: int, stop: int) -> list[Task]:
        """Return the tasks of a split from an index to another, exclusive. It needs no free session."""
        tasks: list[Task] = self._asked("get_tasks", split, start, stop)
        return tasks

    def _asked(self, method: str, *arguments: Any) -> Any:
        """Return the answer of the environment's class, or of a server that answers.

        Raises:
            WireError: the environment refused.
            ConnectionFailed: no server answers.
        """
        if self.remote:
            servers = self._many()
            urls = [str(self.target)] if servers is None else servers.urls
            return self.run(lambda: self._fetched(urls, method, arguments))
        if self._class is None:
            session: Any = self.open()
            self._class = type(session.env)
            self.close(session)
        return getattr(self._class, method)(*arguments)

    async def _fetched(self, urls: Sequence[str], method: str, arguments: tuple[Any, ...]) -> Any:
        for url in urls[:-1]:
            with contextlib.suppress(ConnectionFailed):  # the next one may answer
                return await getattr(EnvClient(url, **self._client), method)(*arguments)
        return await getattr(EnvClient(urls[-1], **self._client), method)(*arguments)
