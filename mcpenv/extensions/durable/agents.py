"""Agents that come to another server than the one that has their episode: their requests are forwarded to it.

If no server has the episode, this one continues it. So an agent keeps its address, whatever server it reaches.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING

import httpx
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcpenv.server.http.body import Replay, read_body
from mcpenv_client.errors import SessionLost, WireError

from .store import StoreError

if TYPE_CHECKING:
    from .extension import Durable

logger = logging.getLogger("mcpenv")

_EPISODE = re.compile(r"/episodes/([^/]+)/mcp/?")

HOP = "mcpenv-forwarded"
"""The header of a forwarded request, which is not forwarded again."""

_OF_THE_CONNECTION = frozenset(
    {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that belong to one connection (RFC 9110, section 7.6.1), and the host, which is another one."""

CONNECT_S = 5.0
"""Seconds to connect to the server that has the episode."""


class AgentsElsewhere:
    """The middleware around the requests of agents to the addresses of episodes."""

    def __init__(self, app: ASGIApp, durable: Durable, max_body_bytes: int) -> None:
        self._app = app
        self._durable = durable
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request here, or forward it."""
        server = scope.get("server")
        if server is not None and server[1] is not None:
            self._durable.reached_at(*server)
        found = _EPISODE.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found is None or self._durable.has(found[1]):
            await self._app(scope, receive, send)
            return
        messages, body = await read_body(receive, self._max_body_bytes)
        receive = Replay(messages, receive)
        try:
            forwarded = any(name == HOP.encode() for name, _ in scope["headers"])
            address = None if forwarded else await self._durable.elsewhere(found[1])
            if address is not None and await _forward(address, scope, body, receive, send):
                return
            await self._durable.take_over(found[1])
        except SessionLost as error:
            logger.warning("an agent's episode cannot be continued here: %s", error)
        except (StoreError, WireError) as error:
            logger.warning("an agent's episode could not be continued here: %s", error)
            refusal = {"message": "the episode cannot be reached now; try again", "code": "CAPACITY_REACHED"}
            await JSONResponse(refusal, 503, {"Retry-After": "1"})(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _forward(address: str, scope: Scope, body: bytes, receive: Receive, send: Send) -> bool:
    """Forward a request, and pass its answer on as it comes. Return False if that server cannot be reached."""
    query = scope["query_string"].decode("latin-1")
    url = f"{address}{scope['path']}" + (f"?{query}" if query else "")
    headers = [(name, value) for name, value in scope["headers"] if name.decode("latin-1") not in _OF_THE_CONNECTION]
    # No limit of time: a call may take as long as its server lets it.
    async with httpx.AsyncClient(timeout=httpx.Timeout(None, connect=CONNECT_S), trust_env=False) as http:
        request = http.build_request(scope["method"], url, headers=[*headers, (HOP.encode(), b"1")], content=body)
        for name in ("accept", "accept-encoding", "user-agent"):
            if not any(key == name.encode() for key, _ in headers):
                request.headers.pop(name, None)  # the agent did not send it
        try:
            answer = await http.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            logger.warning("the server that has an agent's episode cannot be reached: %s", error)
            return False
        except httpx.TransportError as error:
            # The call may have run there: it must not run again here.
            logger.warning("the server that has an agent's episode was lost during a request: %s", error)
            lost = {"message": "the server of this episode was lost during the request", "code": "SESSION_LOST"}
            await JSONResponse(lost, 502)(scope, receive, send)
            return True
        passing = asyncio.ensure_future(_pass_on(answer, send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            passing.cancel()  # the other server sees that the agent has left
            await asyncio.wait({passing})
            await answer.aclose()
        if not passing.cancelled():
            passing.result()
    return True


async def _pass_on(answer: httpx.Response, send: Send) -> None:
    headers = [(k.lower(), v) for k, v in answer.headers.raw if k.lower().decode("latin-1") not in _OF_THE_CONNECTION]
    start: Message = {"type": "http.response.start", "status": answer.status_code, "headers": headers}
    await send(start)
    async for chunk in answer.aiter_raw():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
