"""The command ``mcpenv run``: serve an environment and print how to use it."""

from __future__ import annotations

import functools
import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TextIO

from cyclopts import Parameter
from fastmcp.server.auth import AuthProvider
from watchfiles import Change, PythonFilter, run_process

from mcpenv.errors import ConfigurationError
from mcpenv.integrations.mcp_proxy.target import PREFIX
from mcpenv.packaging.manifest import MANIFEST
from mcpenv.packaging.target import Target, load_target, manifest_of, watched_path
from mcpenv.server.config import ServerConfig
from mcpenv.server.logs import LogFormat
from mcpenv.server.security.host_check import is_loopback
from mcpenv.server.serve import Listening, address_of, is_wildcard, serve_http, serve_stdio, serve_workers
from mcpenv.server.workers.worker import Served
from mcpenv_client.types.tools import Mode

from .hosts.hosts import PASTED, Place, Server
from .mode import mode_for
from .output import Page, author_output, note
from .run_options import Addresses, Credentials, Limits, Sessions, config_from, with_manifest
from .tokens import AGENT_TOKEN

LOOPBACK = "127.0.0.1"

RELOADED = "WATCHFILES_CHANGES"
"""The environment variable that watchfiles sets for its child process: a JSON list, empty at the first start."""


def run(
    target: str | None = None,
    /,
    *,
    mcp: str | None = None,
    mode: Literal["simulation", "production"] | None = None,
    transport: Literal["http", "stdio"] = "http",
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    tasks: Path | None = None,
    record: Path | None = None,
    console: Annotated[bool | None, Parameter(show_default=False)] = None,
    workers: int = 1,
    ready_file: Path | None = None,
    reload: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info",
    log_format: LogFormat = "text",
    no_access_log: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    addresses: Addresses = Addresses(),  # noqa: B008 - frozen
    credentials: Credentials = Credentials(),  # noqa: B008
    sessions: Sessions = Sessions(),  # noqa: B008
    limits: Limits = Limits(),  # noqa: B008
) -> int:
    """Serve an environment over HTTP or stdio.

    Args:
        target: Folder with mcpenv.yaml or environment.py, .py file, folder:Class, module:Class, module:factory, an
            installed name, or a JSON file with mcpServers, or cassette:RECORD.
        mcp: Command or URL of an MCP server to serve as an environment, instead of a target.
        mode: simulation for orchestrators, production for live clients. Default: MCPENV_MODE, or simulation.
        transport: http for many clients, stdio for the client that starts this command.
        settings: name=value for the environment's constructor, or for mcpenv in a JSON file. May be
            given several times.
        tasks: Tasks to use instead of the environment's own: a .jsonl file, a .parquet file or a dataset's folder.
        record: Folder to write every episode to; see: mcpenv trajectories --help
        console: Serve the console at /console. Default: MCPENV_CONSOLE, or in simulation only. In production it needs a
            control token.
        workers: Number of processes that serve together as one server. Useful for tools that use much CPU time.
        ready_file: File to write once the server accepts connections: a JSON object with url and mcp_url.
        reload: Restart when a Python file of the environment, or its mcpenv.yaml, changes.
        log_level: Lowest level of messages to log to stderr. No level logs tokens, handles or secret settings.
        log_format: Log lines of text, or JSON objects, one a line.
        no_access_log: Do not log tool calls. They are logged at level info, without arguments.
        debug: Show the traceback when something fails.
    """
    if (target is None) == (mcp is None):
        raise ConfigurationError("name one environment: a TARGET, or --mcp with the command or URL of an MCP server")
    target = target if target is not None else f"{PREFIX}{mcp}"
    manifest = manifest_of(target)
    sessions, limits = with_manifest(sessions, limits, manifest)
    config = replace(config_from(mode_for(mode, manifest), addresses, sessions, limits), record=record, console=console)
    if record is not None and (config.mode is not Mode.SIMULATION or transport == "stdio"):
        where = "over stdio" if transport == "stdio" else f"in {config.mode.value} mode"
        raise ConfigurationError(f"--record: there are no episodes to record {where}")
    if console and transport == "stdio":
        raise ConfigurationError("--console needs --transport http: over stdio there is no page")
    if workers < 1:
        raise ConfigurationError(f"--workers is {workers}; it must be 1 or more")
    if workers > 1 and sys.platform == "win32":
        raise ConfigurationError("--workers needs Unix sockets, which this system does not have")
    if workers > 1 and transport == "stdio":
        raise ConfigurationError("--workers needs --transport http: over stdio there is only one client")
    if ready_file is not None:
        _prepare_ready_file(ready_file, transport)
    if reload:
        if transport == "stdio":
            raise ConfigurationError("--reload needs --transport http: over stdio the client would lose its session")
        return _run_reloading(target)
    # Tokens are taken out of the environment before user code is loaded, so that it cannot read them.
    config, agents = credentials.read(config)
    config = config.with_console() if transport == "http" else replace(config, console=False)
    auth = agents()
    with author_output():
        loaded = load_target(target, settings or (), tasks)
    if transport == "stdio":
        _introduce_stdio(sys.stderr, loaded, config)
        serve_stdio(loaded.factory, config, log_level=log_level, log_format=log_format, access_log=not no_access_log)
        return 0
    introduction = _Introduction(loaded, config, addresses)
    listening = Listening(
        addresses.host, addresses.port, addresses.control_host or LOOPBACK, addresses.control_port, credentials.insecure
    )
    on_started = functools.partial(introduction.show, sys.stdout, ready_file)
    if workers > 1:
        load = functools.partial(_load_again, target, settings, tasks, agents)
        serve_workers(
            load,
            config,
            workers,
            listening,
            agents_need_token=auth is not None,
            log_level=log_level,
            log_format=log_format,
            access_log=not no_access_log,
            on_started=on_started,
        )
        return 0
    serve_http(
        loaded.factory,
        config,
        host=addresses.host,
        port=addresses.port,
        control_host=addresses.control_host or LOOPBACK,
        control_port=addresses.control_port,
        log_level=log_level,
        log_format=log_format,
        access_log=not no_access_log,
        readme=loaded.readme,
        auth=auth,
        insecure=credentials.insecure,
        on_started=on_started,
    )
    return 0


