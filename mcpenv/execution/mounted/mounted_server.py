"""The mounted FastMCP server of an environment: its tools, middleware, mounts and providers, on every plane.

A provider adds the environment's own tools to the server, so that its middleware applies to them too.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from fastmcp import FastMCP
from fastmcp.exceptions import DisabledError, NotFoundError, ToolError
from fastmcp.exceptions import ValidationError as FastMCPValidationError
from fastmcp.server.completions import CompletionReference, CompletionValues, normalize_completion
from fastmcp.server.context import reset_transport, set_transport
from fastmcp.server.dependencies import FastMCPRequestContext, fastmcp_request_ctx
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.dereference import DereferenceRefsMiddleware
from fastmcp.server.providers import FastMCPProvider, Provider
from fastmcp.server.transforms import GetToolNext, Transform
from fastmcp.tools.base import InputRequiredToolResult
from fastmcp.tools.base import Tool as Component
from fastmcp.tools.base import ToolResult as FastMCPResult
from fastmcp.utilities.versions import VersionSpec
from mcp_types import CompletionArgument, CompletionContext, Icon, InputRequiredResult
from pydantic import PrivateAttr, ValidationError

from mcpenv.errors import InvalidTool
from mcpenv.execution.concurrency.event_loop import without_loop
from mcpenv.execution.concurrency.threads import THREADS
from mcpenv.execution.context import AnnouncingSession, RecordSession
from mcpenv.execution.notifications import Subscribers
from mcpenv.execution.server_settings import refuse_tasks, refuse_unsupported
from mcpenv.failures import (
    environment_failure,
    execution_failure,
    invalid_arguments,
    is_no_failure,
    unknown_tool,
    unusable_result,
)
from mcpenv.tools.access import AuthChecks, Listing
from mcpenv.tools.definition import spec_of, without_output_schema
from mcpenv.tools.names import RESERVED_NAMES
from mcpenv.tools.registry import BoundTool, ToolRegistry
from mcpenv.tools.results import from_fastmcp, to_fastmcp
from mcpenv.tools.returns import Returns
from mcpenv.tools.settings import ToolSettings
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.records import LogEntry
from mcpenv_client.types.tools import Mode, Tool, ToolFailure, ToolResult
from mcpenv_client.wire.faults import describe_faults, faults

from .mounted_threads import ThreadsOfEnvironment, run_sync
from .mounted_tools import MountedTools

logger = logging.getLogger("mcpenv")

_NONE: Mapping[str, ToolSettings | Mapping[str, Any]] = MappingProxyType({})

_fitting: WeakKeyDictionary[FastMCP, set[object]] = WeakKeyDictionary()
"""The sets of own tools and settings of tools that were found to fit a server."""

_names: WeakKeyDictionary[FastMCP, frozenset[str]] = WeakKeyDictionary()
"""The names of a server's tools, as they were when own tools were last checked against them."""

_held: set[asyncio.Task[None]] = set()
"""Tasks of entered lifespans. A loop refers to its tasks only weakly."""


@dataclasses.dataclass(frozen=True, slots=True)
class Visible:
    """The tools that one instance shows in one mode.

    Attributes:
        registry: the own tools of the instance.
        mode: the mode.
        session_id: identifies the instance and its episode for tools that keep state.
        subscribers: notifies subscribers of changes by these tools.
        tools: the settings of tools of the mounted server.
    """

    registry: ToolRegistry
    mode: Mode
    session_id: str
    subscribers: Subscribers
    tools: MountedTools

    def source(self, name: str) -> str | None:
        """Return the name by which the mounted server knows a tool of that name; None if it shows none."""
        return self.tools.source(name, self.mode)

    def get(self, name: str) -> BoundTool | None:
        """Return the tool of that name, or None."""
        return self.registry.by_mode[self.mode].get(name)

    def __iter__(self) -> Iterator[BoundTool]:
        return self.registry.listed(self.mode)


_serving: ContextVar[Visible | None] = ContextVar("mcpenv_handed_in_serving", default=None)


