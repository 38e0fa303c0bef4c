"""The route of another protocol at ``/mcp``: MCP's requests are told from others by headers, or by ``initialize``."""

from __future__ import annotations

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mcpenv.server.http.body import Replay, read_body
from mcpenv_client.types.values import decode


class SharedRoute(Route):
    """The route that does not match a request with MCP's headers."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match as `Route` does, except requests of MCP clients."""
        match, child_scope = super().matches(scope)
        return (Match.NONE, {}) if match is Match.FULL and _speaks_mcp(scope) else (match, child_scope)


class OtherOrMCP:
    """The ASGI application for requests without MCP's headers: ``initialize`` is MCP, all others are not.

    Args:
        max_body_bytes: maximum size of a body that is searched for ``initialize``; a larger one is for MCP to refuse.
    """

    def __init__(self, other: ASGIApp, mcp: ASGIApp, max_body_bytes: int) -> None:
        self._other = other
        self._mcp = mcp
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        messages, body = await read_body(receive, self._max_body_bytes)
        is_mcp = len(body) > self._max_body_bytes or _initializes(body)
        await (self._mcp if is_mcp else self._other)(scope, Replay(messages, receive), send)


def _speaks_mcp(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name in (b"mcp-session-id", b"mcp-protocol-version"):
            return True
        if name == b"accept" and b"text/event-stream" in value.lower():
            return True
    return False


def _initializes(body: bytes) -> bool:
    """Return True if an MCP client begins with this body; MCP also answers one with a wrong ``Accept``."""
    if b"initialize" not in body:
        return False
    try:
        message = decode(body)
    except ValueError:
        return False
    return isinstance(message, dict) and message.get("method") == "initialize"


__all__ = ["OtherOrMCP", "SharedRoute"]
