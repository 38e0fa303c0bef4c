"""A session on one of many servers, for trainers that keep one session for each rollout."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mcpenv_client.client import EnvClient
from mcpenv_client.errors import CapacityReached, ConnectionFailed, SessionLost, WireError
from mcpenv_client.types.records import StepResult, Trajectory
from mcpenv_client.types.starts import Start
from mcpenv_client.types.tools import Tool

from .backend import PoolError
from .servers import Client, Server, Servers

T = TypeVar("T")


class PooledSession:
    """A session that runs each episode on the server with the most free capacity at the reset.

    An episode stays on its server. If the server fails, the episode goes on at another one if they are durable.
    Otherwise it is lost, and the next reset uses another server.

    Args:
        servers: the servers; started.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._held: tuple[Server, Client] | None = None
        self._fit = True
        self._lost: str | None = None

    async def reset(self, seed: int | None = None, **options: Any) -> StepResult[Any]:
        """Begin an episode.

        Raises:
            ConnectionFailed: no server was free for a minute, or the connection was lost.
            WireError: as `EnvClient.reset` does; `CapacityReached` only after a minute.
        """
        return await self._begun(lambda client: client.reset(seed=seed, **options))

    async def branch(self, record: Start, step: int) -> StepResult[Any]:
        """Begin an episode that continues a recorded one after a step. Raises as `reset`."""
        return await self._begun(lambda client: client.branch(record, step))

    async def _begun(self, begin: Callable[[EnvClient], Awaitable[StepResult[Any]]]) -> StepResult[Any]:
        give_up = time.monotonic() + self._servers.wait_s
        await self._give_back(finished=1 if self._fit else None)
        self._fit, self._lost = True, None
        while True:
            try:
                return await self._ask(begin, give_up)
            except CapacityReached:
                if time.monotonic() > give_up:
                    raise

    async def step(self, action: Any, *, timeout_s: float | None = None) -> StepResult[Any]:
        """Take one step. This and the following methods: as the methods of `EnvClient` with these names."""
        return await self._ask(lambda client: client.step(action, timeout_s=timeout_s))

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> StepResult[Any]:
        """Call one tool, as a step."""
        return await self._ask(lambda client: client.call_tool(name, arguments, timeout_s=timeout_s))

    async def list_tools(self) -> list[Tool]:
        """Return the tools. Listing is not a step."""
        return await self._ask(lambda client: client.list_tools())

    async def end(self, *, truncated: bool = False, reason: str | None = None) -> StepResult[Any]:
        """End the episode, and return the reward of its end."""
        return await self._ask(lambda client: client.end(truncated=truncated, reason=reason))

    async def snapshot(self) -> Any:
        """Return a snapshot of the episode, which is on its server."""
        return await self._ask(lambda client: client.snapshot())

    async def restore(self, snapshot: Any) -> StepResult[Any]:
        """Continue from a snapshot of this server, in a new episode."""
        return await self._ask(lambda client: client.restore(snapshot))

    async def drop_snapshot(self, snapshot: Any) -> bool:
        """Delete a snapshot of this server."""
        return await self._ask(lambda client: client.drop_snapshot(snapshot))

    async def trajectory(self) -> Trajectory:
        """Return the record of the episode."""
        return await self._ask(lambda client: client.trajectory())

    async def close(self) -> None:
        """End the session."""
        await self._give_back(finished=None)

    async def _ask(self, call: Callable[[EnvClient], Awaitable[T]], give_up: float | None = None) -> T:
        """Call the client of the session's server, and choose a server if there is none."""
        if self._lost is not None:
            raise SessionLost(f"the episode was lost with its server; reset: {self._lost}")
        if self._held is None:
            try:
                limit = give_up or time.monotonic() + self._servers.wait_s
                self._held = await self._servers.take(lambda: limit - time.monotonic())
            except PoolError as error:
                raise ConnectionFailed("a server of the pool", str(error)) from error
        server, client = self._held
        try:
            return await call(client.client)
        except CapacityReached:
            self._servers.full(server)
            await self._give_back(finished=None)
            raise
        except (ConnectionFailed, SessionLost) as error:
            self._lost = str(error)
            await self._give_back(finished=None, lost=True)
            raise
        except WireError as error:
            self._fit = self._fit and error.status is None  # a refusal has no status and changes nothing
            raise

    async def _give_back(self, *, finished: int | None, lost: bool = False) -> None:
        if self._held is not None:
            (server, client), self._held = self._held, None
            await self._servers.give_back(server, client, finished=finished, lost=lost)
