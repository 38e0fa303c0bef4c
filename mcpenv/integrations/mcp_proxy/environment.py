"""The environment whose tools are those of MCP servers."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from fastmcp.server.dependencies import get_context
from fastmcp.tools.base import ToolResult as FastMCPResult
from mcp_types import CallToolResult

from mcpenv.environment import MCPEnvironment
from mcpenv.failures import LostFailure, SortedFailure
from mcpenv.tools.registry import BoundTool
from mcpenv_client.errors import NotSupported
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import TRANSPORT_LOST
from mcpenv_client.types.tools import ToolErrorType

from .catalog import Catalog, ProxiedTool, discover, tools_hash
from .config import ProxyConfig, StateOf, read_config
from .delivery import CallFailed, NotDelivered, WorldLost
from .loop import UPSTREAMS
from .upstream import Upstream
from .workspace import Workspace

logger = logging.getLogger("mcpenv.upstream")

RETRIES = 3
"""Times that a call which may be repeated is sent again."""

FIRST_PAUSE_S = 0.1
"""Seconds before the first retry, at most. Each further pause is twice as long; a random part of it is waited."""

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
"""The key of a result's metadata that names its server, from 2026-07-28 on. The environment's own server sets it."""

_SURVIVES = frozenset({StateOf.NONE, StateOf.WORKSPACE, StateOf.EXTERNAL})
"""The places of state that outlive a server's process or session."""


