"""The agent plane: one FastMCP server in front of environments, which exposes tools and nothing else.

FastMCP implements MCP. This server finds the execution of a request and calls the core. Rewards, done and episodes stay
hidden.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.prompts.base import Prompt
from fastmcp.resources.base import Resource
from fastmcp.resources.template import ResourceTemplate
from fastmcp.server.auth import AuthProvider
from fastmcp.server.completions import CompletionReference, CompletionValues
from fastmcp.server.dependencies import fastmcp_request_ctx
from fastmcp.server.extensions import ServerExtension
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.providers import Provider
from fastmcp.server.telemetry import server_span
from fastmcp.tools.base import InputRequiredToolResult
from fastmcp.tools.base import Tool as Component
from fastmcp.tools.base import ToolResult as FastMCPResult
from fastmcp.utilities.components import FastMCPComponent
from fastmcp.utilities.versions import VersionSpec
from mcp.server.context import CallNext as MCPCallNext
from mcp.server.context import HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import x_mcp_header_map
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CompletionArgument,
    CompletionContext,
    Icon,
    ToolAnnotations,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcpenv import tracing
from mcpenv.failures import unknown_tool
from mcpenv.tools.access import AuthChecks, Listing, admits
from mcpenv.tools.results import to_fastmcp
from mcpenv_client.errors import (
    EpisodeDone,
    ExecutionError,
    NotSerializable,
    OperationTimeout,
    SessionLost,
    WireError,
)
from mcpenv_client.types.records import Plane
from mcpenv_client.types.tools import Tool, ToolErrorType
from mcpenv_client.types.values import refuse_unrecordable

from .components import CompletingProvider
from .context import NOT_ASKED
from .episode import OVER
from .execution import AgentCall, Execution
from .mounted.mounted_server import MountedServer
from .server_settings import NO_SETTINGS, ServerSettings
from .subscriptions import Subscriptions
from .tool_call import InputRequired

T = TypeVar("T")


class Lister(Protocol):
    """The object that answers listings: an execution, or a stand-in for executions that do not exist yet."""

    mounted: MountedServer | None

    @property
    def provider(self) -> Provider | None:
        """The provider of the environment's own resources and prompts."""
        ...

    async def listing(self) -> Listing:
        """Return the tools, and the checks of the agents that may use them."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """The execution and the episode that a call addresses.

    Attributes:
        execution: the execution.
        episode_id: the only episode that the call may act on; None for the current one.
        principal: the authenticated agent.
    """

    execution: Execution
    episode_id: str | None = None
    principal: str | None = None


class Finder(Protocol):
    """Find the execution of the current MCP request."""

    async def to_list(self) -> Lister:
        """Return the object that answers listings: the request's own execution if it exists, else a stand-in.

        Raises:
            WireError: if there is no execution and no stand-in.
        """
        ...

    async def to_call(self) -> Target:
        """Return the request's own execution, created if needed.

        Raises:
            WireError: if there is no execution and none can be created.
        """
        ...


class OnlyExecution:
    """The finder of an environment's own FastMCP server, which has one execution."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    async def to_list(self) -> Execution:
        """Return the execution."""
        return self._execution

    async def to_call(self) -> Target:
        """Return the execution as a target."""
        return Target(self._execution)


