"""``/ws``: one socket, one session, one episode after the other."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from mcpenv.server.sessions.credential import Credential
from mcpenv.server.sessions.pool import SessionPool
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import WireError
from mcpenv_client.wire.protocol import PROTOCOL_VERSION, check_version

from .concurrent_frames import Gone
from .connection import Connection
from .public_url import base_url_of


class ControlSocket:
    """The ASGI application at ``/ws``.

    Args:
        max_message_bytes: the largest frame; the server's own limit should be larger, because it ends the connection.
        public_url: the server's address for others, if it is not what clients connect to.
    """

    def __init__(
        self,
        pool: SessionPool,
        *,
        max_message_bytes: int,
        public_url: str | None = None,
        trusted_proxies: tuple[str, ...] = (),
    ) -> None:
        self._pool = pool
        self._max_message_bytes = max_message_bytes
        self._public_url = public_url
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket."""
        if (await receive())["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept", "subprotocol": _subprotocol(scope)})
        async with Connection(self._pool, receive, send, self._max_message_bytes) as connection:
            try:
                session = await self._open(scope, connection)
            except Gone:
                return
            except WireError as error:
                await connection.refuse(error)
                return
            session.base_url = self._public_url or base_url_of(scope, self._trusted_proxies)
            await connection.serve(session)

    async def _open(self, scope: Scope, connection: Connection) -> Session:
        """Return the session that the client asks for.

        Raises:
            WireError: refused.
            Gone: the client has left.
        """
        asked = scope.get("query_string", b"")
        query = parse_qs(asked.decode("latin-1"), keep_blank_values=True) if asked else {}
        if "protocol" in query:
            check_version(query["protocol"][0])
            connection.protocol = PROTOCOL_VERSION
        credential = _credential(scope)
        if "session_id" in query:
            return self._pool.joinable(query["session_id"][0])
        return await connection.unless_gone(self._pool.open_socket(credential, resume="resume" in query))


_CREDENTIAL = (b"mcpenv-session-id", b"mcpenv-session-token")


def _credential(scope: Scope) -> Credential | None:
    """The session id and secret that a client chose so that it can come back."""
    chosen = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _CREDENTIAL}
    return Credential.of(*map(chosen.get, _CREDENTIAL)) if chosen else None


def _subprotocol(scope: Scope) -> str | None:
    """Browsers cannot set headers: they name the protocol, and beside it their token, as subprotocols."""
    return "mcpenv" if "mcpenv" in scope.get("subprotocols", ()) else None
