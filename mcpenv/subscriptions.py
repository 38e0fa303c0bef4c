"""Subscriptions: MCP's ``subscriptions/listen`` (2026-07-28) and ``resources/subscribe`` (before), which FastMCP lacks.

The streams are `mcp`'s own. They end with the session, or with the episode at whose address the client came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fastmcp.server.dependencies import FastMCPRequestContext, bind_request_context, fastmcp_request_ctx
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ResourceUpdated, ServerEvent, ToolsListChanged
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    EmptyResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcpenv_client.errors import EpisodeDone, SessionLost, WireError
from mcpenv_client.wire import EpisodeState

from .execution import Execution
from .notifications import Ending

MAX_URIS = 1_000
"""Resources that one handshake connection may subscribe to."""

_FOLLOWER = "mcpenv.follower"

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
        if changes.full:
            raise MCPError(INTERNAL_ERROR, "there are too many subscriptions")
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
            MCPError: the episode is over, or the client is subscribed to too many resources.
        """
        watched = await self._watched(request)
        follower = _Follower.of(_connection_of(request))
        if len(follower.uris) >= MAX_URIS:
            raise MCPError(INVALID_REQUEST, f"this connection is subscribed to {MAX_URIS} resources already")
        follower.uris.add(str(params.uri))
        follower.follow(watched.execution)
        return EmptyResult()

    async def unsubscribe(self, request: Request, params: UnsubscribeRequestParams) -> EmptyResult:
        """Tell it no more."""
        _Follower.of(_connection_of(request)).uris.discard(str(params.uri))
        return EmptyResult()

    def follow(self, lister: object) -> None:
        """Have the handshake client that is listing now told when an instance's lists change, whoever changes them."""
        request = fastmcp_request_ctx.get()
        if request is None or request.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return
        if isinstance(lister, Execution):
            _Follower.of(_connection_of(request)).follow(lister)

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
        return watched


class _Follower:
    """A handshake connection that is told of changes on its standing stream.

    Attributes:
        uris: the resources that its client subscribed to.
    """

    def __init__(self, connection: Connection) -> None:
        self.uris: set[str] = set()
        self._connection = connection
        self._followed: str | None = None
        self._leave: Callable[[], None] = lambda: None
        # What is on its way to a client that may read slowly; of each event one is enough.
        self._sending: dict[ServerEvent, asyncio.Task[None]] = {}
        connection.exit_stack.callback(lambda: self._leave())

    @classmethod
    def of(cls, connection: Connection) -> _Follower:
        """The connection's own."""
        follower: _Follower | None = connection.state.get(_FOLLOWER)
        if follower is None:
            follower = connection.state[_FOLLOWER] = cls(connection)
        return follower

    def follow(self, execution: Execution) -> None:
        """Be told of this instance's changes, and of no other's."""
        if self._followed != execution.session_id:
            self._leave()
            # Connections outlive instances: an id, not the instance.
            self._followed, self._leave = execution.session_id, execution.changes.subscribe(self._tell)

    def _tell(self, event: ServerEvent) -> None:
        if event not in self._sending and (not isinstance(event, ResourceUpdated) or event.uri in self.uris):
            self._sending[event] = asyncio.ensure_future(self._send(event))

    async def _send(self, event: ServerEvent) -> None:
        try:
            if isinstance(event, ResourceUpdated):
                await self._connection.send_resource_updated(event.uri)
            elif isinstance(event, ToolsListChanged):
                await self._connection.send_tool_list_changed()
            elif isinstance(event, PromptsListChanged):
                await self._connection.send_prompt_list_changed()
            else:
                await self._connection.send_resource_list_changed()
        finally:
            del self._sending[event]


async def _close_at_the_end(watched: Watched, handler: ListenHandler) -> None:
    execution = watched.execution
    while not execution.closed:
        ending = await execution.episode.watchers.ending(None)
        if watched.episode_id is not None or ending is Ending.CLOSED:
            break
    handler.close()


def _connection_of(request: Request | FastMCPRequestContext) -> Connection:
    # `mcp` shows a handler its session only; the standing stream is the connection's.
    return request.session._connection