class AgentServer(FastMCP):
    """The FastMCP server of the agent plane. Its only provider uses the `Finder`, and its calls go to the core.

    Args:
        name: the name of the server.
        finder: finds executions.
        instructions: the text for clients.
        version: the version of the server.
        auth: authenticates agents.
        settings: the other settings, from a mounted server.
        request_middleware: middleware of the low-level server, around every request.
    """

    def __init__(
        self,
        name: str,
        finder: Finder,
        *,
        instructions: str | None = None,
        version: str | None = None,
        auth: AuthProvider | None = None,
        settings: ServerSettings = NO_SETTINGS,
        request_middleware: Sequence[ServerMiddleware[Any]] = (),
    ) -> None:
        super().__init__(
            name,
            instructions=instructions,
            version=version,
            auth=auth,
            website_url=settings.website_url,
            icons=list(settings.icons) or None,
            list_page_size=settings.list_page_size,
            cache_ttl=settings.cache_ttl_s,
            cache_scope=settings.cache_scope,
            experimental_capabilities=dict(settings.experimental_capabilities),
            middleware=[_OtherMessages(settings.middleware)] if settings.middleware else None,
            dereference_schemas=False,
            resource_security=None,  # a mounted server screens its own, by its own policy
        )
        # The default swallows a provider's error and lists nothing, so a dead session would look empty.
        self.provider_error_strategy = "raise"
        self._finder = finder
        subscriptions = Subscriptions(finder.to_call)
        subscriptions.register(self._mcp_server)
        self._mcp_server.middleware.extend([_ask_for_progress, *request_middleware])
        # FastMCP 4.2 looks schemas up in a cache by name, which lacks the tools of a session. Without that lookup, mcp
        # lists the tools of the request's own session.
        self._mcp_server.get_tool_input_schema = None
        self._environments = _Environments(finder, subscriptions)
        self.providers.remove(self.local_provider)
        self.add_provider(self._environments)
        self.add_completion_handler(self._environments.complete)
        for identifier, told in settings.extensions.items():
            self.add_extension(_Declared(identifier, told))
        if settings.extensions:
            self._mcp_server.middleware.append(self._answer)
        if settings.request_states is not None:
            own = next(each for each in self._mcp_server.middleware if isinstance(each, RequestStateBoundary))
            self._mcp_server.middleware[self._mcp_server.middleware.index(own)] = settings.request_states

    async def _answer(self, ctx: ServerRequestContext[Any, Any], call_next: MCPCallNext) -> HandlerResult:
        """Pass a request without a handler here to the mounted server: it belongs to one of its extensions."""
        if ctx.request_id is not None and self._mcp_server.get_request_handler(ctx.method) is None:
            mounted = await self._environments.mounted()
            entry = None if mounted is None else mounted.server._mcp_server.get_request_handler(ctx.method)
            if entry is not None:
                return await entry.handler(ctx, entry.params_type.model_validate(ctx.params or {}, by_name=False))
        return await call_next(ctx)

    def learn(self, listing: Listing) -> None:
        """Let calls skip the listing that `mcp` makes before each call to find mirrored arguments.

        After this, it reads only the schemas given here, of tools that have mirrored arguments (``x-mcp-header``).
        Tools with ``auth=`` are left out, because its errors would reveal them.
        """
        mirrored = {
            tool.name: tool.input_schema
            for tool in listing.tools
            if tool.name not in listing.checks and x_mcp_header_map(tool.input_schema)
        }
        self._mcp_server.get_tool_input_schema = mirrored.get

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        version: VersionSpec | None = None,
        run_middleware: bool = True,
    ) -> FastMCPResult:
        """Call a tool of the request's environment, through the middleware of this server if there is any.

        Raises:
            MCPError: if there is no such tool (-32602; MCP 2025-11-25, server/tools, "Error Handling"), or name or
                arguments are not JSON.
            ToolError: if the tool failed, or the episode is over.
        """
        if run_middleware and self.middleware:
            return await super().call_tool(name, arguments, version=version)
        if not tracing.enabled():
            return await self._call(name, arguments)
        with server_span(f"tools/call {name}", "tools/call", self.name, "tool", name, tool_name=name):
            return await self._call(name, arguments)

    async def _call(self, name: str, arguments: dict[str, Any] | None) -> FastMCPResult:
        try:
            # The parser of the 2026-07-28 era accepts values that are not JSON. They must not get into a record.
            refuse_unrecordable([name, arguments], "params")
        except NotSerializable as error:
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from None
        try:
            target = await self._finder.to_call()
            tools = target.execution.tools
            listed = tools.version
            tool = tools.by_mode[target.execution.mode].get(name)
            if tool is not None and tool.auth is not None and not await admits(self, tool.auth, tool.kind.component):
                raise await self._not_found(name)
            client = AgentCall()
            record = await client.result(
                target.execution.call_tool(
                    name,
                    arguments or {},
                    plane=Plane.AGENT,
                    principal=target.principal,
                    episode_id=target.episode_id,
                    client=client,
                )
            )
            if tools.version != listed:
                await _announce_change()
        except InputRequired as asked:
            return InputRequiredToolResult(asked.result)
        except EpisodeDone:
            raise ToolError(OVER) from None
        except SessionLost:
            raise ToolError("This session is over.") from None
        except WireError as error:
            raise ToolError(_for_agent(error)) from error
        failure = record.outcome.error
        if failure is None:
            result = record.outcome.result
            assert result is not None
            return to_fastmcp(result)
        if failure.error_type is ToolErrorType.TOOL_NOT_FOUND:
            raise await self._not_found(name)
        raise ToolError(failure.message)

    async def _not_found(self, name: str) -> MCPError:
        """Return the refusal of an unknown tool, with the names of those that this agent may use."""
        names = [tool.name for tool in await self.list_tools()]
        return MCPError(code=INVALID_PARAMS, message=unknown_tool(name, names).message)


