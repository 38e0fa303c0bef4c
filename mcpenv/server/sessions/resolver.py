"""The session that an MCP request belongs to: rules in an order, of which the first match wins."""

from __future__ import annotations

from fastmcp.server.dependencies import fastmcp_request_ctx, get_access_token
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcpenv.execution.mcp_server import OVER, Lister, Target
from mcpenv.server.config import ServerConfig
from mcpenv_client.errors import EpisodeDone, Unauthorized

from .factory import EnvironmentFactory
from .handles import Handle
from .membership import Membership
from .pool import SessionPool
from .session import Origin, Session

SERVICE = "service"
"""The session of all anonymous stateless clients."""


ANYBODY = "anybody"
"""The key of the rate limit for requests that have neither a token nor a handle."""

MAX_NAME = 64
"""Maximum characters of the name of an MCP client in records and lists."""

HANDLE = "mcpenv.handle"
"""The key of the request's `Handle` in the ASGI scope."""


class RequestSessions:
    """The `Finder` of the server's agent plane, which finds the session of the current MCP request."""

    def __init__(
        self, pool: SessionPool, source: EnvironmentFactory, config: ServerConfig, membership: Membership
    ) -> None:
        self._pool = pool
        self._source = source
        self._require_handle = config.require_handle
        self._per_connection = config.session_scope == "connection"
        self._limited = config.max_requests_per_s is not None
        self._membership = membership

    async def to_list(self) -> Lister:
        """Return the session's own instance if it exists, else the prototype, else a new session.

        Raises:
            CapacityReached, FactoryError: no session can be made.
            Unauthorized: a handle is needed.
            RateLimited: the agent sends too many requests.
        """
        principal = principal_of_request()
        handle = await self._admit(principal)
        if handle is not None:
            return handle.execution or self._source.prototype or handle
        self._refuse_without_handle()
        session = self._pool.find(self._key(principal)[0])
        if session is not None:
            return session.execution
        if self._source.prototype is not None:
            return self._source.prototype
        return (await self._session(principal)).execution

    async def to_call(self) -> Target:
        """Return the session's instance, made at its first call. For a handle, return the instance of its episode.

        Raises:
            EpisodeDone: the handle's episode is past.
            CapacityReached, FactoryError: no session can be made.
            Unauthorized: a handle is needed.
            RateLimited: the agent sends too many requests.
        """
        principal = principal_of_request()
        handle = await self._admit(principal)
        if handle is not None:
            execution = handle.current
            if execution is None:
                raise EpisodeDone(OVER)
            handle.used = True
            if handle.agent is None and (name := principal or _client_of_request()) is not None:
                handle.agent = name
                if execution.sink is not None:
                    execution.sink.played_by(execution.episode.id, name)
            return Target(execution, handle.episode_id, principal)
        self._refuse_without_handle()
        return Target((await self._session(principal)).execution, None, principal)

    async def _session(self, principal: str | None) -> Session:
        key, origin = self._key(principal)
        return await self._pool.get_or_open(key, origin)

    async def _admit(self, principal: str | None) -> Handle | None:
        """Return the handle of the request, or None. Raise if its agent sends too many requests."""
        handle = self._handle()
        if self._limited:
            agent = principal or (ANYBODY if handle is None else f"handle:{handle.value}")
            await self._membership.spend(agent)
        return handle

    def _handle(self) -> Handle | None:
        context = fastmcp_request_ctx.get()
        if context is None or context.request is None:
            return None
        handle: Handle | None = context.request.scope.get(HANDLE)
        return handle

    def _refuse_without_handle(self) -> None:
        if self._require_handle:
            raise Unauthorized(
                "this server serves agents only on an episode's own address (info.mcp_url of a reset); ask the "
                "orchestrator of the episode for it"
            )

    def _key(self, principal: str | None) -> tuple[str, Origin]:
        context = fastmcp_request_ctx.get()
        if principal is not None and not self._per_connection:
            return f"principal:{principal}", Origin.PRINCIPAL
        if context is not None and context.request is not None:
            # Stateless requests may have a stray header. Only the transport of the handshake era has checked it.
            handshake = context.protocol_version not in MODERN_PROTOCOL_VERSIONS
            connection = context.request.headers.get("mcp-session-id") if handshake else None
            if connection is not None:
                return connection_key(connection), Origin.CONNECTION
        if principal is not None:
            return f"principal:{principal}", Origin.PRINCIPAL
        return SERVICE, Origin.SERVICE


def principal_of_request() -> str | None:
    """Return the principal that the request's bearer token authenticates."""
    token = get_access_token()
    return None if token is None else (token.subject or token.client_id)


def _client_of_request() -> str | None:
    """Return the name by which the request's MCP client introduced itself, shortened; None if it has none."""
    context = fastmcp_request_ctx.get()
    client = None if context is None else context.session.client_params
    name = "" if client is None else client.client_info.name[:MAX_NAME]
    return "".join(each for each in name if each.isprintable()) or None


_CONNECTION = "mcp:"


def connection_key(mcp_session_id: str) -> str:
    """Return the session id of a handshake MCP connection."""
    return _CONNECTION + mcp_session_id


def connection_of(session_id: str) -> str:
    """Return the connection whose session has that id."""
    return session_id.removeprefix(_CONNECTION)
