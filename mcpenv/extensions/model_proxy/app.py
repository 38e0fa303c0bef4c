"""The proxy: its routes, and how it is served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcpenv.server.config import ServerConfig
from mcpenv.server.security.host_check import Guard
from mcpenv.server.uvicorn_server import HTTPServer, listen, serve_until_signal, settings_of
from mcpenv_client.connection.addresses import is_loopback

from .relay import Relay
from .store import TurnStore
from .upstream import Upstream

HOST = "127.0.0.1"

CONNECT_S = 30.0
"""Timeout of connecting to the endpoint, in seconds. An answer may take as long as the agent waits for it."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def application(upstream: Upstream, http: httpx2.AsyncClient, store: TurnStore) -> Starlette:
    """Return the application.

    Args:
        upstream: the endpoint to which requests are passed on.
        http: the client of the endpoint.
        store: the store of turns.
    """
    # A web page in a browser of this machine must not use the endpoint's key.
    relay = Guard(Relay(upstream, http, store))
    return Starlette(
        routes=[
            Route("/health", _health, methods=["GET"]),
            Route("/episodes/{episode_id}/{path:path}", relay, methods=_METHODS),
            Route("/{path:path}", _elsewhere, methods=_METHODS),
        ]
    )


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "healthy"})


async def _elsewhere(request: Request) -> Response:
    message = (
        f"{request.url.path} is not the path of an episode. The base URL of an agent is "
        "/episodes/EPISODE_ID, with /v1 for clients of OpenAI's APIs"
    )
    return JSONResponse({"type": "error", "error": {"type": "no_episode", "message": message}}, 404)


def client(upstream: Upstream) -> httpx2.AsyncClient:
    """Return the client of an endpoint. It is bound to the event loop in which it is first used."""
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
        limits=httpx2.Limits(max_connections=None),
        trust_env=not is_loopback(upstream.base_url),
        follow_redirects=False,
    )


async def serve(upstream: Upstream, store: TurnStore, door: socket.socket, on_started: Callable[[], None]) -> None:
    """Serve the proxy at a listening socket until a signal comes."""
    async with client(upstream) as http:
        await serve_until_signal(application(upstream, http, store), door, on_started)


@asynccontextmanager
async def proxied(upstream: Upstream, store: TurnStore) -> AsyncIterator[str]:
    """Serve the proxy in the running event loop while the block runs; yield its URL.

    Raises:
        ConfigurationError: no port is free.
    """
    with listen(HOST, 0) as door:
        async with client(upstream) as http:
            started = asyncio.Event()
            server = HTTPServer(settings_of(application(upstream, http, store), ServerConfig()))
            task = asyncio.ensure_future(server.serve_at(door, started.set))
            try:
                await started.wait()
                yield f"http://{HOST}:{door.getsockname()[1]}"
                server.should_exit = True
                await task
            finally:
                server.should_exit = server.force_exit = True
                await asyncio.wait({task})
