"""The relay: forwards one request to the upstream, and streams its answer back."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx2
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from mcpenv.server.http.body import read_body
from mcpenv_client.types.values import encode

from .apis import api_of, is_allowed
from .exchange import Exchange
from .store import TurnStore
from .upstream import Upstream

logger = logging.getLogger("mcpenv")

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Maximum size of a request. The APIs accept at most 50 MB."""

MAX_BYTES = 4 * MAX_BODY_BYTES
"""Maximum size of all requests together that are being forwarded."""

_CUT = " closed the connection before the answer's end"
"""Follows the endpoint in messages."""

_NOT_PASSED = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"trailer", b"upgrade"))
_LENGTHS = frozenset((b"content-length", b"content-encoding"))


class Relay:
    """The ASGI application of all requests to ``/episodes/EPISODE/PATH``.

    Answers are forwarded unchanged, errors included: status, headers, and each piece of the body on arrival. An answer
    that the upstream does not complete is not completed either. A disconnect of the agent cancels its request at the
    upstream. Each request that asks a model for an answer becomes a turn of its episode.

    Args:
        upstream: the endpoint.
        http: the client of the endpoint.
        store: the store of turns.
    """

    def __init__(self, upstream: Upstream, http: httpx2.AsyncClient, store: TurnStore) -> None:
        self._upstream = upstream
        self._http = http
        self._store = store
        self._warned = False
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        episode_id, path = request.path_params["episode_id"], request.path_params["path"]
        if not self._store.knows(episode_id):
            message = f"there is no running episode {episode_id!r}; the base URL is that of an episode that is over"
            await _refusal(404, "unknown_episode", message)(scope, receive, send)
            return
        if not is_allowed(request.method, path):
            message = f"{request.method} /{path[:200]} is neither a call nor a list of models, so it is not passed on"
            await _refusal(404, "not_a_model_call", message)(scope, receive, send)
            return
        try:
            body = await _body_of(request)
        except ClientDisconnect:
            return
        if body is None:
            message = f"the request is larger than {MAX_BODY_BYTES >> 20} MiB"
            await _refusal(413, "request_too_large", message)(scope, receive, send)
            return
        if self._bytes + len(body) > MAX_BYTES:
            message = "the requests that are being passed on are too large together; try again later"
            await _refusal(429, "rate_limit_error", message)(scope, receive, send)
            return
        self._bytes += len(body)
        try:
            await self._relay(request, episode_id, path, body, send)
        finally:
            self._bytes -= len(body)

    async def _relay(self, request: Request, episode_id: str, path: str, body: bytes, send: Send) -> None:
        receive = request.receive
        api = api_of(request.method, path)
        if api is None:
            await self._until_disconnect(self._pass(request, path, body, None, send), receive, None)
            return
        self._store.begin(episode_id)
        exchange, asked = Exchange(api, f"/{path}"), _object(body)
        if asked is None:
            exchange.error = "the request was passed on, but is not recorded: its body is no JSON object"
            if encoding := request.headers.get("content-encoding"):
                exchange.error += f", but compressed ({encoding})"
            logger.warning("%s", exchange.error)
        else:
            exchange.request = asked | self._upstream.request_fields
            if self._upstream.request_fields:
                body = encode(exchange.request)
        try:
            await self._until_disconnect(self._pass(request, path, body, exchange, send), receive, exchange)
        finally:
            self._store.add(episode_id, exchange.turn())

    async def _until_disconnect(self, passing: Any, receive: Receive, exchange: Exchange | None) -> None:
        """Run a coroutine, and cancel it if the agent disconnects or this task is cancelled."""
        work, gone = asyncio.ensure_future(passing), asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if exchange is not None and not work.done() and not exchange.complete:
                exchange.cut = "agent"
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.wait({work, gone})
        if not work.cancelled():
            work.result()

    async def _pass(self, request: Request, path: str, body: bytes, exchange: Exchange | None, send: Send) -> None:
        url = self._upstream.url(path, request.url.query)
        asking = self._http.build_request(
            request.method, url, headers=self._upstream.headers(request.headers.raw, path), content=body
        )
        try:
            answer = await self._http.send(asking, stream=True)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            why = f"{self._upstream.shown} gave no answer: {type(error).__name__}: {error}".rstrip(": ")
            logger.warning("%s", why)
            if exchange is not None:
                exchange.error = why
            await _refusal(502, "upstream_unreachable", why)(request.scope, request.receive, send)
            return
        try:
            if exchange is not None:
                given = answer.headers
                exchange.answered(answer.status_code, given.get("content-type", ""), given.get("x-policy-version"))
            if answer.status_code == httpx2.codes.NOT_FOUND and not self._warned and exchange is not None:
                self._warned = True
                logger.warning("the endpoint answered 404 to %s: is its base URL right?", url.partition("?")[0])
            await self._answer(answer, exchange, send)
        finally:
            await answer.aclose()

    async def _answer(self, answer: httpx2.Response, exchange: Exchange | None, send: Send) -> None:
        decoded = "content-encoding" in answer.headers
        headers = [
            (name.lower(), value)
            for name, value in answer.headers.raw
            if name.lower() not in _NOT_PASSED and not (decoded and name.lower() in _LENGTHS)
        ]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        try:
            async for data in answer.aiter_bytes():
                if exchange is not None:
                    exchange.received += data
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            what = "'s answer cannot be decompressed" if isinstance(error, httpx2.DecodingError) else _CUT
            why = f"{self._upstream.shown}{what}: {type(error).__name__}"
            logger.warning("%s", why)
            if exchange is not None:
                exchange.cut, exchange.error = "endpoint", why
            return  # without an end, so that the server closes the connection, as the endpoint did
        if exchange is not None:
            exchange.complete = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _body_of(request: Request) -> bytes | None:
    """Return the body of a request; None if it is too large. A body that says so is not read.

    Raises:
        ClientDisconnect: the agent disconnected before the body's end.
    """
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        return None
    messages, body = await read_body(request.receive, MAX_BODY_BYTES)
    if messages[-1]["type"] == "http.disconnect":
        raise ClientDisconnect
    return None if len(body) > MAX_BODY_BYTES else body


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _refusal(status: int, kind: str, message: str) -> JSONResponse:
    """Return an error in the shape that the clients of all APIs read."""
    return JSONResponse({"type": "error", "error": {"type": kind, "message": message}}, status)
