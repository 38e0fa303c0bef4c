"""The environments of a pool in this process, made from a target. Needs ``mcpenv``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .backend import PoolError

Target = str | Callable[[], Any]
"""What names an environment: a TARGET of ``mcpenv run``, an environment's class, or a function that makes one."""


class Instances:
    """Makes environments of one target.

    Args:
        target: the target.
        settings: ``NAME=VALUE`` for each setting, as ``--set`` of ``mcpenv run``; only for a target that is a text.

    Raises:
        PoolError: ``mcpenv`` is missing, or the target cannot be loaded.
    """

    def __init__(self, target: Target, settings: Sequence[str] = ()) -> None:
        try:
            from mcpenv.errors import StartupError  # the server's distribution: imported on use
            from mcpenv.packaging.target import load_target
        except ModuleNotFoundError as error:
            if error.name != "mcpenv":
                raise
            raise PoolError(
                "environments in this process need the package mcpenv: install it, or give the URL of a server"
            ) from error
        if isinstance(target, str):
            try:
                self._make: Callable[[], Any] = load_target(target, settings).make
            except StartupError as error:
                raise PoolError(str(error)) from error
        elif settings:
            raise PoolError("settings are for a target that is a text; bind them to the class with functools.partial")
        else:
            self._make = target

    def blocking(self) -> Any:
        """Return a new environment as a `BlockingSession`."""
        from mcpenv.in_process import SyncInProcessClient

        return SyncInProcessClient(self._make())

    def session(self) -> Any:
        """Return a new environment as a `Session`."""
        from mcpenv.in_process import InProcessClient

        return InProcessClient(self._make())


__all__ = ["Instances", "Target"]