def _prepare_ready_file(file: Path, transport: str) -> None:
    """Remove the file that an earlier server has left.

    Raises:
        ConfigurationError: there is none to write over this transport, or not in this folder.
    """
    if transport == "stdio":
        raise ConfigurationError("--ready-file needs --transport http: over stdio there is no address")
    if not os.access(file.parent, os.W_OK):
        raise ConfigurationError(f"--ready-file {file}: the folder does not exist, or cannot be written to")
    if file.is_dir():
        raise ConfigurationError(f"--ready-file {file}: it is a folder; name a file")
    file.unlink(missing_ok=True)


def _load_again(
    target: str, settings: list[str] | None, tasks: Path | None, agents: Callable[[], AuthProvider | None]
) -> Served:
    """Load what `run` serves, in a worker process."""
    with author_output():
        loaded = load_target(target, settings or (), tasks)
    return Served(loaded.factory, agents(), loaded.readme)


# -- introductions


@dataclass(frozen=True)
class _Introduction:
    """The text that is printed once a server accepts connections: its URLs and how to use them."""

    target: Target
    config: ServerConfig
    addresses: Addresses
    agents_need_token: bool = False

    def show(
        self, stream: TextIO, ready_file: Path | None, port: int, control_port: int, agents_need_token: bool
    ) -> None:
        """Write the ready file, if there is to be one, and print the text to ``stream``."""
        if ready_file is not None:
            self._write(ready_file, port, control_port)
        replace(self, agents_need_token=agents_need_token)._show(stream, port, control_port)

    def _write(self, ready_file: Path, port: int, control_port: int) -> None:
        public = self.config.public_url or f"http://{self._here(self.addresses.host, port)}"
        ready = {"url": f"http://{self._control(port, control_port)}", "mcp_url": f"{public}/mcp"}
        # Renamed into place, so that no reader finds a half.
        written = ready_file.with_name(f".{ready_file.name}.{os.getpid()}")
        written.write_text(json.dumps(ready) + "\n", encoding="utf-8")
        written.replace(ready_file)

    def _show(self, stream: TextIO, port: int, control_port: int) -> None:
        page, config = Page(stream), self.config
        here, control = self._here(self.addresses.host, port), self._control(port, control_port)
        title = (_title(self.target), "bold")
        if os.environ.get(RELOADED, "[]") != "[]":
            page.line(title, f" reloaded, {config.mode.value} mode, http://{here}")
            return
        public = config.public_url or f"http://{here}"
        page.line(title, f" in {config.mode.value} mode")
        page.line()
        mcp = "episodes/HANDLE/mcp" if config.require_handle else "mcp"
        page.line("MCP      ", (f"http://{here}/{mcp}", "cyan"), indent=2)
        if config.public_url is not None:
            page.line("public   ", (f"{public}/{mcp}", "cyan"), indent=2)
        if self._controlled:
            page.line("control  ", (f"ws://{control}/ws", "cyan"), indent=2)
        page.line("docs     ", (f"http://{control}/docs", "cyan"), indent=2)
        if config.console:
            page.line("console  ", (f"http://{control}/console", "cyan"), indent=2)
        if config.record is not None:
            page.line("record   ", (str(config.record), "cyan"), indent=2)
        page.line()
        if config.require_handle:
            page.line("Agents are served only at an episode's own URL, info.mcp_url of a reset.")
        else:
            bearer = " --bearer" if self.agents_need_token else ""
            page.line("agents   ", (f"mcpenv connect claude-code {public}/mcp{bearer}", "cyan"), indent=2)
            page.line("         ", ("or another host: mcpenv connect --help", "dim"), indent=2)
        if self._controlled:
            token = ', headers={"Authorization": "Bearer ..."}' if config.control_token is not None else ""
            page.line("Python   ", (f'EnvClient("http://{control}"{token}).sync()', "cyan"), indent=2)
        page.line()
        for line in self._notes():
            page.line(line)
        page.line(("Ctrl-C stops the server.", "dim"))

    def _notes(self) -> list[str | tuple[str, str]]:
        config = self.config
        notes: list[str | tuple[str, str]] = []
        if self.agents_need_token:
            notes.append(f"Agents need a token ({AGENT_TOKEN}); mcpenv connect --bearer shows where it goes.")
        elif not config.require_handle:
            notes.append("Anonymous stateless MCP clients share one instance of the environment.")
        if config.mode is Mode.SIMULATION and config.control_token is None:
            notes.append("Without a control token, an agent on this machine can reach the control plane.")
        if self._exposed:
            notes.append((f"Other machines reach {' and '.join(self._exposed)} without credentials.", "bold yellow"))
        return notes

    @property
    def _controlled(self) -> bool:
        return self.config.mode is Mode.SIMULATION or self.config.control_token is not None

    @property
    def _exposed(self) -> list[str]:
        """The parts of the server that ``--insecure`` opens to other machines."""
        apart = self.addresses.control_port is not None
        control_host = (self.addresses.control_host or LOOPBACK) if apart else self.addresses.host
        exposed = []
        if not self.agents_need_token and not is_loopback(self.addresses.host):
            exposed.append("the tools")
        if self._controlled and self.config.control_token is None and not is_loopback(control_host):
            exposed.append("the control plane")
        return exposed

    def _control(self, port: int, control_port: int) -> str:
        if self.addresses.control_port is None:
            return self._here(self.addresses.host, port)
        return self._here(self.addresses.control_host or LOOPBACK, control_port)

    def _here(self, host: str, port: int) -> str:
        """Return the address with which a client on this machine connects."""
        if is_wildcard(host):
            host = "::1" if ":" in host else LOOPBACK
        return address_of(host, port)


