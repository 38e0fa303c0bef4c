"""OpenEnv's plain JSON-RPC on ``POST /mcp`` and in ``mcp`` frames: the one place where JSON-RPC is written by hand.

It is control plane: simulation only, behind the control token where one is set, never under an episode's handle. What
it is asked to do goes through the sessions and the one core, so that its calls are counted, scored and recorded.

    tools/list               params: session_id?
    tools/call               params: name, arguments?, session_id?
    openenv/session/create   result: session_id, which ``/ws?session_id=`` and the HTTP routes take too
    openenv/session/close    params: session_id

Without a ``session_id`` a listing is the prototype's, and a call has a throw-away episode, as OpenEnv does it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from mcpenv.failures import new_incident
from mcpenv.server.app import EnvServer
from mcpenv.server.config import ServerConfig
from mcpenv.server.control.http import TooLarge, plain_json, refusal
from mcpenv.server.control.public_url import base_url_of
from mcpenv.server.control.traced import Traced
from mcpenv.server.extension import Access, Extension, ServerRoute
from mcpenv.server.http.body import read_body, too_large
from mcpenv.server.sessions.factory import EnvironmentFactory
from mcpenv.server.sessions.operations import CallTool, Operation
from mcpenv.server.sessions.pool import SessionPool
from mcpenv.server.sessions.session import Origin, Session
from mcpenv_client.errors import ErrorCode, ExecutionError, InvalidMessage, McpenvError, WireError
from mcpenv_client.types.tools import Mode, Tool, ToolErrorType
from mcpenv_client.types.values import decode, encode
from mcpenv_client.wire.protocol import FrameType

logger = logging.getLogger("mcpenv")

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
"""JSON-RPC 2.0, section 5.1."""

SERVER_ERROR = -32000
"""The first of the numbers that JSON-RPC leaves to servers."""

_NUMBERS = {
    ErrorCode.VALIDATION_ERROR: INVALID_PARAMS,
    ErrorCode.SESSION_LOST: INVALID_PARAMS,
    ErrorCode.EXECUTION_ERROR: INTERNAL_ERROR,
}
_FAILURES = {ToolErrorType.TOOL_NOT_FOUND: INVALID_PARAMS, ToolErrorType.INVALID_ARGS: INVALID_PARAMS}


class OpenEnvWire(Extension):
    """The extension: a route in simulation, and the ``mcp`` frames of sockets in both modes."""

    def __init__(self, server: EnvServer) -> None:
        self._server = server
        server.pool.operations[SocketRequest.frame] = SocketRequest

    def routes(self) -> list[ServerRoute]:
        """Return the route. The address is MCP's: the route takes what no MCP client sends."""
        server = self._server
        if server.config.mode is not Mode.SIMULATION:
            return []
        app = Traced(OpenEnvRoute(server.pool, server.source, server.config), "mcp")
        return [ServerRoute("/mcp", app, Access.TOKEN, ("POST",), shares_mcp=True)]


class OpenEnvRoute:
    """The ASGI application that answers OpenEnv's requests. Refusals have status 200, too: its clients want that."""

    def __init__(self, pool: SessionPool, source: EnvironmentFactory, config: ServerConfig) -> None:
        self._pool = pool
        self._source = source
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one POST."""
        limit = self._config.max_message_bytes
        messages, body = await read_body(receive, limit)
        if messages[-1]["type"] != "http.request":
            return  # its client left in the middle of it: what it meant is not known
        if (excess := too_large(body, limit)) is not None:
            response = refusal(TooLarge(f"the body has {excess}"))
        else:
            base_url = self._config.public_url or base_url_of(scope, self._config.trusted_proxies)
            response = plain_json(await answer(body, lambda call: self._run(call, base_url)))
        await response(scope, receive, send)

    async def _run(self, call: Call, base_url: str) -> dict[str, Any]:
        if call.method == "openenv/session/create":
            session = await self._open(base_url)
            session.claimed = True
            return {"session_id": session.id}
        session_id = call.session_id
        if call.method == "openenv/session/close":
            if session_id is None:
                raise InvalidMessage("openenv/session/close needs params.session_id")
            await self._pool.end(self._pool.joinable(session_id))
            return {"session_id": session_id, "closed": True}
        if session_id is not None:
            return await run_in(self._pool.joinable(session_id), call)
        if call.method == "tools/list" and self._source.prototype is not None:
            return _listing(self._source.prototype.tools)
        if call.method not in ("tools/list", "tools/call"):
            raise _unknown(call)  # without building an environment for it
        session = await self._open(base_url)
        try:
            return await run_in(session, call)
        finally:
            await self._pool.close(session)

    async def _open(self, base_url: str) -> Session:
        session = await self._pool.open(Origin.HTTP)
        session.base_url = base_url
        return session


@dataclass(frozen=True, slots=True)
class Call:
    """A JSON-RPC request that was understood."""

    id: str | int | None
    method: str
    params: dict[str, Any]

    @property
    def session_id(self) -> str | None:
        """``params.session_id``.

        Raises:
            InvalidMessage: it is no string.
        """
        value = self.params.get("session_id")
        if value is None or isinstance(value, str):
            return value or None
        raise InvalidMessage("params.session_id is the string that openenv/session/create returned")


@dataclass(slots=True)
class SocketRequest(Operation):
    """Answer an ``mcp`` frame, which is a JSON-RPC request about its socket's own session."""

    frame = FrameType.MCP
    reply = "mcp"

    message: dict[str, Any]
    timeout_s: float | None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> SocketRequest:
        """Keep the request, which `answer` understands."""
        return cls(dict(data), timeout_s)

    async def run(self, session: Session) -> dict[str, Any]:
        """Return the JSON-RPC reply."""

        async def run(call: Call) -> dict[str, Any]:
            if call.method == "openenv/session/create":
                return {"session_id": session.id}
            if call.method == "openenv/session/close":
                raise _Refused(INVALID_REQUEST, "a socket's session ends with the socket: send a close frame")
            return await run_in(session, call, self.timeout_s)

        return await answer(self.message, run)

    @staticmethod
    def reply_data(result: dict[str, Any]) -> dict[str, Any]:
        """Return the reply, which is plain JSON data."""
        return result


