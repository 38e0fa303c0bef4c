"""The WebSocket endpoint ``/ws``: one socket, one session, its episodes in sequence."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from mcpenv.server.config import ServerConfig
from mcpenv.server.http.open_connections import USED
from mcpenv.server.sessions.credential import Credential
from mcpenv.server.sessions.pool import SessionPool
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import InvalidMessage, WireError
from mcpenv_client.wire.version import MAX_MESSAGE_HEADER, PROTOCOL_HEADER, PROTOCOL_VERSION, check_client_version

from .concurrent_frames import Gone
from .connection import Connection
from .public_url import base_url_of


class ControlSocket:
    """The ASGI application at ``/ws``.

    Frames over the limit of the settings are refused. Above its own, larger limit, the HTTP server ends the connection.
    """

    def __init__(self, pool: SessionPool, config: ServerConfig) -> None:
        self._pool = pool
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket."""
        if (await receive())["type"] != "websocket.connect":
            return
        asked = scope.get("query_string", b"")
        query = parse_qs(asked.decode("latin-1"), keep_blank_values=True) if asked else {}
        headers = [(PROTOCOL_HEADER.lower().encode(), PROTOCOL_VERSION.encode())] if "protocol" in query else []
        # Browsers, which cannot set headers, offer it beside their token.
        subprotocol = "mcpenv" if "mcpenv" in scope.get("subprotocols", ()) else None
        await send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": headers})
        async with Connection(self._pool, receive, send, self._config.max_message_bytes) as connection:
            connection.max_answer_bytes = _max_answer_bytes(scope)
            connection.announces = USED in scope.get("extensions", ())
            if self._config.control_token is not None:
                await connection.use()  # nobody else can open one
            try:
                session = await self._open(scope, query, connection)
            except Gone:
                return
            except WireError as error:
                await connection.refuse(error)
                return
            session.base_url = self._config.public_url or base_url_of(scope, self._config.trusted_proxies)
            await connection.serve(session)

    async def _open(self, scope: Scope, query: dict[str, list[str]], connection: Connection) -> Session:
        """Return the session that the client requests.

        Raises:
            WireError: the request is refused.
            Gone: the client has disconnected.
        """
        if "protocol" in query:
            check_client_version(query["protocol"][0])
            connection.protocol = PROTOCOL_VERSION
        credential = _credential(scope)
        agent = _agent(query)
        if "session_id" in query:
            session = self._pool.joinable(query["session_id"][0])
        else:
            session = await connection.unless_gone(self._pool.open_socket(credential, resume="resume" in query))
        if agent is not None:
            session.played_by(agent)
        return session


_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _agent(query: dict[str, list[str]]) -> str | None:
    """Return the name of the agent that will play, for the record; None if the client does not say.

    Raises:
        InvalidMessage: it is no name.
    """
    if "agent" not in query:
        return None
    name = query["agent"][0]
    if not _AGENT.fullmatch(name):
        raise InvalidMessage("agent is a name of 1 to 64 letters, digits, dots, dashes and underscores")
    return name


_CREDENTIAL = (b"mcpenv-session-id", b"mcpenv-session-token")


def _credential(scope: Scope) -> Credential | None:
    """Return the session id and the secret that a client chose, by which it can resume."""
    chosen = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _CREDENTIAL}
    return Credential.of(*map(chosen.get, _CREDENTIAL)) if chosen else None


def _max_answer_bytes(scope: Scope) -> int | None:
    """Return the largest frame that the client takes; None if it has not said it."""
    name = MAX_MESSAGE_HEADER.lower().encode()
    given = next((value for key, value in scope["headers"] if key == name), b"")
    return int(given) if 0 < len(given) < 20 and given.isdigit() else None
