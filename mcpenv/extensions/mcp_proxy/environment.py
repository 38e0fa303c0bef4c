"""The environment that proxies MCP servers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self
from weakref import WeakSet

from fastmcp.tools.base import ToolResult as FastMCPResult
from mcp_types import CallToolResult, InputRequiredResult, TextContent
from mcp_types import Tool as ListedTool
from pydantic import Field

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError, InvalidTool, InvalidVerifier
from mcpenv.execution.step import Step, current
from mcpenv.extensions.files_world import FilesWorld
from mcpenv.failures import LostFailure, SortedFailure, unusable_result
from mcpenv.rewards.verifiers import check
from mcpenv.tools.registry import BoundTool
from mcpenv.tools.results import from_fastmcp, to_fastmcp
from mcpenv_client.errors import NotSerializable, NotSupported
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import TRANSPORT_LOST
from mcpenv_client.types.tools import Mode, ToolErrorType, ToolResult
from mcpenv_client.types.values import MAX_NESTING, refuse_non_finite

from .caller import Caller
from .catalog import Catalog, ProxiedTool, discover, merged_tools, tools_hash
from .components import ProxiedComponents
from .config import OpeningCall, ProxyConfig, StateOf, read_config
from .delivery import CallFailed, DiscoveryFailed, NotDelivered, WorldLost
from .loop import UPSTREAMS
from .recycling import close_all, recycle
from .remedies import REMEDIES
from .upstream import SERVER_INFO, Upstream
from .workspace import Workspace

logger = logging.getLogger("mcpenv.upstream")

RETRIES = 3
"""Maximum retries of a call that may be repeated."""

FIRST_PAUSE_S = 0.1
"""Maximum seconds before the first retry. The maximum doubles with each retry; the pause is a random part of it."""

_SURVIVES = frozenset({StateOf.NONE, StateOf.WORKSPACE, StateOf.EXTERNAL})
"""The places of state that outlive a server's process or session."""


class OpeningObservation(Observation):
    """The observation of a reset: the content of the last opening call.

    Attributes:
        content: content blocks under their MCP names, such as a text and a screenshot.
    """

    content: list[dict[str, Any]] = Field(default_factory=list)


class OpeningFailed(Exception):
    """The exception for an opening call that the server answered with an error."""


CHECKED_TASKS = 1000
"""The number of tasks, from the first, whose verifiers are checked when the first instance is made."""

_CHECKED: WeakSet[type[ProxyEnvironment]] = WeakSet()
"""The classes whose tasks have been checked."""


