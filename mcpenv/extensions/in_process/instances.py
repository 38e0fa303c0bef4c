"""The environments of a pool in this process, which the client's distribution finds by an entry point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import StartupError
from mcpenv.targets.target import load_target

from .client import InProcessClient, SyncInProcessClient


class PoolInstances:
    """Makes environments for `mcpenv_client.pool.EnvPool`.

    Args:
        make: makes an environment.
    """

    def __init__(self, make: Callable[[], MCPEnvironment]) -> None:
        self._make = make

    def blocking(self) -> SyncInProcessClient:
        """Return a new environment with the methods of `SyncEnvClient`."""
        return SyncInProcessClient(self._make())

    def session(self) -> InProcessClient:
        """Return a new environment with the methods of `EnvClient`."""
        return InProcessClient(self._make())


def pool_instances(target: str | Callable[[], Any], settings: Sequence[str]) -> PoolInstances | str:
    """Return the maker of environments of a target, or the reason why the target cannot be used.

    Args:
        target: a TARGET, an environment's class, or a function that makes an environment.
        settings: ``NAME=VALUE`` for each setting of a TARGET.
    """
    if not isinstance(target, str):
        if settings:
            return "settings are for a target that is a text; bind them to the class with functools.partial"
        return PoolInstances(target)
    try:
        return PoolInstances(load_target(target, settings).make)
    except StartupError as error:
        return str(error)
