"""Where an adapter's episodes are played: on a server, or in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from mcpenv_client.client import EnvClient
from mcpenv_client.pool.episode import Session
from mcpenv_client.pool.instances import Instances, Target, instances_of
from mcpenv_client.portal import PORTAL, Portal
from mcpenv_client.rows import rows_of

T = TypeVar("T")

_HERE = Portal()
"""The event loop of environments in this process: their tools do not block the one of clients."""
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_HERE.after_fork)


class Sessions:
    """Opens sessions of one environment. Any thread may use it, and it can be pickled.

    Args:
        target: the URL of a server (``http://``, ``https://``), or an environment in this process: a TARGET of
            ``mcpenv run``, a class, a function that makes one. The latter need the package ``mcpenv``.
        settings: ``NAME=VALUE`` for each setting; only for a target that is a text.
        client: arguments of `EnvClient`; only for a URL.

    Raises:
        ValueError: settings for a URL, or client arguments for another target.
    """

    def __init__(self, target: Target, settings: Sequence[str] = (), client: Mapping[str, Any] | None = None) -> None:
        self.remote = isinstance(target, str) and target.startswith(("http://", "https://"))
        if self.remote and settings:
            raise ValueError(f"settings are for an environment in this process; {target} has its own")
        if client and not self.remote:
            raise ValueError("client has arguments of EnvClient, for the URL of a server; the target is none")
        self.target = target
        self._settings = tuple(settings)
        self._client = dict(client or {})
        self._instances: Instances | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: everything but loaded code."""
        return {**self.__dict__, "_instances": None}

    def open(self) -> Session:
        """Return a new session.

        Raises:
            PoolError: the package ``mcpenv`` is missing, or the target cannot be loaded.
            ConnectionFailed: there is no server.
            WireError: the server refused.
        """
        if self.remote:
            client = EnvClient(str(self.target), **self._client)
            self.run(client.connect)
            return client
        if self._instances is None:
            self._instances = instances_of(self.target, self._settings)
        return self._instances.session()

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``await function()`` where the sessions live, and return its result."""
        return (PORTAL if self.remote else _HERE).call(function)

    def close(self, session: Session) -> None:
        """End a session."""
        self.run(session.close)

    def num_tasks(self, session: Any, split: str) -> int:
        """Return the number of tasks in a split.

        Raises:
            InvalidMessage: the environment has no tasks, or no such split.
        """
        size: int = self.run(lambda: session.num_tasks(split)) if self.remote else session.env.num_tasks(split)
        return size

    def rows(self, session: Any, split: str, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """Return rows of a dataset, one for each task of a split from ``start`` up to, and without, ``stop``.

        Raises:
            InvalidMessage: the environment has no tasks, or no such split.
        """
        if self.remote:
            return rows_of(self.run(lambda: session.get_tasks(split, start, stop)), start)
        return rows_of(session.env.get_tasks(split, start, stop), start)


__all__ = ["Sessions"]