class Call(Protocol):
    """The call of a step, as the server runs it.

    Attributes:
        logs: receives its messages.
        number: the number of the step.
    """

    logs: list[LogEntry]
    number: int

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolResult | ToolFailure | InputRequiredResult:
        """Run the environment's own tool of that name."""
        ...

    async def run_sync(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a sync function of the server where the environment's sync code runs."""
        ...


_call: ContextVar[Call | None] = ContextVar("mcpenv_handed_in_call", default=None)


class MountedServer:
    """The use of a mounted server by one environment. Several environments may share the server.

    Args:
        tools: settings of its tools, by its names.

    Attributes:
        server: the author's server.
        provider: its components wrapped by its middleware, for resources and prompts.
        tools: the settings of its tools.

    Raises:
        ConfigurationError: the server has a setting that an environment cannot apply.
        InvalidTool: a setting of a tool that cannot be used.
    """

    def __init__(self, server: FastMCP, tools: Mapping[str, ToolSettings | Mapping[str, Any]] = _NONE) -> None:
        if not isinstance(server, FastMCP):
            raise TypeError(f"super().__init__() takes a FastMCP server, not a {type(server).__name__}")
        if not isinstance(tools, Mapping):
            raise TypeError(f"tools= takes a dict of settings by the names of tools, not a {type(tools).__name__}")
        refuse_unsupported(server)
        self.server = server
        self.provider = FastMCPProvider(server)
        self.tools = MountedTools(tools)
        self._checked: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop: asyncio.Event | None = None
        self._lifespan_value: Any = {}
        # FastMCP adds this middleware by default. It would replace references by definitions, and drop keywords.
        server.middleware[:] = [each for each in server.middleware if type(each) is not DereferenceRefsMiddleware]
        if not any(isinstance(provider, _OwnTools) for provider in server.providers):
            server.add_provider(_OwnTools())
            server.add_transform(ThreadsOfEnvironment())
        if self.tools and not any(isinstance(each, _Admitted) for each in server.transforms):
            server.add_transform(_Admitted())

    async def listing(self, own: Visible) -> Listing:
        """Return the server's tools and the environment's own, as its middleware lists them.

        A tool with a reserved name that the server added later (mounted, proxied, renamed) is left out.

        Raises:
            InvalidTool: as `check`.
        """
        await self.check(own)
        with self._serve(own, None), self._requested(own, 0, []):
            components = await self.server.list_tools()
        specs: dict[str, Tool] = {}
        checks: dict[str, AuthChecks] = {}
        icons: dict[str, list[Icon]] = {}
        theirs = {component.name for component in components if not isinstance(component, _OwnTool)}
        for component in components:
            if isinstance(component, _OwnTool) and component.name in theirs:  # the server's was added later
                clash = self._clash(component.name, own.mode)
                logger.error("%s", clash)
                raise clash
            if component.name in RESERVED_NAMES:
                logger.error("tool %r is left out: the name is reserved for the orchestrator", component.name)
            elif component.name not in specs:
                specs[component.name] = spec_of(component)
                if component.auth is not None:
                    checks[component.name] = component.auth
                if component.icons:
                    icons[component.name] = component.icons
        listed = [without_output_schema(spec) if own.registry.cuts else spec for spec in specs.values()]
        return Listing(listed, checks, icons)

    def refuse_taken(self, name: str, modes: tuple[Mode, ...]) -> None:
        """Raise if an own tool is registered late, and a visible tool of the server has its name.

        Before the first check the names of the server's tools are not known. That check then raises.

        Raises:
            InvalidTool: there is such a tool.
        """
        if self._checked is None:
            return
        for mode in modes:
            if self.tools.source(name, mode) in _names.get(self.server, ()):
                raise self._clash(name, mode)

    async def check(self, own: Visible) -> None:
        """Enter the server, and raise if its tools and the environment's do not fit together.

        Each set of own tools is checked once, not once per instance.

        Raises:
            InvalidTool: an own tool has the name of one of the server's, ``tools=`` names a tool that the server does
                not have, or two of its tools get one name.
            ConfigurationError: as `enter`.
        """
        await self.enter()
        if self._checked == own.registry.version:
            return
        named = tuple(frozenset(tool.kind.name for tool in own.registry.listed(mode)) for mode in Mode)
        fitting = _fitting.setdefault(self.server, set())
        if (key := (named, self.tools.key)) not in fitting:
            await self._check(own)
            fitting.add(key)
        self._checked = own.registry.version

    async def _check(self, own: Visible) -> None:
        alone = dataclasses.replace(own, registry=ToolRegistry(), tools=MountedTools({}))
        request = fastmcp_request_ctx.set(None)  # the check must not depend on the agent of the current request
        try:
            with self._serve(alone, None), self._requested(own, 0, []):
                listed = await self.server.list_tools(run_middleware=False)
                theirs = {component.name for component in listed}
                _names[self.server] = frozenset(theirs)
        finally:
            fastmcp_request_ctx.reset(request)
        for name in sorted(self.tools.settings.keys() - theirs):
            known = ", ".join(sorted(theirs)) or "none"
            raise InvalidTool(
                name, f"tools= names it, and FastMCP server {self.server.name!r} has no such tool; it has: {known}"
            )
        for component in listed:
            self.tools.apply(component)  # raises if an argument is bound that it does not have
        for mode in Mode:
            shown: dict[str, str] = {}
            for name in sorted(theirs):
                other = shown.setdefault(self.tools.shown_as(name), name) if self.tools.shows(name, mode) else name
                if other != name:
                    both = self.tools.shown_as(name)
                    raise InvalidTool(name, f"in {mode.value} mode, {other!r} has the name {both!r} too (tools=)")
            for tool in dataclasses.replace(own, mode=mode):
                if tool.kind.name in shown:
                    raise self._clash(tool.kind.name, mode)

    def _clash(self, name: str, mode: Mode) -> InvalidTool:
        return InvalidTool(
            name,
            f"FastMCP server {self.server.name!r} has a tool of that name in {mode.value} mode. Rename it, or give the "
            "server's tool another name or mode, or hide it (tools=)",
        )

    async def call_tool(
        self, own: Visible, name: str, arguments: dict[str, Any], call: Call
    ) -> ToolResult | ToolFailure | InputRequiredResult:
        """Call a tool through the server's middleware. Failures of the tool are returned, not raised.

        Raises:
            InvalidTool: as `check`.
        """
        await self.check(own)
        if name in RESERVED_NAMES or (
            self._hides and name not in {tool.name for tool in (await self.listing(own)).tools}
        ):
            return unknown_tool(name, [tool.name for tool in (await self.listing(own)).tools])
        try:
            with self._serve(own, call), self._requested(own, call.number, call.logs):
                result = await self.server.call_tool(name, arguments)
                tool = None if isinstance(result, InputRequiredToolResult) else await self.server.get_tool(name)
        except (NotFoundError, DisabledError):
            return unknown_tool(name, [tool.name for tool in (await self.listing(own)).tools])
        except _Failed as failed:
            return failed.failure
        except (FastMCPValidationError, ValidationError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, ValidationError) else error
            fault = cause if isinstance(cause, ValidationError) else None
            if fault is None:
                return invalid_arguments(name, str(error), None, {})
            listed = {tool.name: tool.input_schema for tool in (await self.listing(own)).tools}
            return invalid_arguments(name, describe_faults(fault), faults(fault), listed.get(name, {}))
        except ToolError as error:
            if error.__cause__ is not None and _made_by_fastmcp(error):
                raised = error.__cause__
                if isinstance(raised.__cause__, ValidationError) and _made_by_fastmcp(raised):
                    raised = raised.__cause__  # FastMCP wraps one that the tool's own code raised
                # Show the cause only as far as this server, or one mounted on it, shows it (mask_error_details).
                return execution_failure(name, raised, own.mode, shown=str(error))
            return execution_failure(name, error, own.mode)
        if isinstance(result, InputRequiredToolResult):
            return result.input_required
        if not isinstance(result, FastMCPResult):  # an extension answered the call
            return unusable_result(name, f"a {type(result).__name__} of an extension is no result of a tool")
        try:
            made = from_fastmcp(result)
            if tool is not None and not made.is_error:
                Returns(Any, tool.output_schema, given=True).check(made.structured_content)
        except (NotSerializable, ToolError) as error:
            return unusable_result(name, str(error))
        return made

    @property
    def _hides(self) -> bool:
        """True if middleware may leave tools out of listings. FastMCP would still call such tools."""
        return any(type(each).on_list_tools is not Middleware.on_list_tools for each in self.server.middleware)

    async def complete(
        self, ref: CompletionReference, argument: CompletionArgument, context: CompletionContext | None
    ) -> CompletionValues:
        """Return the suggestions of the server's completion handler, or None if it has none.

        Raises:
            ExecutionError: if the handler raised.
        """
        handler = self.server._completion_handler
        if handler is None:
            return None
        try:
            if inspect.iscoroutinefunction(handler):
                values: CompletionValues = await handler(ref, argument, context)
            else:
                suggested = await THREADS.run(handler, ref, argument, context)
                values = await suggested if inspect.isawaitable(suggested) else suggested
            return normalize_completion(values)
        except BaseException as error:  # the handler's boundary
            if is_no_failure(error, inline=False):
                raise
            raise environment_failure("completion", error) from error

    async def enter(self) -> None:
        """Enter the server's lifespan, and give its value to the current request of an MCP client, if there is one.

        One task enters and leaves the lifespan, as lifespans may require.

        Raises:
            ConfigurationError: a tool of the server may run as a background task.
        """
        if self._task is None or self._task.get_loop().is_closed():
            await self._start()
        request = fastmcp_request_ctx.get()
        if request is not None:
            request.lifespan_context = self._lifespan_value

    async def _start(self) -> None:
        started, self._stop = asyncio.Event(), asyncio.Event()
        # An empty context, because the lifespan must not inherit the context of the first step.
        self._task = asyncio.get_running_loop().create_task(
            self._hold(started, self._stop), name="mcpenv-lifespan", context=contextvars.Context()
        )
        _held.add(self._task)
        self._task.add_done_callback(_held.discard)
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        # The task may fail before it sets `started`. Its exception is raised here.
        if self._task.done():
            task, self._task = self._task, None
            task.result()

    async def leave(self) -> None:
        """Leave the server's lifespan."""
        task, self._task = self._task, None
        if task is None or self._stop is None or task.get_loop().is_closed():
            return
        loop = task.get_loop()
        # `close` may run on another loop than the first use, which entered the lifespan.
        loop.call_soon_threadsafe(self._stop.set)
        if loop is asyncio.get_running_loop():
            await asyncio.wait({task})
        elif not loop.is_running():  # a blocking call entered it, and a coroutine leaves it
            without_loop(loop.run_until_complete, asyncio.wait({task}))
        if task.done() and not task.cancelled() and task.exception() is not None:
            logger.error("leaving the lifespan of a mounted server failed", exc_info=task.exception())

    async def _hold(self, started: asyncio.Event, stop: asyncio.Event) -> None:
        await refuse_tasks(self.server)  # FastMCP would ask for the extension that is refused here
        # As the root of its servers, it enters the lifespans of its extensions, too.
        low_level = self.server._mcp_server
        async with low_level.lifespan(low_level) as self._lifespan_value:
            started.set()
            await stop.wait()

    @contextmanager
    def _serve(self, own: Visible, call: Call | None) -> Iterator[None]:
        serving, calling = _serving.set(own), _call.set(call)
        running = run_sync.set(None if call is None else call.run_sync)
        try:
            yield
        finally:
            run_sync.reset(running)
            _call.reset(calling)
            _serving.reset(serving)

    @contextmanager
    def _requested(self, own: Visible, number: int, logs: list[LogEntry]) -> Iterator[None]:
        """Set the session of plain `Context` objects: the MCP client's, or the step's record."""
        request = fastmcp_request_ctx.get()
        if request is not None:
            connection = getattr(request.session, "_connection", None)
            if connection is not None:
                # A 2026-07-28 connection is new for every call; state belongs to the environment.
                connection.state["_fastmcp_state_prefix"] = own.session_id
            session = AnnouncingSession(request.session, own.subscribers, logs)
            token = fastmcp_request_ctx.set(dataclasses.replace(request, session=session))
            try:
                yield
            finally:
                fastmcp_request_ctx.reset(token)
            return
        recording = RecordSession(own.session_id, logs, own.subscribers)
        request_id = f"step-{number}"
        stand_in: Any = FastMCPRequestContext(
            session=recording,
            request_id=request_id,
            meta=None,
            request=None,
            protocol_version="2025-11-25",
            close_sse_stream=None,
            lifespan_context=self._lifespan_value,
            _srctx=_RecordRequest(request_id, recording),  # type: ignore[arg-type]
        )
        token = fastmcp_request_ctx.set(stand_in)
        # Without a client there is no agent's token to check. FastMCP skips such checks for stdio.
        transport = set_transport("stdio")
        try:
            yield
        finally:
            reset_transport(transport)
            fastmcp_request_ctx.reset(token)


class _RecordRequest:
    """The parts of a request that FastMCP's `Context` reads, for calls without an MCP client."""

    def __init__(self, request_id: str, session: RecordSession) -> None:
        self.request_id = request_id
        self.session = session
        self.meta = {"progress_token": request_id}
        self.params = None
        self.method = "tools/call"


class _Failed(ToolError):
    """The failure of an own tool, raised through the server's middleware."""

    def __init__(self, failure: ToolFailure) -> None:
        super().__init__(failure.message, log_level=logging.DEBUG)
        self.failure = failure


class _OwnTool(Component):
    """An own tool of the served environment, as a component of the mounted server."""

    async def run(self, arguments: dict[str, Any]) -> FastMCPResult:
        call = _call.get()
        if call is None:
            raise ToolError(f"{self.name} can be called only as a step of its environment")
        outcome = await call.run(self.name, arguments)
        if isinstance(outcome, InputRequiredResult):
            return InputRequiredToolResult(outcome)
        if isinstance(outcome, ToolFailure):
            raise _Failed(outcome)
        return to_fastmcp(outcome)

    _mcpenv: bool = PrivateAttr(default=True)


class _OwnTools(Provider):
    """The own tools of the environment that currently uses the server."""

    async def _list_tools(self) -> Sequence[Component]:
        own = _serving.get()
        # `_Admitted` adds those that stand in the place of a tool of the server.
        return [] if own is None else [_component(tool) for tool in own if own.source(tool.kind.name) is not None]

    async def _get_tool(self, name: str, version: VersionSpec | None = None) -> Component | None:
        own = _serving.get()
        tool = None if own is None else own.get(name)
        return None if tool is None else _component(tool)


class _Admitted(Transform):
    """The tools of the server as the environment which currently uses it shows them (``tools=``)."""

    async def list_tools(self, tools: Sequence[Component]) -> Sequence[Component]:
        own = _serving.get()
        if own is None:
            return tools
        listed = [
            tool if isinstance(tool, _OwnTool) else own.tools.apply(tool)
            for tool in tools
            if isinstance(tool, _OwnTool) or own.tools.shows(tool.name, own.mode)
        ]
        return [*listed, *(_component(tool) for tool in own if own.source(tool.kind.name) is None)]

    async def get_tool(
        self, name: str, call_next: GetToolNext, *, version: VersionSpec | None = None
    ) -> Component | None:
        own = _serving.get()
        if own is None:
            return await call_next(name, version=version)
        source = own.source(name)
        if source is None:
            mine = own.get(name)
            return None if mine is None else _component(mine)
        tool = await call_next(source, version=version)
        return tool if tool is None or isinstance(tool, _OwnTool) else own.tools.apply(tool)


def _component(tool: BoundTool) -> _OwnTool:
    parsed = tool.kind.component
    return _OwnTool(
        name=parsed.name,
        title=parsed.title,
        description=parsed.description,
        parameters=parsed.parameters,
        output_schema=parsed.output_schema,
        annotations=parsed.annotations,
        tags=parsed.tags,
        meta=parsed.meta,
        icons=parsed.icons,
        version=parsed.version,
        auth=tool.auth,
    )


def _made_by_fastmcp(error: BaseException) -> bool:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and str(traceback.tb_frame.f_globals.get("__name__", "")).startswith("fastmcp.")