def _introduce_stdio(stream: TextIO, target: Target, config: ServerConfig) -> None:
    """Print one line for the host's log; on a terminal, also how to configure a host."""
    page = Page(stream)
    page.line((_title(target), "bold"), f" in {config.mode.value} mode: MCP on stdin and stdout")
    if sys.stdin.isatty():
        page.line()
        server = Server.over_stdio(target.name, target.spec, ("--mode", config.mode.value))
        _print_pasted(page, server)
        page.line(("Ctrl-D stops the server.", "dim"))


def _print_pasted(page: Page, server: Server) -> None:
    page.line("To use it from an MCP host, paste (or see: mcpenv connect --help)")
    page.line()
    place = Place.here()
    for host in PASTED:
        file = host.file(place)
        page.line((host.title, "bold"), (f"  {_shown(file, place)}" if file is not None else "", "dim"), indent=2)
        page.block(host.snippet(server), indent=4)
        page.line()


def _title(target: Target) -> str:
    return target.environment_class.exposed_name() if target.environment_class is not None else target.name


def _shown(file: Path, place: Place) -> str:
    if file.is_relative_to(place.folder):
        return str(file.relative_to(place.folder))
    return f"~/{file.relative_to(place.home).as_posix()}" if file.is_relative_to(place.home) else str(file)


# -- reload


def _run_reloading(target: str) -> int:
    """Run the same command without ``--reload`` in a child process; restart it after each change of a Python file."""
    watched = watched_path(target)
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--reload")]
    command = [sys.executable, "-m", "mcpenv", *arguments]
    # watchfiles takes one string and splits it as the system's shell does.
    text = subprocess.list2cmdline(command) if sys.platform == "win32" else shlex.join(command)
    # A child process that fails has reported why itself.
    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    note(f"Watching {watched} for changes.")
    run_process(
        watched,
        target=text,
        target_type="command",
        watch_filter=PythonFilter(extra_extensions=(MANIFEST,)),
        callback=_tell_changes,
    )
    return 0


def _tell_changes(changes: set[tuple[Change, str]]) -> None:
    names = ", ".join(sorted({Path(path).name for _, path in changes}))
    note(f"{names} changed, restarting.")
