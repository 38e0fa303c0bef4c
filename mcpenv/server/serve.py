"""Serving: the process around an app. HTTP by uvicorn with an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

from mcpenv.errors import ConfigurationError
from mcpenv_client.types.tools import Mode

from .app import AgentAuth, EnvServer
from .config import ConcurrencyConfig, LogFormat, ServerConfig
from .extension import Workers, installed
from .extension import load as extension
from .http.gc_tuning import tuned_gc
from .logs import configure_logging
from .security.host_check import is_loopback
from .sessions.factory import EnvFactory
from .uvicorn_server import Ending, HTTPServer, listen, loop_factory, serve_doors, settings_of

logger = logging.getLogger("mcpenv")

OnStarted = Callable[[int, int, bool], None]
"""Called with the port of the agent plane, that of the control plane, and True if agents need a token."""

ENDED = "this server has ended"


@dataclass(frozen=True)
class Served:
    """The environment that is served, as a process of several loads it.

    Attributes:
        auth: the authentication of agents, as for `mcpenv.server.create_app`.
    """

    env_factory: EnvFactory
    auth: AgentAuth = None
    readme: str | None = None


def serve_http(
    env_factory: EnvFactory,
    config: ServerConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    control_host: str = "127.0.0.1",
    control_port: int | None = None,
    log_level: str = "info",
    log_format: LogFormat = "text",
    access_log: bool = True,
    readme: str | None = None,
    auth: AgentAuth = None,
    insecure: bool = False,
    on_started: OnStarted = lambda port, control_port, agents_need_token: None,
) -> None:
    """Serve until a signal comes; then running steps finish, environments are closed, and this returns.

    Args:
        port: 0 for any free one.
        control_host, control_port: where the control plane is, at an address of its own; with port None it is beside
            the agent plane.
        log_format: messages as lines of text, or as JSON objects.
        access_log: log each tool call, at "info".
        auth: who may use the agent plane, as for `mcpenv.server.create_app`.
        insecure: serve other machines without credentials.
        on_started: called once, when both planes answer.

    Raises:
        StartupError: a port is in use, a host is not loopback, the environment does not start.
    """
    listening = Listening(host, port, control_host, control_port, insecure)
    # The environment's FastMCP server may authenticate agents. That is known once the environment is.
    listening.check(config, agents_need_token=None if auth is None else bool(auth))
    configure_process(log_level, log_format, access_log)
    with listening.doors() as doors:
        server = EnvServer(env_factory, config=listening.with_address(config, doors), readme=readme, auth=auth)

        def check() -> None:
            listening.check(config, agents_need_token=server.agent_server.auth is not None)

        def started(_: Ending) -> None:
            on_started(_port(doors[0]), _port(doors[-1]), server.agent_server.auth is not None)

        with asyncio.Runner(loop_factory=loop_factory()) as runner, tuned_gc():
            runner.run(_serve(server, doors[0], doors[-1], started, check))
    logger.info(ENDED)


def serve_workers(
    load: Callable[[], Served],
    config: ServerConfig,
    workers: int,
    listening: Listening,
    *,
    agents_need_token: bool = False,
    log_level: str = "info",
    log_format: LogFormat = "text",
    access_log: bool = True,
    on_started: OnStarted = lambda port, control_port, agents_need_token: None,
) -> None:
    """Serve with several processes; otherwise as `serve_http`.

    Args:
        load: gives what is served; pickled, and called in each of the processes.
        workers: how many of them.
        agents_need_token: what it gives has an ``auth``.

    Raises:
        StartupError: as `serve_http`; or there are wires, whose requests several workers cannot answer.
    """
    if config.wires and workers > 1:
        raise ConfigurationError(f"the wire {config.wires[0]} needs a server with one worker; there are {workers}")
    listening.check(config, agents_need_token=agents_need_token)
    configured = functools.partial(configure_process, log_level, log_format, access_log)
    configured()
    with listening.doors() as doors:
        loaded = functools.partial(_loaded, load, configured)
        server = _workers()(loaded, listening.with_address(config, doors), workers, doors, not agents_need_token)
        server.serve(lambda: on_started(_port(doors[0]), _port(doors[-1]), agents_need_token))
    logger.info(ENDED)


def _workers() -> type[Workers]:
    """Return the extension that serves with several processes."""
    cls: type[Workers] = extension("workers")
    return cls


def configure_process(log_level: str, log_format: LogFormat, access_log: bool) -> None:
    """Set up the logs and the traces of a process.

    Raises:
        ConfigurationError: the environment variables ask for traces that cannot be exported.
    """
    configure_logging(log_level, log_format, access_log=access_log)
    if "traces" in installed():
        extension("traces")()


def _loaded(load: Callable[[], Served], configured: Callable[[], None]) -> Served:
    configured()
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the hub logs what concerns processes
    return load()


@dataclass(frozen=True)
class Listening:
    """The addresses on which a server listens.

    Attributes:
        port: 0 for any free one.
        control_port: None: the control plane is beside the agent plane.
        insecure: serve other machines without credentials.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    control_host: str = "127.0.0.1"
    control_port: int | None = None
    insecure: bool = False

    def check(self, config: ServerConfig, *, agents_need_token: bool | None) -> None:
        """Raise if other machines could connect without credentials.

        Args:
            agents_need_token: None if that is not known yet, and therefore no reason to raise.

        Raises:
            ConfigurationError: a host is not loopback, or is none that clients could use, or a wire needs one address.
        """
        split = self.control_port is not None
        if split and "nemo-gym" in config.wires:
            raise ConfigurationError(
                "the wire nemo-gym needs agents and control plane at one address; leave out the control port"
            )
        if not self.insecure:
            token = ("a control token", bool(config.control_token))
            agents = ("agent authentication", agents_need_token)
            has_control = not split and config.mode is Mode.SIMULATION  # in production it exists only with the token
            _refuse_exposed(self.host, *((token, agents) if has_control else (agents,)))
            _refuse_exposed(self.control_host, *((token,) if split else ()))
        if split and config.public_url is None and is_wildcard(self.host):
            raise ConfigurationError(
                f"host {self.host or '(empty)'} is no address that a client can use: with a control plane of its own, "
                "mcp_url needs --public-url"
            )

    @property
    def is_local(self) -> bool:
        """True if only this machine can connect."""
        return is_loopback(self.host) and (self.control_port is None or is_loopback(self.control_host))

    @contextlib.contextmanager
    def doors(self) -> Iterator[list[socket.socket]]:
        """Open the listening socket of agents, and that of the control plane if it is separate.

        Raises:
            ConfigurationError: a port is in use.
        """
        with contextlib.ExitStack() as stack:
            doors = [stack.enter_context(listen(self.host, self.port))]
            if self.control_port is not None:
                doors.append(stack.enter_context(listen(self.control_host, self.control_port)))
            yield doors

    def with_address(self, config: ServerConfig, doors: list[socket.socket]) -> ServerConfig:
        """Return the settings with the address at which agents connect."""
        if len(doors) == 1 or config.public_url is not None:
            return config
        # Orchestrators ask at the control plane's address; what they hand to agents is the other one.
        return replace(config, public_url=f"http://{address_of(self.host, _port(doors[0]))}")