class _Environments(Provider):
    """The components of the environment of the current request."""

    def __init__(self, finder: Finder, subscriptions: Subscriptions) -> None:
        super().__init__()
        self._finder = finder
        self._subscriptions = subscriptions

    async def _list_tools(self) -> Sequence[Component]:
        listing = await (await self._lister()).listing()
        return [_listed(spec, listing.checks.get(spec.name), listing.icons.get(spec.name)) for spec in listing.tools]

    async def _get_tool(self, name: str, version: VersionSpec | None = None) -> Component | None:
        return next((tool for tool in await self._list_tools() if tool.name == name), None)

    async def _list_resources(self) -> Sequence[Resource]:
        return [each for provider in await self._providers() for each in await provider.list_resources()]

    async def _get_resource(self, uri: str, version: VersionSpec | None = None) -> Resource | None:
        return await self._first(lambda provider: provider.get_resource(uri, version))

    async def _list_resource_templates(self) -> Sequence[ResourceTemplate]:
        return [each for provider in await self._providers() for each in await provider.list_resource_templates()]

    async def _get_resource_template(self, uri: str, version: VersionSpec | None = None) -> ResourceTemplate | None:
        return await self._first(lambda provider: provider.get_resource_template(uri, version))

    async def _list_prompts(self) -> Sequence[Prompt]:
        return [each for provider in await self._providers() for each in await provider.list_prompts()]

    async def _get_prompt(self, name: str, version: VersionSpec | None = None) -> Prompt | None:
        return await self._first(lambda provider: provider.get_prompt(name, version))

    async def complete(
        self, ref: CompletionReference, argument: CompletionArgument, context: CompletionContext | None
    ) -> CompletionValues:
        """Return the environment's suggestions for an argument of a prompt or a resource template."""
        mounted = await self.mounted()
        try:
            suggested = None if mounted is None else await mounted.complete(ref, argument, context)
        except ExecutionError as error:
            raise MCPError(code=INTERNAL_ERROR, message=error.message) from error
        if suggested is not None:
            return suggested
        own = await self._own_provider()
        return await own.complete(ref, argument, context) if isinstance(own, CompletingProvider) else None

    async def get_tasks(self) -> Sequence[FastMCPComponent]:
        # FastMCP calls this at startup, without a request and so without an environment.
        return []

    async def _lister(self) -> Lister:
        try:
            lister = await self._finder.to_list()
        except WireError as error:
            # Anything but an MCPError is masked in the 2026-07-28 era.
            raise MCPError(code=INTERNAL_ERROR, message=error.message) from error
        self._subscriptions.follow(lister)
        return lister

    async def mounted(self) -> MountedServer | None:
        """Return the running mounted server of the request's environment; None if it has none."""
        mounted = (await self._lister()).mounted
        if mounted is not None:
            await mounted.enter()
        return mounted

    async def _providers(self) -> list[Provider]:
        """Return the providers for listings."""
        mounted, own = await self.mounted(), (await self._lister()).provider
        return [*([] if mounted is None else [mounted.provider]), *([] if own is None else [own])]

    async def _own_provider(self) -> Provider | None:
        """Return the provider of the request's own instance. Create the instance if there is only a stand-in."""
        lister = await self._lister()
        if lister.provider is None or isinstance(lister, Execution):
            return lister.provider
        try:
            return (await self._finder.to_call()).execution.provider
        except WireError as error:
            raise MCPError(code=INTERNAL_ERROR, message=error.message) from error

    async def _first(self, question: Callable[[Provider], Awaitable[T | None]]) -> T | None:
        """Return the component from the first provider that finds it."""
        mounted = await self.mounted()
        found = None if mounted is None else await question(mounted.provider)
        if found is None and (own := await self._own_provider()) is not None:
            found = await question(own)
        return found


