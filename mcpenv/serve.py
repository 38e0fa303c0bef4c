"""Serving: the process around an app. HTTP by uvicorn with an orderly end, or stdio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import uvicorn
from fastmcp.server.auth import AuthProvider
from fastmcp.utilities.logging import configure_logging as configure_fastmcp_logging
from mcp import MCPDeprecationWarning
from starlette.applications import Starlette

from mcpenv_client.tools import Mode

from .app import EnvServer
from .config import ServerConfig
from .errors import ConfigurationError
from .guard import is_loopback
from .session import SessionPool
from .source import EnvFactory

logger = logging.getLogger("mcpenv")

FRAME_HEADROOM = 4
"""Frames up to this many times the limit are read and refused in words; larger ones end their connection."""


def serve_http(
    env_factory: EnvFactory,
    config: ServerConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    log_level: str = "info",
    readme: str | None = None,
    auth: AuthProvider | None = None,
    insecure: bool = False,
    on_started: Callable[[int], None] = lambda port: None,
) -> None:
    """Serve until a signal comes; then steps under way finish, environments are closed, and this returns.

    Args:
        port: 0 for any free one.
        auth: who may use the agent plane.
        insecure: serve other machines without credentials.
        on_started: called once with the port when the server answers.

    Raises:
        StartupError: the port is in use, the host is not loopback, the environment does not start.
    """
    missing = [
        name for name, given in (("a control token", config.control_token), ("agent authentication", auth)) if not given
    ]
    if missing and not insecure and not is_loopback(host):
        raise ConfigurationError(
            f"host {host} is not loopback, and there is no {' and no '.join(missing)}: use 127.0.0.1, give "
            "credentials, or say --insecure"
        )
    configure_logging(log_level)
    server = EnvServer(env_factory, config=config, readme=readme, auth=auth)
    listening = _listen(host, port)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(server, listening, lambda _: on_started(listening.getsockname()[1])))
    finally:
        listening.close()


def serve_stdio(env_factory: EnvFactory, config: ServerConfig, *, log_level: str = "info") -> None:
    """Serve one MCP client over stdin and stdout until it closes them.

    Raises:
        StartupError: the environment does not start.
    """
    configure_logging(log_level)
    server = EnvServer(env_factory, config=config)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        if runner.run(_serve_stdio(server, log_level)):
            # A thread waits for the next line of stdin and cannot be stopped; everything else has ended.
            os._exit(0)


def configure_logging(level: str) -> None:
    """Log to stderr: ours from ``level`` up ("debug", ...); what we stand on from warnings up, unless debugging."""
    ours = logging.getLevelNamesMapping()[level.upper()]
    beneath = ours if ours <= logging.DEBUG else max(ours, logging.WARNING)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=beneath)
    logging.getLogger("mcpenv").setLevel(ours)
    configure_fastmcp_logging(level=beneath)
    # One record per message to a client, at DEBUG, whatever FastMCP's level is.
    logging.getLogger("fastmcp.server.context.to_client").setLevel(beneath)
    if beneath > logging.DEBUG:
        warnings.simplefilter("ignore", MCPDeprecationWarning)


async def _serve_stdio(server: EnvServer, log_level: str) -> bool:
    """Serve until stdin ends (False) or a signal comes (True)."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError):  # Windows
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
    async with server.source.running(), server.pool.running():
        serving = asyncio.ensure_future(server.agent_server.run_stdio_async(show_banner=False, log_level=log_level))
        stopping = asyncio.ensure_future(stopped.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            stopping.cancel()
            serving.result()
    return stopped.is_set()


@contextlib.contextmanager
def serving(
    env_factory: EnvFactory,
    config: ServerConfig | None = None,
    *,
    mode: Mode | str | None = None,
    port: int = 0,
    auth: AuthProvider | None = None,
) -> Iterator[str]:
    """A server in a thread of this process, for tests and notebooks; gives its base URL.

    Raises:
        StartupError: as `serve_http`.
    """
    server = EnvServer(env_factory, config=config, mode=mode, auth=auth)
    listening = _listen("127.0.0.1", port)
    started: Future[_Server] = Future()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(_serve(server, listening, started.set_result))
        except BaseException as error:  # handed to whoever waits for the start
            if not started.done():
                started.set_exception(error)
            else:
                logger.exception("the server ended with an error")

    thread = threading.Thread(target=run, name="mcpenv-serving", daemon=True)
    thread.start()
    try:
        uvicorn_server = started.result()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            uvicorn_server.stop()
    finally:
        thread.join()
        listening.close()


async def _serve(server: EnvServer, listening: socket.socket, on_started: Callable[[_Server], None]) -> None:
    async with server.running():
        config = server.config
        settings = uvicorn.Config(
            Starlette(routes=server.routes()),
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="websockets-sansio",
            ws_max_size=config.max_message_bytes * FRAME_HEADROOM,
            ws_ping_interval=config.ping_interval_s,
            ws_ping_timeout=config.ping_interval_s,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=int(config.shutdown_timeout_s) + 1,
            server_header=False,
            # Whom to believe about X-Forwarded-* is a setting of ours.
            proxy_headers=False,
        )
        await _Server(settings, server.pool, config.shutdown_timeout_s, on_started).serve(sockets=[listening])


class _Server(uvicorn.Server):
    """uvicorn, with an orderly end: at a signal no new sessions, steps under way finish, then the connections close.

    uvicorn by itself closes WebSockets in the middle of a step, and dies of the signal it caught.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        pool: SessionPool,
        shutdown_timeout_s: float,
        on_started: Callable[[_Server], None],
    ) -> None:
        super().__init__(config)
        self._pool = pool
        self._shutdown_timeout_s = shutdown_timeout_s
        self._on_started = on_started
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, and say so."""
        await super().startup(sockets)
        self._on_started(self)

    def stop(self) -> None:
        """What a signal does; from any thread."""
        self._loop.call_soon_threadsafe(self._signalled)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain at the first signal, end at once at the second; the process then exits by itself."""
        loop = asyncio.get_running_loop()
        caught = (signal.SIGINT, signal.SIGTERM)
        try:
            for number in caught:
                loop.add_signal_handler(number, self._signalled)
        except (NotImplementedError, RuntimeError, ValueError):
            # Windows, or not the main thread: uvicorn's own way.
            with super().capture_signals():
                yield
            return
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        if self._draining is not None:
            self.force_exit = self.should_exit = True
            return
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        self._pool.draining = True
        try:
            async with asyncio.timeout(self._shutdown_timeout_s):
                await self._pool.wait_idle()
        except TimeoutError:
            logger.warning("steps under way did not finish within %g s", self._shutdown_timeout_s)
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named so that asyncio sets TCP_NODELAY on what it accepts; without it small replies wait 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"cannot listen on {host}:{port}: {reason}") from error
    listening.setblocking(False)
    return listening


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    factory: Any = uvloop.new_event_loop
    return factory  # type: ignore[no-any-return]
