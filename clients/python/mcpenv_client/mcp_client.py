"""The client of production mode over MCP: `MCPToolClient`. Needs ``pip install "mcpenv-client[mcp]"``.

This is the only module of the package that imports ``mcp``.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError

try:
    import httpx2
    from mcp.client.client import Client
    from mcp.client.session import ElicitationFnT
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED, CallToolResult
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
except ImportError as error:
    raise ImportError(
        'mcpenv_client.mcp_client needs the mcp package, version 2.2 or newer: pip install "mcpenv-client[mcp]"'
    ) from error

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

from .connection.addresses import http_base, is_loopback, without_password
from .connection.connection import Owner
from .connection.refused import stated_reason
from .errors import (
    ConnectionFailed,
    InvalidMessage,
    ListingFailed,
    McpenvError,
    OperationTimeout,
    SessionLost,
    ToolCallFailed,
    Unauthorized,
    UnsupportedVersion,
)
from .sync import BlockingClient
from .types.tools import Mode, Tool, ToolResult
from .types.values import to_plain
from .wire.faults import describe_faults

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from typing_extensions import Self

T = TypeVar("T")

Protocol = Literal["auto", "2025-11-25", "2026-07-28"]

_HANDSHAKE = "2025-11-25"
_ERAS = {"auto": "auto", _HANDSHAKE: "legacy", "2026-07-28": "auto"}
"""The mode in which the mcp client negotiates each protocol. To pin the newest would skip the check that a server
exists."""

_MAX_PAGES = 1000
_LAST_WORDS_S = 1.0
_UNAUTHORIZED = 401
_RESERVED = "io.modelcontextprotocol/"
"""The prefix of the protocol's own keys in ``_meta``, such as the server's name. They are not part of a tool's
result.
"""


class MCPToolClient:
    """The client of the agent plane, which uses the tools as a live service, without reset, step or reward.

    Lists and calls the tools of ``/mcp`` of any MCP server. Calls of several tasks run concurrently, as far as the
    server allows. Cancelling a call cancels it on the server too. A lost connection ends the session: every later call
    raises `SessionLost` until `connect` is called again.

    Args:
        base_url: address of the server, with or without ``/mcp``, or of an episode (``.../episodes/<handle>/mcp``).
        mode: "production". For simulation, use `EnvClient`.
        protocol: the protocol version: "2026-07-28" (stateless), "2025-11-25" (with a handshake, which may agree on an
            older one), or "auto", the newest that both ends support.
        headers: the headers of every request, such as ``{"Authorization": "Bearer ..."}``.
        auth: authorizes requests if a header is not enough, for example `mcp.client.auth.OAuthClientProvider`.
        elicitation_callback: answers the questions of tools to the user, as in `mcp.Client`. Without it, such a tool
            gets an error.
        http_client: makes the HTTP client from the arguments of ``httpx2.AsyncClient``, for example a subclass that
            records the outcome of requests.
        connect_timeout_s: maximum seconds to connect, and to close.
        message_timeout_s: maximum seconds to wait for a listing or a result.
        max_message_bytes: maximum size of a result.

    Raises (all methods):
        ConnectionFailed: no connection could be made, or there is no MCP server.
        Unauthorized: the credential is missing or refused.
        UnsupportedVersion: the server does not support ``protocol``.
        SessionLost: the connection ended.
    """

    _session: _Session | None = None

    def __init__(
        self,
        base_url: str,
        mode: Mode | str = Mode.PRODUCTION,
        *,
        protocol: Protocol = "auto",
        headers: Mapping[str, str] | None = None,
        auth: httpx2.Auth | None = None,
        elicitation_callback: ElicitationFnT | None = None,
        http_client: Callable[..., httpx2.AsyncClient] = httpx2.AsyncClient,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 330.0,
        max_message_bytes: int = 100 * 1024 * 1024,
    ) -> None:
        if mode == Mode.SIMULATION:
            raise ValueError("MCPToolClient has no episodes; for mode='simulation' use EnvClient")
        if mode != Mode.PRODUCTION:
            raise ValueError(f"unknown mode {mode!r}; MCPToolClient is for mode='production'")
        if protocol not in _ERAS:
            raise ValueError(f"unknown protocol {protocol!r}; one of {', '.join(_ERAS)}")
        self.url = http_base(base_url, "/mcp") + "/mcp"
        self._protocol = protocol
        self._options = _Options(
            connect_timeout_s,
            message_timeout_s,
            max_message_bytes,
            dict(headers or {}),
            auth,
            elicitation_callback,
            http_client,
        )
        self._connecting = asyncio.Lock()
        self._closed = False

    # -- the session

    async def connect(self) -> None:
        """Open the session. Do nothing if it is open. After a loss, begin a new session."""
        async with self._connecting:
            if self._session is not None and self._session.ended:
                await self._session.close(self._options.connect_timeout_s)
                self._session = None
            if self._session is None:
                session = _Session(self.url, self._protocol, self._options)
                await session.open()
                self._session = session
            self._closed = False

    async def close(self) -> None:
        """End the session. Safe to call twice."""
        async with self._connecting:
            self._closed = True
            session, self._session = self._session, None
        if session is not None:
            await session.close(self._options.connect_timeout_s)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def sync(self) -> SyncMCPToolClient:
        """Return this client with blocking methods. All sync clients of a process share one thread."""
        return SyncMCPToolClient(self)

    @property
    def protocol_version(self) -> str | None:
        """The protocol version in use; None before `connect`."""
        return None if self._session is None else self._session.client.protocol_version

    # -- the tools

    async def list_tools(self) -> list[Tool]:
        """Return the tools that the server shows to this client.

        Raises:
            ListingFailed: the listing failed; ``__cause__`` is the reason. An empty list means that there are no tools.
        """
        shown = without_password(self.url)
        tools: list[Tool] = []
        cursor: str | None = None
        session = await self._open()
        try:
            session.refuse_if_lost()
            for _ in range(_MAX_PAGES):
                listing = session.client.list_tools(cursor=cursor, cache_mode="refresh")
                page = await session.ask(listing, "tools/list", self._options.message_timeout_s)
                tools.extend(_tool(listed) for listed in page.tools)
                cursor = page.next_cursor
                if cursor is None:
                    return tools
        except ValidationError as error:
            raise ListingFailed(shown, describe_faults(error)) from error
        except (McpenvError, MCPError) as error:
            raise ListingFailed(shown, str(error)) from error
        raise ListingFailed(shown, f"no end after {_MAX_PAGES} pages")

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        raise_on_error: bool = True,
        timeout_s: float | None = None,
    ) -> ToolResult:
        """Call one tool.

        Args:
            name: the name in the listing.
            arguments: the arguments, which must fit the tool's input schema.
            raise_on_error: if False, an error is a result with ``is_error`` and the message as text.
            timeout_s: maximum seconds to wait for the result, instead of ``message_timeout_s``.

        Raises:
            ToolCallFailed: the tool failed, there is no tool of that name, or the arguments do not fit.
            OperationTimeout: no result arrived in time; the call was cancelled.
        """
        session = await self._open()
        session.refuse_if_lost()
        limit_s = self._options.message_timeout_s if timeout_s is None else timeout_s
        call = session.client.call_tool(name, to_plain(arguments or {}, "arguments"))
        try:
            result = tool_result(await session.ask(call, name, limit_s))
        except MCPError as error:
            result = _refused(error.error.message)
        except RuntimeError as error:  # raised by mcp: the result does not fit the tool's output schema
            result = _refused(str(error))
        except ValidationError as error:
            raise InvalidMessage(f"{name}: the server's result is not a result of MCP") from error
        if result.is_error and raise_on_error:
            raise ToolCallFailed(name, result.text)
        return result

    async def _open(self) -> _Session:
        if self._session is None:
            if self._closed:
                raise SessionLost("the client was closed; connect() begins a new session")
            await self.connect()
        if self._session is None:  # closed while this call connected
            raise SessionLost("the client was closed")
        return self._session

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():
            return  # modules are being emptied, and the end of the process closes the session
        # This loop can no longer close it, and the session's task would keep it open.
        if self._session is not None and not self._session.over:
            warnings.warn(f"a client of {self._session.url} was not closed", ResourceWarning, source=self, stacklevel=1)
            self._session.leave_soon()


class SyncMCPToolClient(BlockingClient):
    """The blocking form of `MCPToolClient`, returned by `MCPToolClient.sync`."""

    if TYPE_CHECKING:
        # ruff: noqa: D102 - the methods are `MCPToolClient`'s

        def connect(self) -> None: ...
        @property
        def protocol_version(self) -> str | None: ...
        def list_tools(self) -> list[Tool]: ...
        def call_tool(
            self,
            name: str,
            arguments: dict[str, Any] | None = None,
            *,
            raise_on_error: bool = True,
            timeout_s: float | None = None,
        ) -> ToolResult: ...


@dataclass(frozen=True, slots=True)
class _Options:
    connect_timeout_s: float
    message_timeout_s: float
    max_message_bytes: int
    headers: dict[str, str]
    auth: httpx2.Auth | None
    elicitation_callback: ElicitationFnT | None
    http_client: Callable[..., httpx2.AsyncClient]


class _Session:
    """The `mcp` client in a task of its own, because the task that entered it must leave it.

    Attributes:
        url: the address without secrets, for messages.
        client: the `mcp` client; set once `open` has returned.
    """

    client: Client

    def __init__(self, url: str, protocol: str, options: _Options) -> None:
        self._url = url
        self.url = without_password(url)
        self._protocol = protocol
        self._options = options
        self._owner = Owner()
        self._stop = asyncio.Event()
        self._lost: str | None = None
        self._status: int | None = None
        self._reason: str | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        """True if requests can no longer be sent here."""
        return self._why() is not None

    @property
    def over(self) -> bool:
        """True if nothing is left to close. May be read from any thread."""
        return self._task is None or self._task.done() or not self._owner.alive

    def leave_soon(self) -> None:
        """Leave the session without waiting for it, from any thread."""
        self._owner.call_soon(self._stop.set)

    async def open(self) -> None:
        """Connect.

        Raises:
            ConnectionFailed, Unauthorized, UnsupportedVersion: as `MCPToolClient` does.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(ready), name="mcpenv-client mcp session")
        limit_s = self._options.connect_timeout_s
        try:
            await asyncio.wait_for(asyncio.shield(ready), limit_s)
        except (TimeoutError, asyncio.TimeoutError) as error:
            await self.close(0)
            raise ConnectionFailed(self.url, f"no answer within {limit_s:g} s") from error
        except asyncio.CancelledError:
            await self.close(0)
            raise
        except McpenvError:
            raise
        except Exception as error:  # the boundary to mcp and httpx2
            if self._status == _UNAUTHORIZED:
                raise self._unauthorized() from error
            status = "" if self._status is None else f"HTTP {self._status}: "
            reason = self._reason or f"{status}{error or type(error).__name__}"
            raise ConnectionFailed(self.url, reason, http_status=self._status) from error

    async def ask(self, request: Coroutine[Any, Any, T], what: str, limit_s: float) -> T:
        """Await a request of `client`.

        Raises:
            OperationTimeout: no answer arrived within ``limit_s`` seconds.
            SessionLost: the connection ended.
            Unauthorized: the credential has become invalid.
            MCPError: the server refused.
        """
        try:
            return await asyncio.wait_for(request, limit_s)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise OperationTimeout(f"{what}: no answer within {limit_s:g} s") from error
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and self._task is not None:
                # The session's own task has the reason, once it has ended.
                await asyncio.wait({self._task}, timeout=_LAST_WORDS_S)
                self._lost = self._lost or f"the connection to {self.url} ended"
            if self._status == _UNAUTHORIZED:
                raise self._unauthorized() from error
            if self._lost is not None:
                raise SessionLost(self._lost) from error
            raise

    def refuse_if_lost(self) -> None:
        """Raise `SessionLost` if requests can no longer be sent here."""
        why = self._why()
        if why is not None:
            raise SessionLost(why)

    async def close(self, timeout_s: float) -> None:
        """Leave the session, within ``timeout_s`` seconds. Safe to call twice."""
        if self._why() is None:
            self._lost = "the client was closed"
        if self._task is None or self.over:
            return
        self._stop.set()
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self._entered() as client:
                self.client = client
                if not ready.done():
                    ready.set_result(None)
                await self._stop.wait()
        except asyncio.CancelledError:
            self._lost = self._lost or "the event loop is ending"
            ready.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - raised to the caller that opens the session, or to the next one
            cause = _innermost(error)
            if not ready.done():
                ready.set_exception(cause)
            self._lost = self._lost or f"the connection to {self.url} ended: {cause or type(cause).__name__}"

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[Client]:
        options = self._options
        async with options.http_client(
            headers=options.headers,
            auth=options.auth,
            # No timeout for reading: each request has its own, and a tool may send nothing for long.
            timeout=httpx2.Timeout(options.connect_timeout_s, read=None),
            trust_env=not is_loopback(self._url),
            event_hooks={"response": [self._note_status]},
        ) as http:
            transport = streamable_http_client(
                self._url, http_client=http, max_sse_event_size=options.max_message_bytes
            )
            mode, ask = _ERAS[self._protocol], options.elicitation_callback
            async with Client(transport, mode=mode, elicitation_callback=ask) as client:
                version = client.protocol_version
                handshake = version in HANDSHAKE_PROTOCOL_VERSIONS
                if self._protocol != "auto" and handshake != (self._protocol == _HANDSHAKE):
                    raise UnsupportedVersion(f"the server speaks MCP {version}, not {self._protocol}")
                yield client

    async def _note_status(self, response: httpx2.Response) -> None:
        """Record the HTTP status and the reason, because mcp's errors do not contain them."""
        if response.status_code >= 400:
            self._status, self._reason = response.status_code, None
            self._reason = await stated_reason(response)
        if response.status_code == 404 and "mcp-session-id" in response.request.headers:
            self._lost = self._lost or f"{self.url} knows the session no more (HTTP 404)"

    def _unauthorized(self) -> Unauthorized:
        return Unauthorized(f"{self.url} asks for a credential, or for another one (HTTP 401)")

    def _why(self) -> str | None:
        if self._lost is None:
            self._lost = self._owner.why_not()
        return self._lost


