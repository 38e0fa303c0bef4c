"""One connection to one server: it starts, lists its tools, answers calls, and ends."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from fastmcp.client.transports import ClientTransport
from fastmcp.server.providers.proxy import ProxyClient
from fastmcp.telemetry import inject_trace_context
from mcp import ClientSession, MCPError
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp_types import (
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
    LoggingMessageNotificationParams,
    RequestParamsMeta,
    TextContent,
    ToolListChangedNotification,
)
from mcp_types import Prompt as ListedPrompt
from mcp_types import Resource as ListedResource
from mcp_types import ResourceTemplate as ListedTemplate
from mcp_types import Tool as ListedTool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcpenv_client.wire.faults import describe_fault, faults

from .caller import Caller
from .config import ServerSettings, StateOf
from .delivery import (
    CURRENT,
    CallFailed,
    DiscoveryFailed,
    NotDelivered,
    OutcomeUnknown,
    Request,
    UpstreamError,
    WorldLost,
    sending,
)
from .http import http_transport
from .launcher import Launcher
from .loop import UPSTREAMS
from .stdio import ServerProcess
from .workspace import Workspace

logger = logging.getLogger("mcpenv.upstream")

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
"""The key of a result's metadata that names its server, since 2026-07-28. The environment's own server sets it."""

_SSE = "SSE, which this may be an address for, is not supported; give the address for streamable HTTP, often /mcp"

_EARLIER_SDK = "it is written for an earlier MCP SDK; install the package 'mcp<2' beside it (uvx --with 'mcp<2' ...)"

_NEEDS_EARLIER_SDK = re.compile(
    r"No module named 'mcp\.|cannot import name '\w+' from 'mcp[.']|module 'mcp[\w.]*' has no attribute"
    r"|'(?:Server|FastMCP|MCPServer)' object has no attribute|(?:Server|FastMCP|MCPServer)\.\w+\(\) got an unexpected"
)
"""The last words of servers that were written for version 1 of the Python SDK."""

T = TypeVar("T")


@dataclass(frozen=True)
class Offered:
    """The components of a server other than its tools.

    Attributes:
        has_resources: True if it supports resources, even if it lists none.
        completes: True if it suggests values of arguments.
    """

    resources: Sequence[ListedResource] = ()
    templates: Sequence[ListedTemplate] = ()
    prompts: Sequence[ListedPrompt] = ()
    has_resources: bool = False
    completes: bool = False


class Upstream:
    """A connection to a server. All methods run on the loop of `UPSTREAMS`, one at a time.

    Args:
        name: the server's name in the configuration.
        settings: its settings.
        launcher: starts its processes; None for a server at a URL.
        workspace: the episode's folder, if a server uses one.

    Attributes:
        tools_changed: True after the server has reported a change of its tools, until the next `list_tools`.
        suspect: True once a call was left without an answer: it may still be running.
        reuses: resets since the start of this process or session.
    """

    def __init__(
        self, name: str, settings: ServerSettings, launcher: Launcher | None, workspace: Workspace | None
    ) -> None:
        self.name = name
        self.settings = settings
        self.launcher = launcher
        self.suspect = False
        self.reuses = 0
        self._workspace = workspace
        self._client: ProxyClient[Any] | None = None
        self._process: ServerProcess | None = None
        self._caller: Caller | None = None
        self._forgotten = False
        self._following: asyncio.Task[None] | None = None
        self.tools_changed = False
        self._announces = False

    async def open(self) -> list[ListedTool]:
        """Start or connect, and return the server's tools.

        Raises:
            DiscoveryFailed: the server did not start, or did not list its tools in time.
        """
        assert self._client is None
        transport: ClientTransport
        self._process, self._forgotten, self.tools_changed = None, False, False
        self.suspect, self.reuses = False, 0
        if self.launcher is not None:
            start = partial(self.launcher.start, self._workspace)
            transport = self._process = ServerProcess(start, self.launcher.names(self._workspace))
        else:
            assert self.settings.url is not None
            transport = http_transport(self.settings.url, self.settings.headers)
        client: ProxyClient[Any] = ProxyClient(
            transport,
            mode="auto",
            forward_incoming_headers=False,
            init_timeout=self.settings.start_timeout_s,
            roots=None,
            sampling_handler=None,
            elicitation_handler=self._ask,
            progress_handler=None,
            message_handler=self._hear,
            log_handler=self._log,
        )
        with sending(starting=True) as request:
            try:
                async with asyncio.timeout(self.settings.start_timeout_s):
                    await client.__aenter__()  # type: ignore[no-untyped-call]
                    tools = await client.list_tools()
            except Exception as error:  # of the client, of its transport, of the server
                await self._disconnect(client)
                raise DiscoveryFailed(self._why_not_started(error, request)) from error
        self._client = client
        self._follow_tools(client)
        return tools

    async def open_in_turn(self) -> list[ListedTool]:
        """Call `open` once few enough processes are starting. The wait is not part of the start timeout.

        A process that has ended is closed first.
        """
        await self.close()
        if self.launcher is None:
            return await self.open()
        async with UPSTREAMS.starts:
            return await self.open()

    async def list_tools(self) -> list[ListedTool]:
        """Return the server's tools as they are now.

        Raises:
            DiscoveryFailed: it did not list them in time.
        """
        client = self._live(DiscoveryFailed)
        self.tools_changed = False
        self._follow_tools(client)
        async with self._listing("tools"):
            return await client.list_tools()

    async def offered(self) -> Offered:
        """Return the server's resources, templates and prompts as they are now.

        Raises:
            DiscoveryFailed: it did not list them in time.
        """
        client = self._live(DiscoveryFailed)
        has = client.server_capabilities
        if has is None:
            return Offered()
        async with self._listing("components"):
            return Offered(
                await _listed(client.list_resources()) if has.resources else (),
                await _listed(client.list_resource_templates()) if has.resources else (),
                await _listed(client.list_prompts()) if has.prompts else (),
                has.resources is not None,
                has.completions is not None,
            )

    @asynccontextmanager
    async def _listing(self, what: str) -> AsyncIterator[None]:
        """Limit the time of a listing, and raise `DiscoveryFailed` for any failure of it."""
        try:
            async with asyncio.timeout(self.settings.start_timeout_s):
                yield
        except Exception as error:  # of the client, of its transport, of the server
            raise DiscoveryFailed(f"server {self.name!r} did not list its {what}: {_cause(error)}") from error

    def _live(self, failure: type[UpstreamError]) -> ProxyClient[Any]:
        """Return the client of the connection, or raise this failure if the connection is dead."""
        if self._client is None or self.dead:
            raise failure(f"server {self.name!r} has ended{self._exit()}")
        return self._client

    @property
    def dead(self) -> bool:
        """True if the server's process has ended, there is no connection, or the server has lost its session."""
        return self._client is None or self._forgotten or (self._process is not None and self._process.dead)

    @property
    def identity(self) -> dict[str, Any]:
        """The name, version and protocol version that the server reported."""
        assert self._client is not None
        info = self._client.server_info
        return {
            "name": None if info is None else info.name,
            "version": None if info is None else info.version,
            "protocol": self._client.protocol_version,
        }

    @property
    def instructions(self) -> str | None:
        """The server's instructions for agents."""
        return None if self._client is None else self._client.instructions

    async def call(self, tool: str, arguments: dict[str, Any], caller: Caller) -> CallToolResult | InputRequiredResult:
        """Call a tool. An error answer of the server is a result with ``is_error``.

        Raises:
            NotDelivered: the server cannot have seen the call.
            OutcomeUnknown: the call may have run.
            WorldLost: the server has lost its session.
        """
        client, self._caller = self._live(NotDelivered), caller
        was_suspect, self.suspect = self.suspect, True  # until there is an answer
        with sending() as request:
            try:
                answer = await client.session.call_tool(
                    tool,
                    arguments,
                    progress_callback=caller.progress,
                    meta=cast("RequestParamsMeta | None", inject_trace_context(caller.meta) or None),
                    input_responses=caller.answers,
                    request_state=caller.request_state,
                    allow_input_required=True,
                )
                self.suspect = was_suspect
            except ValidationError as error:
                raise OutcomeUnknown(f"server {self.name!r} gave an answer that is no tool result") from error
            except Exception as error:  # of the client, of its transport, or the server's answer
                failure = await self._failure(request, error)
                if failure is not None:
                    raise failure from error
                if not isinstance(error, MCPError):
                    raise
                self.suspect = was_suspect
                return _error_answer(error)
            finally:
                self._caller = None
        assert isinstance(answer, CallToolResult | InputRequiredResult)
        return answer

    async def call_alone(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call a tool for the environment itself, outside of a step; messages of the server are dropped.

        Raises:
            CallFailed: the server did not answer.
        """
        try:
            return await self.ask(lambda session: session.call_tool(tool, arguments))
        except MCPError as error:
            return _error_answer(error)

    async def ask(self, question: Callable[[ClientSession], Awaitable[T]]) -> T:
        """Return the answer to a request other than a tool call.

        Raises:
            MCPError: the server's answer is an error.
            CallFailed: the server did not answer.
        """
        session = self._live(NotDelivered).session
        with sending() as request:
            try:
                async with asyncio.timeout(self.settings.call_timeout_s):
                    return await question(session)
            except TimeoutError as error:
                raise OutcomeUnknown(f"server {self.name!r} did not answer in time") from error
            except Exception as error:  # of the client, of its transport, or the server's answer
                failure = await self._failure(request, error)
                if failure is not None:
                    raise failure from error
                if isinstance(error, MCPError):
                    raise
                raise OutcomeUnknown(f"server {self.name!r} gave an answer that cannot be used") from error

    async def close(self) -> None:
        """End the session, and the process with it. Idempotent."""
        client, self._client = self._client, None
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        if client is not None:
            await self._disconnect(client)

    @property
    def may_change_unnoticed(self) -> bool:
        """True if the server may get other tools without a notification, as aggregators and plugins do.

        Some that declare `listChanged` never send one. It counts once the server has sent its first.
        """
        return not self._announces and self.settings.where is not StateOf.NONE

    def _follow_tools(self, client: ProxyClient[Any]) -> None:
        """Subscribe to changes of the tools: since 2026-07-28 a server reports them to subscribers only."""
        has = client.server_capabilities
        told = has is not None and has.tools is not None and has.tools.list_changed
        following = self._following is not None and not self._following.done()
        if told and not following and client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            self._following = asyncio.create_task(self._follow(client.session))

    async def _follow(self, session: ClientSession) -> None:
        CURRENT.set(Request())  # so that a fault of this request ends no other one
        try:
            async with listen(session, tools_list_changed=True) as changes:
                async for _ in changes:
                    self.tools_changed = self._announces = True
        except MCPError as error:
            logger.debug("server %r tells no changes of its tools: %s", self.name, error)
        except SubscriptionLost:
            self.tools_changed = True  # changes may have been missed: list again, and subscribe again

    async def _disconnect(self, client: ProxyClient[Any]) -> None:
        try:
            await client.close()  # type: ignore[no-untyped-call]
        except Exception:  # the failure that ended the session, which its caller has already received
            logger.debug("the session with server %r had failed", self.name, exc_info=True)

    async def _failure(self, request: Request, error: Exception) -> CallFailed | None:
        """Return the exception for a call without an answer; None if the server has answered with an error."""
        if request.world_lost:
            self._forgotten = True
            lost = WorldLost if self.settings.where is StateOf.SESSION else NotDelivered
            return lost(f"server {self.name!r} has forgotten its session")
        if self.settings.url is not None and isinstance(error, MCPError) and error.error.code == PARSE_ERROR:
            # The SDK created this error itself. A server has no reason for it, as the request was JSON.
            return OutcomeUnknown(f"server {self.name!r}: its event stream has what is no message")
        if request.fault is None and not self.dead:
            return None
        if self._process is not None and self._process.fault is not None:
            return OutcomeUnknown(f"server {self.name!r}: {self._process.fault}")
        if self._process is not None:
            await self._process.exited()
            tail = self._process.stderr_tail
            logger.warning(
                "server %r has ended%s; the end of its stderr:\n%s", self.name, self._exit(), tail or "(nothing)"
            )
        fault = request.fault or f"it has ended{self._exit()}"
        kind = OutcomeUnknown if request.sent else NotDelivered
        return kind(f"server {self.name!r}: {fault}")

    async def _log(self, message: LoggingMessageNotificationParams) -> None:
        data = message.data.get("msg", message.data) if isinstance(message.data, dict) else message.data
        text = data if isinstance(data, str) else json.dumps(data, default=str)
        if self._caller is not None:
            self._caller.log(message.level, text)
        else:
            logger.debug("%s: %s", self.name, text)

    async def _ask(self, message: str, response_type: Any, params: ElicitRequestParams, context: Any) -> ElicitResult:
        """Forward a question of a handshake-era server to the caller during a call."""
        if self._caller is None:
            raise RuntimeError("there is no call in progress whose client could be asked")
        return await self._caller.ask(params)

    async def _hear(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.tools_changed = self._announces = True

    def _why_not_started(self, error: Exception, request: Request) -> str:
        what = self.settings.url or self.settings.command
        if self._process is None:
            seen = "" if request.fault is None else f" ({request.fault})"
            is_sse = urlsplit(str(what)).path.rstrip("/").endswith("/sse") or "405" in seen
            hint = f"; {_SSE}" if is_sse else ""
            return f"server {self.name!r} ({what}) cannot be used: {_cause(error)}{seen}{hint}"
        tail = self._process.stderr_tail
        said = f"; the end of its stderr:\n{tail}" if tail else ""
        isolated = self.launcher is not None and self.launcher.isolated
        where = " in its sandbox (see its keys network and isolation)" if isolated else ""
        hint = f"; {_EARLIER_SDK}" if _NEEDS_EARLIER_SDK.search(tail) else ""
        status = "" if isinstance(_root_of(error), ValidationError) else self._exit()  # it was ended here
        return f"server {self.name!r} ({what}) did not start{where}: {_cause(error)}{status}{hint}{said}"

    def _exit(self) -> str:
        status = None if self._process is None else self._process.exit_status
        return "" if status is None else f" with status {status}"


async def _listed(listing: Awaitable[Sequence[T]]) -> Sequence[T]:
    """Return a list; empty if the server lacks the method, as servers with resources often have no templates."""
    try:
        return await listing
    except MCPError as error:
        if error.error.code != METHOD_NOT_FOUND:
            raise
        return ()


def _error_answer(error: MCPError) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=error.error.message)], is_error=True)


def _root_of(error: Exception) -> Exception:
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def _cause(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    error = _root_of(error)
    if isinstance(error, ValidationError):
        fault = faults(error)[0]
        match fault["loc"]:
            case ("tools", int(number), "inputSchema" | "outputSchema" as schema, "type"):
                return f'its tool number {number + 1} has no "type": "object" in its {schema}, which MCP requires'
            case _:
                return f"it lists what MCP does not allow: {describe_fault(fault)}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
