"""The places where an adapter's episodes are played: on a server, on many, or in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from mcpenv_client.client import EnvClient
from mcpenv_client.pool.backend import all_of
from mcpenv_client.pool.instances import Instances, Target, instances_of
from mcpenv_client.pool.pooled_session import PooledSession
from mcpenv_client.pool.servers import MANY, Listed, Servers
from mcpenv_client.pool.sessions import Session
from mcpenv_client.portal import PORTAL, Portal
from mcpenv_client.rows import rows_of
from mcpenv_client.types.tools import Tool

T = TypeVar("T")

Place = Target | Listed
"""An environment in this process, or servers."""

_HERE = Portal()
"""The event loop of environments in this process, so that their tools do not block the clients' loop."""
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_HERE.after_fork)


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

    def __getstate__(self) -> dict[str, Any]:
        """Return the parts to pickle: everything but loaded code."""
        return {**self.__dict__, "_instances": None, "_servers": None}

    def open(self) -> Session:
        """Return a new session.

        Raises:
            PoolError: the package ``mcpenv`` is missing, the target cannot be loaded, or no servers are listed.
            ConnectionFailed: there is no server.
            WireError: the server refused.
        """
        if self.remote and not (isinstance(self.target, str) and self.target.startswith("http")):
            if self._servers is None:
                self._servers = self.run(self._started)
            return PooledSession(self._servers)
        if self.remote:
            client = EnvClient(str(self.target), **self._client)
            self.run(client.connect)
            return client
        if self._instances is None:
            self._instances = instances_of(cast("Target", self.target), self._settings)
        return self._instances.session()

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

    def listed(self, split: str | None, num_tasks: int | None) -> tuple[list[dict[str, Any]], list[Tool]]:
        """Return the rows of a dataset, and the tools after the first row's reset.

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
                rows: list[dict[str, Any]] = [{"seed": seed} for seed in range(num_tasks or 0)]
            else:
                size = self.num_tasks(session, split)
                rows = self._rows(session, split, size if num_tasks is None else min(num_tasks, size))
            if not rows:
                raise ValueError(f"the split {split!r} has no tasks" if split else "num_tasks must be 1 or more")
            row = {name: value for name, value in rows[0].items() if name in ("split", "index", "seed")}
            self.run(lambda: session.reset(**row))
            tools: list[Tool] = self.run(session.list_tools)
        finally:
            self.close(session)
        return rows, tools

    def num_tasks(self, session: Any, split: str) -> int:
        """Return the number of tasks in a split.

        Raises:
            InvalidMessage: the environment has no tasks, or no such split.
        """
        size: int = self.run(lambda: session.num_tasks(split)) if self.remote else session.env.num_tasks(split)
        return size

    def _rows(self, session: Any, split: str, stop: int) -> list[dict[str, Any]]:
        if self.remote:
            return rows_of(self.run(lambda: session.get_tasks(split, 0, stop)))
        return rows_of(session.env.get_tasks(split, 0, stop))