@contextlib.contextmanager
def serving(
    env_factory: EnvFactory,
    config: ServerConfig | None = None,
    *,
    mode: Mode | str | None = None,
    concurrency: ConcurrencyConfig | None = None,
    max_concurrent_envs: int | None = None,
    port: int = 0,
    auth: AgentAuth = None,
    workers: int = 1,
) -> Iterator[str]:
    """Serve in a thread of this process, for tests and notebooks; yield the base URL.

    Args:
        mode, config, concurrency, max_concurrent_envs, auth: as those of `mcpenv.server.create_app`.
        workers: their number; one thread runs them all, so that more than one are of use to tests only.

    Raises:
        StartupError: as `serve_http`.
    """
    server = EnvServer(
        env_factory,
        config=config,
        mode=mode,
        concurrency=concurrency,
        max_concurrent_envs=max_concurrent_envs,
        auth=auth,
    )
    listening = listen("127.0.0.1", port)
    if workers > 1:
        served = Served(env_factory, auth)
        with listening, _workers()(lambda: served, server.config, workers, [listening], not auth).in_thread():
            yield f"http://127.0.0.1:{_port(listening)}"
        return
    started: Future[Ending] = Future()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(_serve(server, listening, listening, started.set_result))
        except BaseException as error:  # passed to the caller that waits for the start
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
    on_started: Callable[[Ending], None],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Serve both planes, on one address or two. They start and stop together.

    Each door has a server with its own routes: what is not among them cannot be reached there, whatever is asked.

    Args:
        check: as for `EnvServer.running`.
    """
    async with server.running(check=check):
        applications = server.applications(split=agent_door is not control_door)
        servers = [HTTPServer(settings_of(app, server.config)) for app in applications]
        ending = Ending(server, servers)
        # One door, or two: the other one is not looked at where there is one application.
        doors = list(zip(servers, (agent_door, control_door), strict=False))
        with ending.at_signals():
            await serve_doors(server, doors, lambda: on_started(ending))


def address_of(host: str, port: int) -> str:
    """Return host and port in the form of a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


def _refuse_exposed(host: str, *needed: tuple[str, bool | None]) -> None:
    """Raise if other machines could reach a plane without credentials.

    Args:
        needed: the credentials, with True if one is given, and None if that is not known yet.

    Raises:
        ConfigurationError: the host is not loopback, and a credential is not given.
    """
    missing = [name for name, given in needed if not given]
    if any(given is False for _, given in needed) and not is_loopback(host):
        raise ConfigurationError(
            f"host {host} is not loopback, and has no credentials ({' and '.join(missing)}): use 127.0.0.1, "
            "give credentials, or say --insecure"
        )


def is_wildcard(host: str) -> bool:
    """Return True if the host stands for all addresses of this machine."""
    try:
        return host == "" or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