class ProxyEnvironment(MCPEnvironment):
    """An environment made of MCP servers. `from_config` makes the class for a configuration.

    A subclass may add tools, `score`, `verify`, tasks and a rubric of its own, like any environment.

    Attributes:
        config: the configuration.
        catalog: the tools that the servers had when the class was made.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    REMEDIES = REMEDIES

    config: ClassVar[ProxyConfig]
    catalog: ClassVar[Catalog]

    def __init__(self) -> None:
        if type(self) not in _CHECKED:
            _refuse_tasks_of_a_world(type(self))
            _CHECKED.add(type(self))
        self.workspace = self.catalog.workspace()
        if self.config.environment.world is not None and self.workspace is not None:
            self.world = FilesWorld(self.workspace.path)
        self._upstreams = {
            name: Upstream(name, self.config.servers[name], self.catalog.launchers.get(name), self.workspace)
            for name in self.catalog.servers
        }
        if self.config.environment.max_steps is not None:
            self.max_steps = self.config.environment.max_steps
        self.mcp_provider = ProxiedComponents(
            self._upstreams, self.catalog.offered, always=self.config.environment.namespace == "always"
        )
        self._has_before = type(self).before_call is not ProxyEnvironment.before_call
        self._has_after = type(self).after_call is not ProxyEnvironment.after_call
        self._listings = dict(self.catalog.listings)
        self._proxied = self._bound(self.catalog.tools)
        for tool, modes in self._proxied:
            self._execution.tools.add(tool, modes)

    @classmethod
    def from_config(
        cls, source: Mapping[str, Any] | str | Path, changes: Mapping[str, str] | None = None
    ) -> type[Self]:
        """Start the servers of a configuration once, and return the class of environments that proxy them.

        Args:
            source: a dictionary in the ``mcpServers`` format, or the path of such a file.
            changes: settings of the environment by name, as text; they override the settings in the source.

        Raises:
            ConfigurationError: the configuration cannot be used.
            DiscoveryFailed: a required server does not start.
        """
        config = read_config(source, changes)
        _check_opening(config.environment.on_reset, config.servers)
        catalog = UPSTREAMS.submit(discover(config)).result()
        name = config.environment.name or "-".join(config.servers)
        document = config.environment.description or f"The tools of {', '.join(catalog.servers)}."
        outside = any(config.servers[each].where is StateOf.EXTERNAL for each in catalog.servers)
        return type(
            cls.__name__,
            (cls,),
            {
                "__doc__": document,
                "__module__": cls.__module__,
                "EXPOSED_NAME": name,
                "DURABILITY": config.environment.durability or cls.DURABILITY or ("restart" if outside else None),
                "DETAILS": {"servers": dict(catalog.servers)},
                "config": config,
                "catalog": catalog,
                "observation_type": OpeningObservation if config.environment.on_reset else cls.observation_type,
                "long_outputs": config.environment.long_outputs or cls.long_outputs,
            },
        )

    @classmethod
    def instructions(cls) -> str | None:
        """Return the description of the configuration, or else the servers' own instructions."""
        return cls.config.environment.description or cls.catalog.instructions or super().instructions()

    async def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        """Restore the workspace, start the servers that are not kept, and verify that the world is the initial one.

        The observation's metadata has name, version, protocol and tools hash of each server, and the hash of the
        workspace. If a kept server differed from its initial state, ``replaced`` has the reasons by server. The last
        call of ``on_reset`` provides the content, if there is one.
        """
        told, listings = await UPSTREAMS.run(recycle(self._upstreams, self.workspace, self.catalog))
        self._learn(listings)
        calls = self.config.environment.on_reset
        if not calls:
            return Observation(metadata=told)
        return OpeningObservation(metadata=told, content=await _opened(calls, self._upstreams, self.workspace))

    async def close(self) -> None:
        """Stop all servers, and delete the workspace."""
        await UPSTREAMS.run(close_all(self._upstreams.values()))
        if self.workspace is not None:
            await asyncio.to_thread(self.workspace.remove)

    def save_state(self) -> Any:
        """Raise: the state is in the servers' own processes and services.

        Raises:
            NotSupported: always.
        """
        raise NotSupported(
            f"{type(self).__name__} cannot be saved: its servers keep state in processes of their own. Reset the "
            "episode, and call its tools again"
        )

    # -- to override

    def before_call(self, server: str, tool: str, arguments: dict[str, Any]) -> Any:
        """Return the arguments with which a server's tool is called. Override it, sync or async.

        It runs inside the step, before the call is sent. To refuse the call with a text for the agent, raise
        `fastmcp.exceptions.ToolError`. Any other exception is a failure of the environment's tool.

        Args:
            server: the name of the server in the configuration.
            tool: the tool's name on that server.
            arguments: the agent's arguments, with the bound ones.
        """
        return arguments

    def after_call(self, server: str, tool: str, arguments: dict[str, Any], result: ToolResult) -> Any:
        """Return the result that agents, `score` and records get. Override it, sync or async.

        It runs inside the step, after the server has answered, even with an error (``result.is_error``). It does not
        run for a call without an answer. An exception is a failure of the environment's tool.

        Args:
            server, tool: as for `before_call`.
            arguments: the arguments that were sent.
            result: the server's answer.
        """
        return result

    # -- for the core

    def _bound(self, tools: Sequence[ProxiedTool]) -> list[tuple[BoundTool, tuple[Mode, ...]]]:
        return [(BoundTool(tool.kind, partial(self._call, tool)), tool.modes) for tool in tools]

    def _learn(self, found: Mapping[str, Sequence[ListedTool]]) -> None:
        """Replace the environment's tools by the ones that its servers list now. Agents are notified of a change.

        Raises:
            ConfigurationError: the settings, or other tools, do not fit the new ones.
        """
        changed = {
            name: listed for name, listed in found.items() if tools_hash(listed) != tools_hash(self._listings[name])
        }
        if not changed:
            return
        listings = {**self._listings, **changed}
        proxied = self._bound(merged_tools(self.config, listings))
        try:
            self._execution.tools.replace([tool for tool, _ in self._proxied], proxied)
        except InvalidTool as error:
            raise ConfigurationError(f"server {min(changed)!r} lists other tools now: {error}") from error
        logger.warning("the tools of %s have changed; agents are told", ", ".join(sorted(changed)))
        self._listings, self._proxied = listings, proxied

    async def _list_again(self, upstream: Upstream) -> None:
        """List the tools of a server again after a call in which they changed, or may have changed.

        If they are unusable, keep the old tools.
        """
        try:
            self._learn({upstream.name: await UPSTREAMS.run(upstream.list_tools())})
        except (ConfigurationError, DiscoveryFailed) as error:
            logger.error("the tools of server %r stay as they were: %s", upstream.name, error)

    async def _call(self, tool: ProxiedTool, arguments: dict[str, Any]) -> FastMCPResult | InputRequiredResult:
        upstream = self._upstreams[tool.server]
        bound = tool.bound if self.workspace is None else self.workspace.fill(dict(tool.bound))
        arguments = {**arguments, **bound}
        if self._has_before:
            arguments = await self._hook(self.before_call, tool.server, tool.name, arguments)
            if not isinstance(arguments, dict):
                raise TypeError(f"before_call returned a {type(arguments).__name__}; return the arguments as a dict")
        answer = await self._deliver(tool, upstream, arguments)
        if isinstance(answer, InputRequiredResult):
            return answer
        if upstream.tools_changed or (not tool.reads and upstream.may_change_unnoticed):
            await self._list_again(upstream)
        result = _result(tool, answer)
        if not self._has_after:
            return result
        changed = await self._hook(self.after_call, tool.server, tool.name, arguments, from_fastmcp(result))
        if not isinstance(changed, ToolResult):
            raise TypeError(f"after_call returned a {type(changed).__name__}; return a ToolResult")
        return to_fastmcp(changed)

    async def _deliver(
        self, tool: ProxiedTool, upstream: Upstream, arguments: dict[str, Any]
    ) -> CallToolResult | InputRequiredResult:
        """Call the tool on its server. Repeat a call only if it cannot have run, or if running it twice is safe."""
        caller = Caller()
        pause = FIRST_PAUSE_S
        for left in reversed(range(RETRIES + 1)):
            try:
                answer = await UPSTREAMS.run(upstream.call(tool.name, arguments, caller))
                if isinstance(answer, InputRequiredResult):
                    return caller.pass_on(answer)
                return answer if caller.unanswered is None else _with_reason(answer, tool, caller.unanswered)
            except CallFailed as failure:
                if not left or not self._may_repeat(tool, upstream, failure):
                    raise await self._lost(tool, upstream, failure) from failure
                logger.warning("%s; tool %r is called again", failure, tool.name)
            finally:
                await caller.arrived()
            await asyncio.sleep(random.uniform(0, pause))
            pause *= 2
            if upstream.dead:
                await self._restart(upstream)
        raise AssertionError("the last try returns or raises")

    async def _hook(self, hook: Callable[..., Any], *args: Any) -> Any:
        """Run a hook in the context of the environment's code, within the deadline of the step."""
        step = current.get()
        client = step.client if isinstance(step, Step) else None
        return await self._execution.user_code.call(hook, *args, client=client)

    def _may_repeat(self, tool: ProxiedTool, upstream: Upstream, failure: CallFailed) -> bool:
        if isinstance(failure, WorldLost) or (upstream.dead and upstream.settings.where not in _SURVIVES):
            return False
        return isinstance(failure, NotDelivered) or tool.repeatable

    async def _restart(self, upstream: Upstream) -> None:
        """Start a server again. If it does not start, log the failure: the next call is not delivered."""
        await UPSTREAMS.run(upstream.close())
        try:
            self._learn({upstream.name: await UPSTREAMS.run(upstream.open())})
        except DiscoveryFailed as error:
            logger.error("%s", error)

    async def _lost(self, tool: ProxiedTool, upstream: Upstream, failure: CallFailed) -> SortedFailure:
        """Truncate the episode because its world is unknown, and return the failure for the agent."""
        self.finish(truncated=True, reason=TRANSPORT_LOST)
        if not self._execution.episode.orchestrated:
            # Without an orchestrator no episode ends and no reset follows. The service continues with a new world.
            logger.error("%s; it is started again, and what it kept in memory is lost", failure)
            await self._restart(upstream)
        return SortedFailure(LostFailure(error_type=ToolErrorType.TRANSPORT_ERROR, message=str(failure)))


