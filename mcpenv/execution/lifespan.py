"""The value of an environment class's ``lifespan``, which all sessions of a process share."""

from __future__ import annotations

import atexit
import logging
import threading
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any

from .concurrency.event_loop import BlockingRunner

logger = logging.getLogger("mcpenv")

UNSET: Any = object()

being_made: ContextVar[Any] = ContextVar("mcpenv_shared", default=UNSET)
"""The shared value for the instance that a server is creating."""


class _InProcess:
    """The lifespans of classes that are used without a server. They are entered on first use and left at exit."""

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._blocking = BlockingRunner()
        self._entered: dict[type, tuple[Any, AbstractAsyncContextManager[Any]]] = {}

    def value(self, cls: type[Any]) -> Any:
        with self._mutex:
            if cls not in self._entered:
                manager = lifespan_of(cls)
                self._entered[cls] = (self._blocking.run(manager.__aenter__()), manager)
                if len(self._entered) == 1:
                    atexit.register(self.leave)
            return self._entered[cls][0]

    def leave(self) -> None:
        with self._mutex:
            for cls, (_, manager) in reversed(self._entered.items()):
                try:
                    self._blocking.run(manager.__aexit__(None, None, None))
                except Exception:
                    logger.exception("leaving the lifespan of %s failed", cls.__name__)
            self._entered.clear()


def lifespan_of(cls: type[Any]) -> AbstractAsyncContextManager[Any]:
    """Return the class's lifespan, not yet entered.

    Raises:
        TypeError: if the class's ``lifespan`` returns no async context manager.
    """
    manager = cls.lifespan()
    if not isinstance(manager, AbstractAsyncContextManager):
        if hasattr(manager, "close"):
            manager.close()  # a coroutine that will not be awaited
        raise TypeError(
            f"{cls.__name__}.lifespan is not an async context manager. Put @asynccontextmanager below @classmethod"
        )
    return manager


IN_PROCESS = _InProcess()
