"""MCPToolClient: production mode, over real MCP. Needs ``pip install "mcpenv-client[mcp]"``.

The one module that imports ``mcp``; nothing else of this package imports it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError

try:
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolResult
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
except ImportError as error:
    raise ImportError(
        'mcpenv_client.mcp needs the mcp package, version 2.2 or newer: pip install "mcpenv-client[mcp]"'
    ) from error

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

from .connection import Owner, http_base, is_loopback, without_password
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
from .tools import Mode, Tool, ToolResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from typing_extensions import Self

T = TypeVar("T")

Protocol = Literal["auto", "2025-11-25", "2026-07-28"]

_MODES: dict[str, str] = {"auto": "auto", "2025-11-25": "legacy", "2026-07-28": "auto"}
_MAX_PAGES = 1000
_RESERVED = "io.modelcontextprotocol/"
"""Prefix of the protocol's own keys in ``_meta``: the server's name and the like, no part of a tool's result."""


class MCPToolClient:
    """A client of the agent plane: the tools as a live service, without reset, step or reward.

    Lists and calls tools of ``/mcp`` of any MCP server. Calls from several tasks run side by side as far as the server
    lets them; cancelling a call cancels it at the server too. A lost connection ends the session: every later call is
    `SessionLost` until `connect` is asked for a new one.

    Args:
        base_url: address of the server, with or without ``/mcp``, or of an episode (``.../episodes/<handle>/mcp``).
        mode: "production". Simulation is `EnvClient`'s.
        protocol: the era to speak: "2026-07-28" (stateless), "2025-11-25" (the handshake one and what it falls back
            to), or "auto", the newest that both ends know.
        headers: of every request: ``{"Authorization": "Bearer ..."}``.
        connect_timeout_s: seconds to connect, and to close.
        message_timeout_s: seconds to wait for a listing or a result.

    Raises (all methods):
        ConnectionFailed: no connection could be made, or no MCP server is there.
        Unauthorized: the server asks for a credential, or for another one.
        UnsupportedVersion: the server does not speak ``protocol``.
        SessionLost: the connection ended.
    """

    def __init__(
        self,
        base_url: str,
        mode: Mode | str = Mode.PRODUCTION,
        *,
        protocol: Protocol = "auto",
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 330.0,
    ) -> None:
        if mode == Mode.SIMULATION:
            raise ValueError("MCPToolClient has no episodes; for mode='simulation' use EnvClient")
        if mode != Mode.PRODUCTION:
            raise ValueError(f"unknown mode {mode!r}; MCPToolClient is for mode='production'")
        if protocol not in _MODES:
            raise ValueError(f"unknown protocol {protocol!r}; one of {', '.join(_MODES)}")
        self.url = http_base(base_url, "/mcp") + "/mcp"
        self._protocol = protocol
        self._headers = dict(headers or {})
        self._connect_timeout_s = connect_timeout_s
        self._message_timeout_s = message_timeout_s
        self._connecting = asyncio.Lock()
        self._session: _Session | None = None
        self._closed = False

    # -- the session

    async def connect(self) -> None:
        """Open the session; does nothing if it is open. After a loss this begins a new one."""
        async with self._connecting:
            if self._session is not None and self._session.ended:
                await self._session.close(self._connect_timeout_s)
                self._session = None
            if self._session is None:
                session = _Session(self.url, self._protocol, self._headers, self._connect_timeout_s)
                await session.open(self._connect_timeout_s)
                self._session = session
            self._closed = False

    async def close(self) -> None:
        """End the session. Safe to call twice."""
        async with self._connecting:
            self._closed = True
            session, self._session = self._session, None
        if session is not None:
            await session.close(self._connect_timeout_s)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def sync(self) -> SyncMCPToolClient:
        """The same client with blocking methods. All sync clients of a process share one thread."""
        return SyncMCPToolClient(self)

    @property
    def protocol_version(self) -> str | None:
        """The protocol version in use; None before `connect`."""
        return None if self._session is None else self._session.client.protocol_version

    # -- the tools

    async def list_tools(self) -> list[Tool]:
        """The tools that the server shows to this client.

        Raises:
            ListingFailed: the listing failed (``__cause__`` says why). An empty list means that there are no tools.
        """
        session = await self._open()
        shown = without_password(self.url)
        tools: list[Tool] = []
        cursor: str | None = None
        try:
            for _ in range(_MAX_PAGES):
                page = await session.ask(
                    session.client.list_tools(cursor=cursor, cache_mode="refresh"), "tools/list", self._message_timeout_s
                )
                tools.extend(_tool(listed) for listed in page.tools)
                cursor = page.next_cursor
                if cursor is None:
                    return tools
        except (McpenvError, MCPError, ValidationError) as error:
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
            name: as listed.
            arguments: that fit its input schema.
            raise_on_error: if False, an error is a result with ``is_error``, whose text says what went wrong.
            timeout_s: seconds to wait for the result, instead of ``message_timeout_s``.

        Raises:
            ToolCallFailed: the tool failed, there is none of that name, or the arguments do not fit.
            OperationTimeout: no result came in time; the call was cancelled.
        """
        session = await self._open()
        limit_s = self._message_timeout_s if timeout_s is None else timeout_s
        call = session.client.call_tool(name, arguments or {}, read_timeout_seconds=limit_s)
        try:
            result = _result(await session.ask(call, name, limit_s))
        except MCPError as refused:
            result = _refused(refused.error.message)
        except ValidationError as error:
            raise InvalidMessage(f"{name}: the server's result is none of MCP") from error
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
        self._session.refuse_if_lost()
        return self._session


class SyncMCPToolClient(BlockingClient):
    """`MCPToolClient` with blocking methods: what `MCPToolClient.sync` gives."""

    if TYPE_CHECKING:
        # ruff: noqa: D102 - the methods are `MCPToolClient`'s

        def connect(self) -> None: ...
        def close(self) -> None: ...
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


class _Session:
    """One `mcp` client in a task of its own: it must be left in the task that entered it, whoever closes it."""

    client: Client

    def __init__(self, url: str, protocol: str, headers: dict[str, str], connect_timeout_s: float) -> None:
        self._url = url
        self._protocol = protocol
        self._headers = headers
        # No limit on reading: each request has its own, and a tool may be silent for long.
        self._timeout = httpx2.Timeout(connect_timeout_s, read=None)
        self._owner = Owner()
        self._stop = asyncio.Event()
        self._lost: str | None = None
        self._status: int | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more can be asked here."""
        return self._why() is not None

    async def open(self, timeout_s: float) -> None:
        """Connect.

        Raises:
            ConnectionFailed, Unauthorized, UnsupportedVersion: as `MCPToolClient` does.
        """
        shown = without_password(self._url)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(ready), name="mcpenv-client mcp session")
        try:
            await asyncio.wait_for(asyncio.shield(ready), timeout_s)
        except (TimeoutError, asyncio.TimeoutError) as error:
            await self.close(0)
            raise ConnectionFailed(shown, f"no answer within {timeout_s:g} s") from error
        except asyncio.CancelledError:
            await self.close(0)
            raise
        except McpenvError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary to mcp and httpx2, which raise what they like
            if self._status == 401:
                raise Unauthorized(f"{shown} asks for a credential (HTTP 401)") from error
            status = "" if self._status is None else f"HTTP {self._status}: "
            raise ConnectionFailed(shown, f"{status}{error or type(error).__name__}") from error

    async def ask(self, request: Coroutine[Any, Any, T], what: str, limit_s: float) -> T:
        """Await a request of `client`.

        Raises:
            OperationTimeout: no answer within ``limit_s`` seconds.
            SessionLost: the connection ended.
            MCPError: the server refused.
        """
        try:
            return await asyncio.wait_for(request, limit_s)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise OperationTimeout(f"{what}: no answer within {limit_s:g} s") from error
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise OperationTimeout(f"{what}: no answer within {limit_s:g} s") from error
            if error.code == CONNECTION_CLOSED:
                raise self._lose() from error
            raise

    def refuse_if_lost(self) -> None:
        """Raise `SessionLost` if nothing more can be asked here."""
        why = self._why()
        if why is not None:
            raise SessionLost(why)

    async def close(self, timeout_s: float) -> None:
        """Leave the session, within ``timeout_s`` seconds. Safe to call twice."""
        if self._why() is None:
            self._lost = "the client was closed"
        if self._task is None or not self._owner.alive:
            return
        self._stop.set()
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self._entered() as client:
                self.client = client
                ready.set_result(None)
                await self._stop.wait()
        except BaseException as error:  # noqa: BLE001 - told to whoever opens the session, or to the next caller
            cause = _innermost(error)
            if not ready.done():
                ready.set_exception(cause if isinstance(cause, Exception) else SessionLost("cancelled"))
            elif self._lost is None:
                self._lost = f"the connection to {without_password(self._url)} ended: {cause or type(cause).__name__}"
            if isinstance(error, asyncio.CancelledError) and self._cancelled_from_outside():
                raise

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[Client]:
        async with httpx2.AsyncClient(
            headers=self._headers,
            timeout=self._timeout,
            trust_env=not is_loopback(self._url),
            event_hooks={"response": [self._note_status]},
        ) as http:
            transport = streamable_http_client(self._url, http_client=http)
            async with Client(transport, mode=_MODES[self._protocol]) as client:
                version = client.protocol_version
                handshake = version in HANDSHAKE_PROTOCOL_VERSIONS
                if self._protocol != "auto" and handshake != (_MODES[self._protocol] == "legacy"):
                    raise UnsupportedVersion(f"the server speaks MCP {version}, not {self._protocol}")
                yield client

    async def _note_status(self, response: httpx2.Response) -> None:
        if response.status_code >= 400:
            self._status = response.status_code