async def run_in(session: Session, call: Call, timeout_s: float | None = None) -> dict[str, Any]:
    """Do what ``tools/list`` or ``tools/call`` asks for in a session.

    Raises:
        WireError: the core refused.
        _Refused: the tool failed, or there is no such method.
    """
    if call.method == "tools/list":
        return _listing(await session.execution.list_tools())
    if call.method != "tools/call":
        raise _unknown(call)
    name, arguments = call.params.get("name"), call.params.get("arguments")
    if not isinstance(name, str) or not name:
        raise InvalidMessage("tools/call needs params.name")
    if not isinstance(arguments, dict | None):
        raise InvalidMessage("params.arguments of tools/call is a JSON object")
    called = await CallTool(name, arguments or {}, timeout_s).run(session)
    outcome = called.record.outcome
    failure = outcome.error
    if failure is not None:
        kind = failure.error_type
        raise _Refused(_FAILURES.get(kind, INTERNAL_ERROR), failure.message, {"error_type": kind.value})
    result = outcome.result_data()
    assert result is not None
    return result


async def answer(message: bytes | dict[str, Any], run: Callable[[Call], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """The JSON-RPC reply to a message, whatever comes of it.

    Args:
        message: the body of a request, or the object that a frame brought.
        run: does what a `Call` asks for.
    """
    request_id: str | int | None = None
    try:
        call = _understood(message)
        request_id = call.id
        result = await run(call)
        encode(result, "reply")  # what has no JSON form is to be refused here, by the request's own id
        return {"jsonrpc": "2.0", "id": request_id, "result": result}
    except _Refused as refused:
        number, text, data = refused.number, refused.message, refused.data
    except McpenvError as error:
        wire = error if isinstance(error, WireError) else ExecutionError(f"the reply has no JSON form: {error}")
        number, text = _NUMBERS.get(wire.code, SERVER_ERROR), wire.message
        data = {"code": wire.code.value, **wire.data}
    except Exception:
        incident = new_incident()
        logger.exception("incident %s: a JSON-RPC request could not be answered", incident)
        number, text, data = INTERNAL_ERROR, f"internal error (incident {incident})", {"incident": incident}
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": number, "message": text, "data": data}}


class _Refused(Exception):
    """A refusal that has a JSON-RPC number of its own."""

    def __init__(self, number: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(number, message)
        self.number = number
        self.message = message
        self.data = data


def _understood(message: bytes | dict[str, Any]) -> Call:
    if isinstance(message, bytes):
        try:
            message = decode(message)
        except ValueError as error:
            raise _Refused(PARSE_ERROR, f"Parse error: {error}") from error
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0" or not isinstance(message.get("method"), str):
        raise _Refused(INVALID_REQUEST, 'Invalid request: an object with "jsonrpc": "2.0" and a method is needed')
    request_id, params = message.get("id"), message.get("params")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int | None):
        raise _Refused(INVALID_REQUEST, "Invalid request: id is a string or an integer")
    if not isinstance(params, dict | None):
        raise _Refused(INVALID_REQUEST, "Invalid request: params is an object")
    return Call(request_id, message["method"], params or {})


def _unknown(call: Call) -> _Refused:
    return _Refused(METHOD_NOT_FOUND, f"Method not found: {call.method[:60]}")


def _listing(tools: list[Tool]) -> dict[str, Any]:
    """Tools under MCP's names, their schemas whole; OpenEnv's client needs a description that is text."""
    return {
        "tools": [
            {
                "name": tool.name,
                "title": tool.title,
                "description": tool.description or "",
                "inputSchema": tool.input_schema,
                "outputSchema": tool.output_schema,
                "annotations": tool.annotations,
                "meta": tool.meta,
            }
            for tool in tools
        ]
    }
