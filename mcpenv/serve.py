"""Serving: the process around an app. HTTP by uvicorn with an orderly end, or stdio."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import uvicorn
from fastmcp.server.auth import AuthProvider
from fastmcp.utilities.logging import configure_logging as configure_fastmcp_logging
from mcp import MCPDeprecationWarning
from starlette.routing import BaseRoute

from mcpenv_client.tools import Mode

from .app import EnvServer, application
from .config import ServerConfig
from .errors import ConfigurationError
from .guard import is_loopback
from .http_head import HTTPProtocol
from .keep_alive import WebSocketProtocol
from .open_files import allow_many
from .source import EnvFactory

logger = logging.getLogger("mcpenv")

FRAME_HEADROOM = 4
"""Frames up to this many times the limit are read and refused in words; larger ones end their connection."""

YOUNG_OBJECTS = 20_000
"""Objects that a server makes, more than it frees, before the collector looks at the youngest; Python's own is 700."""

KEEP_ALIVE_S = 75
"""Seconds that an HTTP connection may be idle. Longer than clients keep theirs: who sends in the moment in which the
other end closes cannot know whether the request was read, and must not send a tool call twice."""


def serve_http(
    env_factory: EnvFactory,
    config: ServerConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    control_host: str = "127.0.0.1",
    control_port: int | None = None,
    log_level: str = "info",
    readme: str | None = None,
    auth: AuthProvider | None = None,
    insecure: bool = False,
    on_started: Callable[[int, int], None] = lambda port, control_port: None,
) -> None:
    """Serve until a signal comes; then steps under way finish, environments are closed, and this returns.

    Args:
        port: 0 for any free one.
        control_host, control_port: where the control plane is, at an address of its own; with port None it is beside
            the agent plane.
        auth: who may use the agent plane.
        insecure: serve other machines without credentials.
        on_started: called once with the port of the agent plane and that of the control plane when both answer.

    Raises:
        StartupError: a port is in use, a host is not loopback, the environment does not start.
    """
    split = control_port is not None
    if not insecure:
        token, agents = ("a control token", config.control_token), ("agent authentication", auth)
        has_control = not split and config.mode is Mode.SIMULATION  # in production it exists only with the token
        _refuse_exposed(host, *((token, agents) if has_control else (agents,)))
        _refuse_exposed(control_host, *((token,) if split else ()))
    if split and config.public_url is None and is_wildcard(host):
        raise ConfigurationError(
            f"host {host or '(empty)'} is no address that a client can use: with a control plane of its own, "
            "mcp_url needs --public-url"
        )
    configure_logging(log_level)
    with contextlib.ExitStack() as stack:
        agent_door = control_door = stack.enter_context(_listen(host, port))
        if control_port is not None:
            control_door = stack.enter_context(_listen(control_host, control_port))
            if config.public_url is None:
                # Orchestrators ask at the control plane's address; what they hand to agents is the other one.
                config = replace(config, public_url=f"http://{address_of(host, _port(agent_door))}")
        server = EnvServer(env_factory, config=config, readme=readme, auth=auth)
        runner = stack.enter_context(asyncio.Runner(loop_factory=_loop_factory()))
        _tune_collector()
        runner.run(
            _serve(server, agent_door, control_door, lambda _: on_started(_port(agent_door), _port(control_door)))
        )


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