def _with_reason(answer: CallToolResult, tool: ProxiedTool, reason: str) -> CallToolResult:
    """Return the server's answer; if it is an error after a refused question, add the reason of the refusal."""
    if not answer.is_error:
        return answer
    text = f"Server {tool.server!r} asked for input, but {reason}."
    return answer.model_copy(update={"content": [*answer.content, TextContent(type="text", text=text)]})


def _result(tool: ProxiedTool, answer: CallToolResult) -> FastMCPResult:
    try:
        refuse_non_finite(answer.structured_content, "result", MAX_NESTING)
        refuse_non_finite(answer.meta, "result.meta", MAX_NESTING)
    except NotSerializable as error:
        raise SortedFailure(unusable_result(tool.kind.name, f"server {tool.server!r}: {error}")) from error
    return FastMCPResult(
        content=answer.content,
        structured_content=answer.structured_content,
        meta={key: value for key, value in (answer.meta or {}).items() if key != SERVER_INFO} or None,
        is_error=bool(answer.is_error),
    )


# -- the calls of ``on_reset``


def _check_opening(calls: Sequence[OpeningCall], servers: Mapping[str, Any]) -> None:
    """Raise if a call names no server of the configuration.

    Raises:
        ConfigurationError: a call names an unknown server.
    """
    for call in calls:
        if call.server is None and len(servers) > 1:
            raise ConfigurationError(f"mcpenv.on_reset: there are several servers; say which one has {call.tool!r}")
        if call.server is not None and call.server not in servers:
            raise ConfigurationError(f"mcpenv.on_reset: there is no server {call.server!r}")