class _Declared(ServerExtension):
    """The declaration of a mounted server's extension, for clients.

    `AgentServer._answer` serves its requests. The mounted server runs its ``intercept_tool_call`` and its lifespan.
    """

    def __init__(self, identifier: str, settings: dict[str, Any]) -> None:
        self.identifier = identifier
        self._settings = settings

    def settings(self) -> dict[str, Any]:
        return self._settings


_OF_COMPONENTS = frozenset(
    {
        "tools/call",
        "tools/list",
        "resources/read",
        "resources/list",
        "resources/templates/list",
        "prompts/get",
        "prompts/list",
    }
)
"""The requests for which the mounted server runs its middleware itself."""


class _OtherMessages(Middleware):
    """The middleware of a mounted server for messages that do not reach that server: initialize, ping, ..."""

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = middleware

    async def __call__(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        if context.method not in _OF_COMPONENTS:
            for each in reversed(self._middleware):
                call_next = partial(each, call_next=call_next)
        return await call_next(context)


async def _ask_for_progress(ctx: ServerRequestContext[Any, Any], call_next: MCPCallNext) -> HandlerResult:
    """Give every call a progress token, so that progress is recorded. Middleware of the low-level server."""
    if ctx.method == "tools/call" and not (ctx.meta or {}).get("progress_token"):
        ctx = replace(ctx, meta={**(ctx.meta or {}), "progress_token": NOT_ASKED})
    return await call_next(ctx)


def _for_agent(error: WireError) -> str:
    """Return the text of an error for an agent. It hides which user code failed, because some of it scores."""
    if isinstance(error, ExecutionError):
        return f"The call could not be completed{f' (incident {error.incident})' if error.incident else ''}."
    if isinstance(error, OperationTimeout):
        return "The call could not be completed in time."
    return error.message


async def _announce_change() -> None:
    """Notify the calling client that its call changed the tools. Since 2026-07-28, only subscribers are notified."""
    request = fastmcp_request_ctx.get()
    if request is not None and request.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        await request.session.send_notification(ToolListChangedNotification(), related_request_id=request.request_id)


def _listed(spec: Tool, auth: AuthChecks | None, icons: list[Icon] | None) -> Component:
    return Component(
        name=spec.name,
        title=spec.title,
        description=spec.description,
        parameters=spec.input_schema,
        output_schema=spec.output_schema,
        annotations=None if spec.annotations is None else ToolAnnotations.model_validate(spec.annotations),
        tags=set((spec.meta or {}).get("fastmcp", {}).get("tags", ())),
        meta=spec.meta,
        icons=icons,
        auth=auth,
    )


__all__ = ["OVER", "AgentServer", "Finder", "Lister", "OnlyExecution", "Target"]
