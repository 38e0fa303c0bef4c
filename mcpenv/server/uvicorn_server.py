"""The HTTP server beneath an app: uvicorn's settings, its listening sockets, its event loop, and its shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from mcpenv.errors import ConfigurationError

from .app import EnvServer
from .config import ServerConfig
from .http.file_limits import allow_many, connections_allowed
from .http.http_protocol import HTTPProtocol
from .http.open_connections import UNFINISHED_BODIES, OpenConnections
from .http.websocket_protocol import WebSocketProtocol
from .signals import ending_signals

logger = logging.getLogger("mcpenv")

FRAME_HEADROOM = 4
"""Frames up to this many times the limit are answered with an error; larger ones close their connection."""

KEEP_ALIVE_S = 75
"""Seconds that an HTTP connection may wait for its client: for a request or the rest of one, or for reading.

It is longer than the limit of clients. If the server closes while a client sends, the client cannot know if the request
was read, and must not send a tool call twice."""


LOOK_S = 0.1
"""Seconds between two looks at the running episodes during a drain."""

SHOWN_SESSIONS = 10
"""Maximum sessions that the log line of a drain names."""


def settings_of(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    """Return uvicorn's settings."""
    return uvicorn.Config(
        app,
        lifespan="off",
        http=HTTPProtocol,
        log_config=None,
        access_log=False,
        ws=WebSocketProtocol,
        ws_max_size=config.max_message_bytes * FRAME_HEADROOM,
        ws_ping_interval=config.ping_interval_s,
        ws_ping_timeout=config.ping_interval_s,
        ws_per_message_deflate=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(config.shutdown_timeout_s) + 1,
        server_header=False,
        # `trusted_proxies` decides whose X-Forwarded-* headers are used.
        proxy_headers=False,
    )


class HTTPServer(uvicorn.Server):
    """The uvicorn server without its signal handling, which would close WebSockets in the middle of a step."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        largest = config.ws_max_size // FRAME_HEADROOM
        self.share(OpenConnections(connections_allowed(), largest * UNFINISHED_BODIES))
        self._on_answering: Callable[[], None] = lambda: None

    def share(self, connections: OpenConnections) -> None:
        """Count the connections of this server together with those of others."""
        self.open_connections = self.server_state.open_connections = connections  # type: ignore[attr-defined]

    async def serve_at(self, door: socket.socket | None, on_answering: Callable[[], None]) -> None:
        """Serve until `should_exit` is set.

        Args:
            door: a listening socket; None if connections are accepted elsewhere and passed to `take`.
        """
        self._on_answering = on_answering
        await self.serve(sockets=[] if door is None else [door])

    async def take(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere."""
        await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        protocol: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def stop_accepting(self) -> None:
        """Accept no more connections. Those that are open are served as before."""
        for server in self.servers:
            server.close()

    def retire_connections(self, *, idle: bool) -> int:
        """Close each HTTP connection once a response on it has ended.

        Args:
            idle: also those that wait for a request, which may be on its way.

        Returns:
            The number of HTTP connections that are still open.
        """
        connections = [each for each in self.server_state.connections if isinstance(each, HTTPProtocol)]
        for connection in connections:
            connection.retire()
            if idle:
                connection.shutdown()
        return len(connections)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections, then call `on_answering`."""
        await super().startup(sockets)
        self._on_answering()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to `Ending`, which handles them for all servers of the process."""
        return contextlib.nullcontext()