async def _opened(
    calls: Sequence[OpeningCall], upstreams: Mapping[str, Upstream], workspace: Workspace | None
) -> list[dict[str, Any]]:
    """Make the calls, and return the content of the last one.

    Raises:
        OpeningFailed: a server answered with an error.
        CallFailed: a server did not answer.
    """
    content: list[dict[str, Any]] = []
    for call in calls:
        upstream = upstreams[call.server or next(iter(upstreams))]
        arguments = dict(call.arguments) if workspace is None else workspace.fill(dict(call.arguments))
        answer = await UPSTREAMS.run(upstream.call_alone(call.tool, arguments))
        content = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in answer.content]
        if answer.is_error:
            said = " ".join(str(block.get("text", "")) for block in content)[:500]
            raise OpeningFailed(f"on_reset: tool {call.tool!r} of server {upstream.name!r} failed: {said}")
    return content


def _refuse_tasks_of_a_world(cls: type[ProxyEnvironment]) -> None:
    """Raise if a task's verifier needs a world, and the configuration gives none. Blocks.

    A subclass of a user's may set a world in its own code, so its tasks are checked at each reset, as usual.

    Raises:
        ConfigurationError: with the id of the task.
    """
    if cls.tasks is None or cls.config.environment.world is not None or cls.author_hooks.verifies_tasks:
        return
    if cls.__module__ != ProxyEnvironment.__module__:
        return
    for task in islice(cls.tasks, CHECKED_TASKS):
        if task.verifier is None:
            continue
        try:
            check(task.verifier, has_world=False)
        except InvalidVerifier as error:
            raise ConfigurationError(
                f'task {task.id!r}: {error}. The workspace is the world with "mcpenv": {{"world": "workspace"}}'
            ) from error
