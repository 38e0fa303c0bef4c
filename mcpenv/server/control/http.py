"""The HTTP form of the control plane, and the routes of every server: health, readiness, metrics, descriptions."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from mcpenv.failures import wire_error
from mcpenv.server.config import ServerConfig
from mcpenv.server.extension import ServerRoute, installed
from mcpenv.server.http.body import read_body, too_large
from mcpenv.server.metrics.collection import Collection
from mcpenv.server.metrics.exposition import CONTENT_TYPE, added, exposition
from mcpenv.server.sessions.factory import EnvironmentFactory
from mcpenv.server.sessions.idempotency import Answer, IdempotencyCache, is_final
from mcpenv.server.sessions.membership import Membership
from mcpenv.server.sessions.operations import End, Operation, ReadState, Reset, Step
from mcpenv.server.sessions.pool import SessionPool
from mcpenv.server.sessions.session import Origin, Session
from mcpenv_client.errors import (
    CapacityReached,
    InvalidJSON,
    InvalidMessage,
    OperationCancelled,
    WireError,
)
from mcpenv_client.types.values import decode, encode
from mcpenv_client.wire.protocol import MAX_REQUEST_ID, EpisodeState, timeout_of

from .metadata import Description
from .public_url import base_url_of

logger = logging.getLogger("mcpenv")

T = TypeVar("T")

Handler = Callable[[Request], Awaitable[Response]]
BodyHandler = Callable[[dict[str, Any], Request], Awaitable[dict[str, Any]]]

PING_S = 15.0
"""Seconds of silence after which `PING` is sent, so that no proxy closes the connection as dead."""

PING = b": nothing new\n\n"
"""A comment."""

_EVENT_HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}


def answered(
    make: Callable[[T, Request], Awaitable[dict[str, Any] | Response]],
) -> Callable[[T, Request], Coroutine[Any, Any, Response]]:
    """Make a handler of a method that returns the body of the response, or a response of its own.

    An error becomes a status and a body with its code.
    """

    @functools.wraps(make)
    async def handler(routes: T, request: Request) -> Response:
        try:
            answer = await make(routes, request)
            return answer if isinstance(answer, Response) else plain_json(answer)
        except Exception as error:  # noqa: BLE001 - the wire's boundary
            return refusal(wire_error(error, request.url.path))

    return handler


class ControlRoutes:
    """The handlers. Bodies and replies are the ``data`` of the wire's frames; a refusal has the error frame's.

    Attributes:
        table: the routes of the control plane and of extensions.
    """

    def __init__(
        self,
        pool: SessionPool,
        source: EnvironmentFactory,
        config: ServerConfig,
        description: Description,
        collection: Collection,
        membership: Membership,
    ) -> None:
        self._pool = pool
        self._membership = membership
        self._source = source
        self._config = config
        self._description = description
        self._collection = collection
        self._replies = IdempotencyCache()
        self.table: Sequence[ServerRoute] = ()

    async def health(self, request: Request) -> Response:
        """Answer that the process runs."""
        return plain_json({"status": "healthy"})

    async def ready(self, request: Request) -> Response:
        """Answer whether new sessions are accepted (200) or not, and why (503)."""
        status = await self._pool.slots.status()
        if status.ready:
            return plain_json({"status": "ready"})
        return plain_json({"status": "not ready", "reason": status.reason}, 503)

    async def metrics(self, request: Request) -> Response:
        """Answer the metrics of the whole server as Prometheus' text."""
        of_processes = await self._membership.metrics(self._collection.of_process())
        of_server = await self._collection.of_server()
        text = await asyncio.to_thread(lambda: exposition({**of_server, **added(of_processes)}))
        return Response(text, media_type=None, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})

    async def metadata(self, request: Request) -> Response:
        """Answer the description of this server."""
        metadata, recording = self._description.metadata(), self._description.recording()
        if recording is not None:
            metadata["recording"] = await self._membership.recorded(recording)
        return plain_json(metadata)

    @answered
    async def schema(self, request: Request) -> dict[str, Any]:
        """Answer the JSON Schemas of actions, observations, state, tools and reset options."""
        prototype = self._source.prototype
        if prototype is not None:
            return self._description.schema(prototype.tools)
        async with self._session(None) as session:
            return self._description.schema(await session.execution.list_tools())

    @answered
    async def reset(self, request: Request) -> dict[str, Any] | Response:
        """Begin an episode: in the session of ``session_id``, or in a new one whose id the reply has."""
        return await self._exchange(self._reset, request)

    @answered
    async def step(self, request: Request) -> dict[str, Any] | Response:
        """Take a step: in the session of ``session_id``, or in a throw-away episode."""
        return await self._exchange(self._step, request)

    @answered
    async def end(self, request: Request) -> dict[str, Any] | Response:
        """End the episode of the session of ``session_id``."""
        return await self._exchange(self._end, request)

    @answered
    async def state(self, request: Request) -> dict[str, Any]:
        """Read the state: of the session of ``session_id``, or of a throw-away instance."""
        async with self._session(_session_id(request.query_params.get("session_id"))) as session:
            return await run_in(session, ReadState())

    async def _exchange(self, make: BodyHandler, request: Request) -> dict[str, Any] | Response:
        """Answer a request with a body; with an ``Idempotency-Key``, once."""
        key = request.headers.get("idempotency-key")
        text = await self._text(request)
        body = object_in(text)
        if key is None:
            return await make(body, request)
        if not 0 < len(key) <= MAX_REQUEST_ID:
            raise InvalidMessage(f"Idempotency-Key has 1 to {MAX_REQUEST_ID} characters")
        session = self._pool.peek(str(body.get("session_id")))
        replies = self._replies if session is None else session.replies
        answer = await replies.once(
            f"{request.url.path} {key}", text, lambda: kept_answer(make(body, request), request)
        )
        return Response(answer.text, answer.status, media_type="application/json")

    async def _reset(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        session_id = _session_id(body.pop("session_id", None))
        timeout_s = timeout_of(body.pop("timeout_s", None))
        async with self._session(session_id, kept=True) as session:
            session.base_url = self.base_url(request)
            return {**await run_in(session, Reset.from_wire(body, session, timeout_s)), "session_id": session.id}

    async def _step(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        session_id = _session_id(body.pop("session_id", None))
        timeout_s = timeout_of(body.pop("timeout_s", None))
        action = body.pop("action", None)
        if not isinstance(action, dict):
            raise _refused("action is needed: a JSON object", "missing", "Field required", "action")
        if body:
            unknown = f"unknown field: {', '.join(sorted(body))}"
            raise _refused(unknown, "extra_forbidden", "Extra inputs are not permitted", *body)
        async with self._session(session_id) as session:
            return await run_in(session, Step.from_wire(action, session, timeout_s))

    async def _end(self, body: dict[str, Any], request: Request) -> dict[str, Any]:
        session_id = _session_id(body.pop("session_id", None))
        if session_id is None:
            needed = "session_id is needed: the string that /reset returned"
            raise _refused(needed, "missing", "Field required", "session_id")
        session = self._claim(session_id)
        if session.execution.episode.state is EpisodeState.NEW:
            raise NothingToEnd("end is not possible in state new: there is no episode yet, reset to begin one")
        return await run_in(session, End.from_wire(body, session))

    def base_url(self, request: Request) -> str:
        """Return the address of the server as the client sees it."""
        return self._config.public_url or base_url_of(request.scope, self._config.trusted_proxies)

    @asynccontextmanager
    async def _session(self, session_id: str | None, *, kept: bool = False) -> AsyncIterator[Session]:
        """Give the session of an id, or a new one, which is closed after the block.

        Args:
            kept: close a new one only if the block raises.
        """
        if session_id is not None:
            yield self._claim(session_id)
            return
        session, done = await self._pool.open(Origin.HTTP), False
        try:
            yield session
            done = True
        finally:
            if not (kept and done):
                await self._pool.close(session)

    def _claim(self, session_id: str) -> Session:
        session = self._pool.get(session_id)
        if session.origin is not Origin.HTTP:
            # Report ids of other kinds as unknown.
            return self._pool.get("")
        session.claimed = True
        return session

    async def body(self, request: Request) -> dict[str, Any]:
        """Return the JSON object in a request's body; an empty one for an empty body.

        Raises:
            TooLarge, InvalidJSON, InvalidMessage: it is no such thing.
        """
        return object_in(await self._text(request))

    async def _text(self, request: Request) -> bytes:
        limit = self._config.max_message_bytes
        messages, text = await read_body(request.receive, limit)
        if messages[-1]["type"] != "http.request":
            raise ClientDisconnect
        if (excess := too_large(text, limit)) is not None:
            raise TooLarge(f"the body has {excess}")
        return text


class NothingToEnd(InvalidMessage):
    """The error for the end of a session that has no episode yet."""

    http_status = 409


class TooLarge(InvalidMessage):
    """The error for a body that is larger than the server accepts."""

    http_status = 413


def object_in(text: bytes) -> dict[str, Any]:
    """Return the JSON object in the text of a body; an empty one for an empty body."""
    if not text.strip():
        return {}
    try:
        body = decode(text)
    except ValueError as error:
        raise InvalidJSON(f"Invalid JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidMessage("the body is not a JSON object")
    return body


async def kept_answer(making: Awaitable[dict[str, Any]], request: Request) -> Answer:
    """Return the answer that is kept for a request that may be repeated."""
    try:
        return Answer(encode(await making, "reply").decode())
    except asyncio.CancelledError:
        cancelled = OperationCancelled("the request was cancelled")
        return Answer(encode(cancelled.to_wire()).decode(), cancelled.http_status)
    except Exception as error:  # noqa: BLE001 - the wire's boundary
        refused = wire_error(error, request.url.path)
        return Answer(encode(refused.to_wire()).decode(), refused.http_status, is_final(refused))


def refusal(error: WireError) -> Response:
    """Return a refusal as a status and a body."""
    headers = {}
    if isinstance(error, CapacityReached) and error.retry_after_s is not None:
        headers["Retry-After"] = f"{error.retry_after_s:.0f}"
    return plain_json(error.to_wire(), error.http_status, headers)


def front_page(config: ServerConfig, agents: bool, control: bool) -> Response:
    """Return the answer of ``/`` at an address of agents, of the control plane, or of both."""
    body = {"server": "mcpenv", "mode": config.mode.value, "health": "/health"}
    if agents:
        body["mcp"] = "the mcp_url of an episode" if config.require_handle else "/mcp"
    if control:
        body["description"] = "/metadata"
        if "api-docs" in installed():
            body["routes"] = "/docs"
    return plain_json(body)


def plain_json(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(encode(data, "reply"), status, headers, media_type="application/json")


def event(name: str, event_id: str | None, data: dict[str, Any]) -> bytes:
    """Return an event of an event stream (HTML, section 9.2)."""
    # JSON text has no line breaks outside of its strings, where they are escaped.
    head = f"event: {name}\n" + (f"id: {event_id}\n" if event_id is not None else "")
    return head.encode() + b"data: " + encode(data, "event") + b"\n\n"


def streaming(events: AsyncIterator[bytes]) -> StreamingResponse:
    """Return the answer that sends events as they come."""
    return StreamingResponse(events, 200, _EVENT_HEADERS, "text/event-stream")


async def run_in(session: Session, operation: Operation) -> dict[str, Any]:
    """Run an operation, and return the ``data`` of its reply."""
    return operation.reply_data(await operation.run(session))


def _refused(message: str, kind: str, fault: str, *fields: str) -> InvalidMessage:
    return InvalidMessage(message, errors=[{"loc": [field], "msg": fault, "type": kind} for field in fields])


def _session_id(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and 0 < len(value) <= 255):
        return value
    raise _refused("session_id is the string that /reset returned", "string_type", "not such a string", "session_id")