def _tool(listed: Any) -> Tool:
    fields = listed.model_dump(mode="json", by_alias=True, exclude_none=True)
    return Tool.from_mcp({**fields, "_meta": _meta(fields.get("_meta"))})


def tool_result(called: CallToolResult) -> ToolResult:
    """Return the result in the form that `EnvClient` gives for the same tool."""
    structured, meta = called.structured_content, _meta(called.meta)
    wrapped = isinstance(structured, dict) and bool((meta or {}).get("fastmcp", {}).get("wrap_result"))
    return ToolResult(
        content=[block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in called.content],
        structured_content=structured,
        data=structured["result"] if wrapped else structured,
        is_error=bool(called.is_error),
        meta=meta,
    )


def _refused(message: str) -> ToolResult:
    """Return a refusal of the server (such as an unknown tool) in the form of a tool's own error."""
    return ToolResult(content=[{"type": "text", "text": message}], is_error=True)


def _meta(meta: Any) -> dict[str, Any] | None:
    """Return ``_meta`` without the protocol's own keys; None if nothing is left."""
    kept = {name: value for name, value in (meta or {}).items() if not name.startswith(_RESERVED)}
    return kept or None


def _innermost(error: Exception) -> Exception:
    """Return the original exception, which task groups may wrap several times."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
