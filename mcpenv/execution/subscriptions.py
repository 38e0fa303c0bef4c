"""Serve MCP's ``subscriptions/listen`` (2026-07-28) and ``resources/subscribe`` (before), which FastMCP lacks.

`mcp` implements the streams. They end with the session, or with the episode if the client used an episode's address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
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
from mcpenv_client.wire.protocol import EpisodeState

from .episode import OVER
from .execution import Execution
from .notifications import Ending

MAX_URIS = 1_000
"""Maximum resources that one handshake connection may subscribe to."""

MAX_URI = 2_048
"""Maximum characters of the URI of a resource to subscribe to. They are ASCII (RFC 3986)."""

MAX_URI_BYTES = 256 * 1024
"""Maximum characters of all URIs that one stream, or one handshake connection, subscribes to."""

_FOLLOWER = "mcpenv.follower"

Request = ServerRequestContext[Any, Any]


class Watched(Protocol):
    """The subject of a subscription: an instance, or one episode of it."""

    @property
    def execution(self) -> Execution:
        """The instance."""
        ...

    @property
    def episode_id(self) -> str | None:
        """The episode; None for the current one."""
        ...


class Subscriptions:
    """Serve subscriptions.

    Args:
        find: returns the instance of the current request, created if needed; may raise `WireError`.
    """

    def __init__(self, find: Callable[[], Awaitable[Watched]]) -> None:
        self._find = find

    def register(self, server: Server[Any]) -> None:
        """Register the handlers with ``server``, which also sets its capabilities."""
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self.listen)
        server.add_request_handler("resources/subscribe", SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, self.unsubscribe)

    async def listen(self, request: Request, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """Stream the requested events until the client disconnects, or the session or the episode ends.

        Raises:
            MCPError: if the episode is over, or there are too many subscriptions.
        """
        _check_uris(params.notifications.resource_subscriptions or ())
        watched = await self._watched(request)
        changes = watched.execution.subscribers
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
        """Notify a handshake client of a resource's changes, on its standing stream.

        Raises:
            MCPError: if the episode is over, or the client is subscribed to too many resources.
        """
        watched = await self._watched(request)
        follower = _Follower.of(_connection_of(request))
        wanted = follower.uris | {str(params.uri)}
        _check_uris(wanted)
        follower.uris = wanted
        follower.follow(watched.execution)
        return EmptyResult()

    async def unsubscribe(self, request: Request, params: UnsubscribeRequestParams) -> EmptyResult:
        """Stop notifying a handshake client of a resource's changes."""
        _Follower.of(_connection_of(request)).uris.discard(str(params.uri))
        return EmptyResult()

    def follow(self, lister: object) -> None:
        """Subscribe the handshake client that makes the current listing to later changes of the instance's lists."""
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
            raise MCPError(INVALID_REQUEST, OVER)
        return watched


def _check_uris(uris: Collection[str]) -> None:
    if len(uris) > MAX_URIS or any(len(uri) > MAX_URI for uri in uris) or sum(map(len, uris)) > MAX_URI_BYTES:
        most = f"{MAX_URIS} URIs of {MAX_URI} characters, {MAX_URI_BYTES} together"
        raise MCPError(INVALID_REQUEST, f"a client subscribes to at most {most}")
    if not all(map(str.isascii, uris)):
        raise MCPError(INVALID_REQUEST, "a URI has characters that are not ASCII; encode them as %XX (RFC 3986)")


class _Follower:
    """A handshake connection that receives notifications of changes on its standing stream.

    Attributes:
        uris: the resources that its client subscribed to.
    """

    def __init__(self, connection: Connection) -> None:
        self.uris: set[str] = set()
        self._connection = connection
        self._followed: str | None = None
        self._leave: Callable[[], None] = lambda: None
        # Pending notifications, at most one for each event, because a client may read slowly.
        self._sending: dict[ServerEvent, asyncio.Task[None]] = {}
        connection.exit_stack.callback(lambda: self._leave())

    @classmethod
    def of(cls, connection: Connection) -> _Follower:
        """Return the follower of a connection, created if needed."""
        follower: _Follower | None = connection.state.get(_FOLLOWER)
        if follower is None:
            follower = connection.state[_FOLLOWER] = cls(connection)
        return follower

    def follow(self, execution: Execution) -> None:
        """Subscribe to the changes of this instance, and of no other one."""
        if self._followed != execution.session_id:
            self._leave()
            # Keep an id instead of the instance, because connections outlive instances.
            self._followed, self._leave = execution.session_id, execution.subscribers.subscribe(self._notify)

    def _notify(self, event: ServerEvent) -> None:
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
    # A stream of the session outlives resets; a stream of one episode ends with the episode.
    while not execution.closed:
        ending = await execution.episode.watchers.ending(None)
        if watched.episode_id is not None or ending is Ending.CLOSED:
            break
    handler.close()


def _connection_of(request: Request | FastMCPRequestContext) -> Connection:
    # `mcp` passes only the session to a handler, but the standing stream belongs to the connection.
    return request.session._connection