class ProxyEnvironment(MCPEnvironment):
    """An environment made of MCP servers. `from_config` makes the class for a configuration.

    A subclass may add tools, `score`, `verify`, tasks and a rubric of its own, as any environment.

    Attributes:
        config: the configuration.
        catalog: the tools that the servers had when the class was made.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    config: ClassVar[ProxyConfig]
    catalog: ClassVar[Catalog]

    def __init__(self) -> None:
        self.workspace: Workspace | None = None
        if any(server.uses_workspace for server in self.config.servers.values()):
            self.workspace = Workspace(self.config.environment.workspace)
        self._upstreams = {
            name: Upstream(name, self.config.servers[name], self.workspace) for name in self.catalog.servers
        }
        if self.config.environment.max_steps is not None:
            self.max_steps = self.config.environment.max_steps
        for tool in self.catalog.tools:
            self._execution.tools.add(BoundTool(tool.kind, partial(self._call, tool)), tool.modes)

    @classmethod
    def from_config(
        cls, source: Mapping[str, Any] | str | Path, changes: Mapping[str, str] | None = None
    ) -> type[Self]:
        """Start the servers of a configuration once, and return the class of environments that proxy them.

        Args:
            source: a dictionary in the ``mcpServers`` format, or the path of such a file.
            changes: settings of the environment by name, as text, instead of those of the source.

        Raises:
            ConfigurationError: the configuration cannot be used.
            DiscoveryFailed: a required server does not start.
        """
        config = read_config(source, changes)
        catalog = UPSTREAMS.submit(discover(config)).result()
        name = config.environment.name or "-".join(config.servers)
        document = config.environment.description or f"The tools of {', '.join(catalog.servers)}."
        return type(
            cls.__name__,
            (cls,),
            {
                "__doc__": document,
                "__module__": cls.__module__,
                "EXPOSED_NAME": name,
                "config": config,
                "catalog": catalog,
            },
        )

    @classmethod
    def instructions(cls) -> str | None:
        """Return the description of the configuration, else the servers' own instructions."""
        return cls.config.environment.description or cls.catalog.instructions or super().instructions()

    async def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        """Restore the workspace, and start the servers that are not kept, all at once.

        The observation's metadata has name, version, protocol and the hash of the tools of each server.
        """
        await UPSTREAMS.run(self._end(kept=False))
        if self.workspace is not None:
            await asyncio.to_thread(self.workspace.restore)
        await UPSTREAMS.run(self._begin())
        return Observation(metadata={"servers": {name: dict(found) for name, found in self.catalog.servers.items()}})

    async def close(self) -> None:
        """End all servers, and delete the workspace."""
        await UPSTREAMS.run(self._end(kept=True))
        if self.workspace is not None:
            await asyncio.to_thread(self.workspace.remove)

    def save_state(self) -> Any:
        """Raise: the state of the servers is in processes and services of their own.

        Raises:
            NotSupported: always.
        """
        raise NotSupported(
            f"{type(self).__name__} cannot be saved: its servers keep state in processes of their own. Reset the "
            "episode, and call its tools again"
        )

    async def _begin(self) -> None:
        starting = [upstream for upstream in self._upstreams.values() if upstream.dead]
        listings = await asyncio.gather(*(upstream.open() for upstream in starting), return_exceptions=True)
        for failure in listings:
            if isinstance(failure, BaseException):
                raise failure
        for upstream, listed in zip(starting, listings, strict=True):
            if tools_hash(listed) != self.catalog.servers[upstream.name]["tools_hash"]:  # type: ignore[arg-type]
                logger.warning(
                    "server %r lists other tools than when it was first started; agents see the first ones",
                    upstream.name,
                )

    async def _end(self, *, kept: bool) -> None:
        ending = [each for each in self._upstreams.values() if kept or each.dead or not each.settings.kept]
        await asyncio.gather(*(upstream.close() for upstream in ending))

    async def _call(self, tool: ProxiedTool, arguments: dict[str, Any]) -> FastMCPResult:
        """Call the tool on its server. Send a call again only if that cannot run it twice, or running twice is safe."""
        upstream = self._upstreams[tool.server]
        bound = tool.bound if self.workspace is None else self.workspace.fill(dict(tool.bound))
        messages = _Messages()
        pause = FIRST_PAUSE_S
        for left in reversed(range(RETRIES + 1)):
            try:
                call = upstream.call(tool.name, {**arguments, **bound}, messages.progress, messages.log)
                return _result(await UPSTREAMS.run(call))
            except CallFailed as failure:
                if not left or not self._may_repeat(tool, upstream, failure):
                    raise await self._lost(tool, upstream, failure) from failure
                logger.warning("%s; tool %r is called again", failure, tool.name)
            finally:
                await messages.arrived()
            await asyncio.sleep(random.uniform(0, pause))
            pause *= 2
            if upstream.dead:
                await UPSTREAMS.run(self._restart(upstream))
        raise AssertionError("the last try returns or raises")

    def _may_repeat(self, tool: ProxiedTool, upstream: Upstream, failure: CallFailed) -> bool:
        if isinstance(failure, WorldLost) or (upstream.dead and upstream.settings.where not in _SURVIVES):
            return False
        return isinstance(failure, NotDelivered) or tool.repeatable

    async def _restart(self, upstream: Upstream) -> None:
        await upstream.close()
        await upstream.open()

    async def _lost(self, tool: ProxiedTool, upstream: Upstream, failure: CallFailed) -> SortedFailure:
        """Truncate the episode, whose world is not known any more, and return the failure for the agent."""
        self.finish(truncated=True, reason=TRANSPORT_LOST)
        if not self._execution.episode.orchestrated:
            # No episode ends here, and nobody resets. The service goes on with a new world.
            logger.error("%s; it is started again, and what it kept in memory is lost", failure)
            await UPSTREAMS.run(self._restart(upstream))
        return SortedFailure(LostFailure(error_type=ToolErrorType.TRANSPORT_ERROR, message=str(failure)))


class _Messages:
    """The progress and log messages of one call, passed on to the caller's `Context` on the caller's loop."""

    def __init__(self) -> None:
        self._context = get_context()
        self._loop = asyncio.get_running_loop()
        self._variables = contextvars.copy_context()  # the context finds the agent's request there
        self._passed: list[asyncio.Task[None]] = []

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on a progress message. Called on the loop of the upstreams."""
        self._pass(partial(self._context.report_progress, progress, total, message))

    def log(self, level: str, text: str) -> None:
        """Pass on a log message. Called on the loop of the upstreams."""
        self._pass(partial(self._context.log, text, level=level))  # type: ignore[arg-type]

    async def arrived(self) -> None:
        """Wait until the messages so far were passed on."""
        passed, self._passed = self._passed, []
        await asyncio.gather(*passed)

    def _pass(self, message: Callable[[], Coroutine[Any, Any, None]]) -> None:
        def begin() -> None:
            self._passed.append(self._loop.create_task(message()))

        self._loop.call_soon_threadsafe(begin, context=self._variables)


def _result(answer: CallToolResult) -> FastMCPResult:
    return FastMCPResult(
        content=answer.content,
        structured_content=answer.structured_content,
        meta={key: value for key, value in (answer.meta or {}).items() if key != SERVER_INFO} or None,
        is_error=bool(answer.is_error),
    )


__all__ = ["ProxyEnvironment"]
