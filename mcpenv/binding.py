"""Binding: which session does an MCP request belong to? DESIGN section 4 has the order; the first match wins."""

from __future__ import annotations

from fastmcp.server.dependencies import fastmcp_request_ctx
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from .agent_server import Lister
from .execution import Execution
from .session import Origin, Session, SessionPool
from .source import EnvironmentSource

SERVICE = "service"
"""The session of all anonymous stateless clients."""


class RequestSessions:
    """Finds the session of the MCP request that is being served; the `Finder` of the server's agent plane."""

    def __init__(self, pool: SessionPool, source: EnvironmentSource) -> None:
        self._pool = pool
        self._source = source

    async def to_list(self) -> Lister:
        """The session's own instance if it exists, else the prototype, else a new session.

        Raises:
            CapacityReached, FactoryError: no session can be made.
        """
        session = self._pool.find(self._key()[0])
        if session is not None:
            return session.execution
        if self._source.prototype is not None:
            return self._source.prototype
        return (await self._session()).execution

    async def to_call(self) -> Execution:
        """The session's instance, made at its first call.

        Raises:
            CapacityReached, FactoryError: no session can be made.
        """
        return (await self._session()).execution

    async def _session(self) -> Session:
        key, origin = self._key()
        return await self._pool.get_or_open(key, origin)

    def _key(self) -> tuple[str, Origin]:
        context = fastmcp_request_ctx.get()
        if context is not None and context.request is not None:
            # Stateless requests may carry a stray header; only the transport of the handshake era has checked it.
            handshake = context.protocol_version not in MODERN_PROTOCOL_VERSIONS
            connection = context.request.headers.get("mcp-session-id") if handshake else None
            if connection is not None:
                return connection_key(connection), Origin.CONNECTION
        return SERVICE, Origin.SERVICE


def connection_key(mcp_session_id: str) -> str:
    """The id of the session that a handshake MCP connection has."""
    return f"mcp:{mcp_session_id}"
