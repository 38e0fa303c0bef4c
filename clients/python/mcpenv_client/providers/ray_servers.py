"""Servers on the nodes of a Ray cluster, one on each, with episodes addressed by URL and by handle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mcpenv_client.client import EnvClient
from mcpenv_client.pool.actor_cluster import connected

from .local import LocalInstance, LocalProvider

logger = logging.getLogger("mcpenv")

LOOK_S = 2.0
"""Seconds between two checks of the servers."""


class NodeServer:
    """The actor that keeps one server on its node. The server ends with it.

    Args:
        target: TARGET as on the command line, on that node.
        options: further options of ``mcpenv run``.
    """

    def __init__(self, target: str, options: Sequence[str]) -> None:
        self._provider = LocalProvider(target, options=["--host", ray.util.get_node_ip_address(), *options])
        self._stack = AsyncExitStack()
        self._instance: LocalInstance | None = None
        self._starting = asyncio.Lock()

    async def server(self) -> tuple[str, dict[str, str]]:
        """Return the URL and the headers of its server. Start one if there is none, or if it has ended."""
        async with self._starting:
            if self._instance is None or not await self._instance.is_running():
                await self._stack.aclose()
                self._instance = await self._stack.enter_async_context(self._provider.launch())
            return self._instance.url, self._instance.headers


class RayServers:
    """The servers of a cluster, for ``EnvPool(servers.urls, backend="remote", connect=servers.connect)``.

    Attributes:
        urls: their URLs. The list is kept up to date while the block runs, and a pool reads it again.
        actors: the Ray actors that keep them, one on each node.
        changed: set when `urls` has changed; clear it to wait for the next change.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        self.urls: list[str] = []
        self.actors = actors
        self.changed = asyncio.Event()
        self._headers: dict[str, dict[str, str]] = {}

    def connect(self, url: str) -> EnvClient:
        """Return a client of a server, with its control token."""
        return EnvClient(url, headers=self._headers[url])

    async def look(self) -> None:
        """Ask each actor for its server."""
        calls = [asyncio.wrap_future(actor.server.remote().future()) for actor in self.actors]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, RayError):
                raise answer
            if isinstance(answer, RayError):
                logger.warning("ray_servers: a node has no server now: %s", answer)
        found = dict(answer for answer in answers if not isinstance(answer, BaseException))
        self._headers |= found
        if found and self.urls != list(found):
            self.urls[:] = found
            self.changed.set()

    async def watch(self) -> None:
        """Check the servers repeatedly."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()


@asynccontextmanager
async def ray_servers(
    target: str, *, options: Sequence[str] = (), address: str | None = None
) -> AsyncIterator[RayServers]:
    """Start one server on each node, and end them with the block. A server that ends is started again.

    Args:
        target: TARGET as on the command line, which each node must have.
        options: further options of ``mcpenv run``, such as ``["--max-concurrent-envs", "64"]``.
        address: the cluster's address, if this program has not called ``ray.init``; None: as ``ray.init()``.

    Raises:
        RayError: no node could start its server; the text has the reason.
    """
    async with connected(address):
        actors = []
        try:
            for node in ray.nodes():
                if node["Alive"]:
                    place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                    actor_class = ray.remote(NodeServer).options(num_cpus=0, max_restarts=-1, scheduling_strategy=place)
                    actors.append(actor_class.remote(target, tuple(options)))
            servers = RayServers(actors)
            await servers.look()
            if not servers.urls:
                await asyncio.wrap_future(actors[0].server.remote().future())
            watching = asyncio.ensure_future(servers.watch())
            try:
                yield servers
            finally:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
        finally:
            for actor in actors:
                ray.kill(actor)