class Ending:
    """The shutdown of all servers: at a signal they refuse new sessions, finish steps, then close connections.

    At SIGTERM they first wait for running episodes.

    Args:
        served: closes its sessions; its ``drain_s`` is how long episodes may take, its ``shutdown_timeout_s`` steps.
        also: awaited too, before connections close.
        on_draining: called when no new sessions are taken any more.
    """

    def __init__(
        self,
        served: EnvServer,
        servers: Sequence[uvicorn.Server],
        also: Callable[[], Awaitable[None]] | None = None,
        on_draining: Callable[[], None] = lambda: None,
    ) -> None:
        self._served = served
        self._also = also
        self._on_draining = on_draining
        self._hurried = asyncio.Event()
        self._shutdown_timeout_s = served.config.shutdown_timeout_s
        self._servers = servers
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Do what Ctrl-C does; callable from any thread."""
        self._loop.call_soon_threadsafe(self.signalled)

    def at_signals(self) -> contextlib.AbstractContextManager[None]:
        """Drain at the first signal, exit at once at a later Ctrl-C. SIGTERM and SIGHUP wait for episodes."""
        return at_ending_signals(self._received)

    def _received(self, number: signal.Signals) -> None:
        if self._draining is None:
            log_end(number)
        self.signalled(episodes=number != signal.SIGINT)

    def begin(self) -> None:
        """Begin what the first Ctrl-C begins, unless a signal has begun it. Called on the loop."""
        if self._draining is None:
            self.signalled()

    def hurry(self) -> None:
        """Do not wait for episodes, now or later. Called on the loop."""
        self._hurried.set()

    def signalled(self, *, episodes: bool = False) -> None:
        """Drain, or at a later call without ``episodes`` exit at once. Called on the loop.

        Args:
            episodes: wait for running episodes first.
        """
        if self._draining is not None:
            for server in () if episodes else self._servers:
                server.force_exit = server.should_exit = True
            return
        if not episodes:
            self.hurry()
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        self._served.pool.slots.close()
        self._on_draining()
        await self._wait_for_episodes()
        try:
            async with asyncio.timeout(self._shutdown_timeout_s):
                await self._served.pool.drain(lingers=not self._hurried.is_set())
                self._served.stop_streams()
                if self._also is not None:
                    await self._also()
        except TimeoutError:
            logger.warning("steps did not finish within %g s", self._shutdown_timeout_s)
        self._served.stop_streams()
        for server in self._servers:
            server.should_exit = True

    async def _wait_for_episodes(self) -> None:
        pool, limit_s = self._served.pool, self._served.config.drain_s
        waiting = pool.in_episodes()
        if not waiting or self._hurried.is_set() or limit_s <= 0:
            return
        began = time.monotonic()
        labels = ", ".join(session.label for session in waiting[:SHOWN_SESSIONS])
        more = f" and {len(waiting) - SHOWN_SESSIONS} more" if len(waiting) > SHOWN_SESSIONS else ""
        sessions = f"{len(waiting)} session{'s' if len(waiting) > 1 else ''}"
        logger.info("draining: waiting up to %g s for the episodes of %s: %s", limit_s, sessions, labels + more)
        while waiting and (left_s := began + limit_s - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurried.wait(), min(LOOK_S, left_s))
                return
            waiting = pool.in_episodes()
        if waiting:
            logger.warning("draining: %d episodes did not end within %g s", len(waiting), limit_s)
        else:
            logger.info("draining: all episodes ended after %.1f s", time.monotonic() - began)


@contextlib.contextmanager
def at_ending_signals(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call a function on the running loop at each of the signals while the block runs.

    If one came, later SIGTERMs and SIGHUPs of this process are ignored: it ends, in order. Outside of the main thread,
    which alone gets signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, seen = asyncio.get_running_loop(), False

    def received(number: signal.Signals) -> None:
        nonlocal seen
        seen = True
        handle(number)

    def wake(number: int, _: object) -> None:
        loop.call_soon_threadsafe(received, signal.Signals(number))

    # Not by the loop's methods: when it removes a handler, the next signal would end the process.
    usual = {number: signal.signal(number, wake) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in usual.items():
            ignored = seen and number != signal.SIGINT
            signal.signal(number, signal.SIG_IGN if ignored else handler or signal.SIG_DFL)


def log_end(number: signal.Signals) -> None:
    """Log that a signal ends the server."""
    logger.info("%s: this server takes no new sessions, and ends", number.name)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigurationError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY on accepted sockets only if the protocol is named. Without it, small replies wait 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        hint = ". Choose another port, or --port 0 for any free one" if in_use else ""
        raise ConfigurationError(f"cannot listen on {host}:{port}: {reason}{hint}") from error
    listening.setblocking(False)
    return listening


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of event loops; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    factory: Any = uvloop.new_event_loop
    return factory  # type: ignore[no-any-return]


async def serve_until_signal(app: ASGIApp, door: socket.socket, on_started: Callable[[], None]) -> None:
    """Serve an application that has no sessions until Ctrl-C or SIGTERM comes."""
    server = HTTPServer(settings_of(app, ServerConfig()))

    def stop(_: signal.Signals) -> None:
        server.should_exit = True

    with at_ending_signals(stop):
        await server.serve_at(door, on_started)


async def serve_doors(
    served: EnvServer, doors: Sequence[tuple[HTTPServer, socket.socket | None]], on_started: Callable[[], None]
) -> None:
    """Serve at all listening sockets until all have ended.

    Args:
        doors: pairs of an application's server and its listening socket.
        on_started: called once, when all servers accept connections.
    """
    allow_many(served.pool.slots.limit)
    connections = doors[0][0].open_connections
    connections.most = connections_allowed()
    connections.counters = served.pool.counters
    served.pool.slots.connections_full = lambda: connections.full(asking=1)
    for server, _ in doors:
        server.share(connections)

    def answering() -> None:
        if all(server.started for server, _ in doors):
            on_started()

    tasks = [asyncio.ensure_future(server.serve_at(door, answering)) for server, door in doors]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