def _tune_collector() -> None:
    """Have the cycle collector look at what sessions made, not at what was imported, and not every fifty steps.

    Records live as long as their episode: as Python sets it, the collector goes through all of them again and again,
    which was a fifth of the time of a step. What has no cycles, as nearly everything here, is freed without it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


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
        serving = asyncio.ensure_future(
            server.agent_server.run_stdio_async(
                show_banner=False, log_level="debug" if log_level == "debug" else "warning"
            )
        )
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
    started: Future[_Ending] = Future()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(_serve(server, listening, listening, started.set_result))
        except BaseException as error:  # handed to whoever waits for the start
            if not started.done():
                started.set_exception(error)
            else:
                logger.exception("the server ended with an error")

    thread = threading.Thread(target=run, name="mcpenv-serving", daemon=True)
    thread.start()
    try:
        ending = started.result()
        try:
            yield f"http://127.0.0.1:{_port(listening)}"
        finally:
            ending.stop()
    finally:
        thread.join()
        listening.close()


async def _serve(
    server: EnvServer,
    agent_door: socket.socket,
    control_door: socket.socket,
    on_started: Callable[[_Ending], None],
) -> None:
    """Serve both planes, at one address or at one each; they begin and end together.

    Each door has a server with its own routes: what is not among them cannot be reached there, whatever is asked.
    """
    async with server.running():
        allow_many(server.pool.slots.limit)
        if agent_door is control_door:
            doors = [(server.routes(), agent_door)]
        else:
            doors = [
                ([*server.probe_routes(), *server.agent_routes()], agent_door),
                ([*server.probe_routes(), *server.control_routes()], control_door),
            ]
        servers = [_Server(_settings(routes, server.config)) for routes, _ in doors]
        ending = _Ending(server, servers)

        def answering() -> None:
            if all(each.started for each in servers):
                on_started(ending)

        with ending.at_signals():
            tasks = [
                asyncio.ensure_future(each.serve_at(door, answering))
                for each, (_, door) in zip(servers, doors, strict=True)
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)


def _settings(routes: list[BaseRoute], config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        application(routes),
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
        # Whom to believe about X-Forwarded-* is a setting of ours.
        proxy_headers=False,
    )


class _Server(uvicorn.Server):
    """uvicorn without its own end: it closes WebSockets in the middle of a step, and dies of the signal it caught."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._on_answering: Callable[[], None] = lambda: None

    async def serve_at(self, door: socket.socket, on_answering: Callable[[], None]) -> None:
        """Serve at a bound socket until told to exit."""
        self._on_answering = on_answering
        await self.serve(sockets=[door])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, and say so."""
        await super().startup(sockets)
        self._on_answering()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Signals are for all servers of the process together."""
        return contextlib.nullcontext()


class _Ending:
    """The orderly end of all servers: at a signal no new sessions, steps under way finish, then connections close.

    Args:
        served: whose sessions end; its ``shutdown_timeout_s`` is how long their steps may take.
    """

    def __init__(self, served: EnvServer, servers: Sequence[uvicorn.Server]) -> None:
        self._served = served
        self._shutdown_timeout_s = served.config.shutdown_timeout_s
        self._servers = servers
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """What a signal does; from any thread."""
        self._loop.call_soon_threadsafe(self._signalled)

    @contextlib.contextmanager
    def at_signals(self) -> Iterator[None]:
        """Drain at the first signal, end at once at the second; the process then exits by itself."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread gets signals
            return
        caught = (signal.SIGINT, signal.SIGTERM)
        try:
            for number in caught:
                self._loop.add_signal_handler(number, self._signalled)
        except NotImplementedError:  # Windows
            usual = [signal.signal(number, lambda *_: self.stop()) for number in caught]
            try:
                yield
            finally:
                for number, handler in zip(caught, usual, strict=True):
                    signal.signal(number, handler)
            return
        try:
            yield
        finally:
            for number in caught:
                self._loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        if self._draining is not None:
            for server in self._servers:
                server.force_exit = server.should_exit = True
            return
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._shutdown_timeout_s):
                await self._served.pool.drain()
        except TimeoutError:
            logger.warning("steps under way did not finish within %g s", self._shutdown_timeout_s)
        self._served.stop_streams()
        for server in self._servers:
            server.should_exit = True


def address_of(host: str, port: int) -> str:
    """Host and port as they stand in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _port(listening: socket.socket) -> int:
    port: int = listening.getsockname()[1]
    return port


def _refuse_exposed(host: str, *needed: tuple[str, object]) -> None:
    """Other machines reach only what is guarded.

    Raises:
        ConfigurationError: the host is not loopback, and a credential is not given.
    """
    missing = [name for name, given in needed if not given]
    if missing and not is_loopback(host):
        raise ConfigurationError(
            f"host {host} is not loopback, and has no credentials ({' and '.join(missing)}): use 127.0.0.1, "
            "give credentials, or say --insecure"
        )


def is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of this machine."""
    try:
        return host == "" or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


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
