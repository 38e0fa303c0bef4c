"""Subscriptions: MCP's ``subscriptions/listen`` (2026-07-28) and ``resources/subscribe`` (before), which FastMCP lacks.

The streams are `mcp`'s own. They end with the session, or with the episode at whose address the client came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fastmcp.server.dependencies import bind_request_context
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated, ServerEvent
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    EmptyResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)

from mcpenv_client.errors import EpisodeDone, SessionLost, WireError
from mcpenv_client.wire import EpisodeState

from .execution import Execution
from .watch import Ending

MAX_URIS = 1_000
"""Resources that one handshake connection may subscribe to."""

_URIS = "mcpenv.subscribed"

Request = ServerRequestContext[Any, Any]


class Watched(Protocol):
    """What a client subscribes to: an instance, or one episode of it."""

    @property
    def execution(self) -> Execution:
        """The instance."""
        ...

    @property
    def episode_id(self) -> str | None:
        """The episode; None: whichever runs."""
        ...


class Subscriptions:
    """Serves subscriptions.

    Args:
        find: the instance that the current request belongs to, made now if it must be; may raise `WireError`.
    """

    def __init__(self, find: Callable[[], Awaitable[Watched]]) -> None:
        self._find = find
        self._sending: set[asyncio.Task[None]] = set()

    def register(self, server: Server[Any]) -> None:
        """Have ``server`` serve them; its capabilities follow."""
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self.listen)
        server.add_request_handler("resources/subscribe", SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, self.unsubscribe)

    async def listen(self, request: Request, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """Stream what the client asked for until it leaves, or the session or the episode ends.

        Raises:
            MCPError: the episode is over, or there are too many subscriptions.
        """
        watched = await self._watched(request)
        changes = watched.execution.changes
        handler = ListenHandler(changes)
        leave = changes.at_end(handler.close)
        ending = asyncio.create_task(_close_at_the_end(watched, handler))
        try:
            return await handler(request, params)
        finally:
            leave()
            ending.cancel()

    async def subscribe(self, request: Request, params: SubscribeRequestParams) -> EmptyResult:
        """Tell a handshake client of a resource's changes, on its standing stream.

        Raises:
            MCPError: as `listen`.
        """
        connection = _connection_of(request)
        uris: set[str] | None = connection.state.get(_URIS)
        if uris is None:
            watched = await self._watched(request)
            uris = connection.state[_URIS] = set()
            connection.exit_stack.callback(watched.execution.changes.subscribe(self._teller(connection, uris)))
        if len(uris) >= MAX_URIS:
            raise MCPError(INVALID_REQUEST, f"this connection is subscribed to {MAX_URIS} resources already")
        uris.add(str(params.uri))
        return EmptyResult()

    async def unsubscribe(self, request: Request, params: UnsubscribeRequestParams) -> EmptyResult:
        """Tell it no more."""
        _connection_of(request).state.get(_URIS, set()).discard(str(params.uri))
        return EmptyResult()

    async def _watched(self, request: Request) -> Watched:
        try:
            with bind_request_context(request):
                watched = await self._find()
        except (EpisodeDone, SessionLost) as error:
            raise MCPError(INVALID_REQUEST, error.message) from error
        except WireError as error:
            raise MCPError(INTERNAL_ERROR, error.message) from error
        if watched.episode_id is not None and watched.execution.episode.state is EpisodeState.DONE:
            raise MCPError(INVALID_REQUEST, "The episode is over.")
        if watched.execution.changes.full:
            raise MCPError(INTERNAL_ERROR, "there are too many subscriptions")
        return watched

    def _teller(self, connection: Connection, uris: set[str]) -> Callable[[ServerEvent], None]:
        waiting: set[str] = set()  # on its way to a client that reads slowly; one is enough

        async def send(uri: str) -> None:
            try:
                await connection.send_resource_updated(uri)
            finally:
                waiting.discard(uri)

        def tell(event: ServerEvent) -> None:
            if isinstance(event, ResourceUpdated) and event.uri in uris - waiting:
                waiting.add(event.uri)
                sending = asyncio.ensure_future(send(event.uri))
                self._sending.add(sending)
                sending.add_done_callback(self._sending.discard)

        return tell


async def _close_at_the_end(watched: Watched, handler: ListenHandler) -> None:
    execution = watched.execution
    while not execution.closed:
        ending = await execution.episode.watchers.ending(None)
        if watched.episode_id is not None or ending is Ending.CLOSED:
            break
    handler.close()


def _connection_of(request: Request) -> Connection:
    # `mcp` shows a handler its session only; the standing stream is the connection's.
    return request.session._connection
