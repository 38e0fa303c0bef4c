"""``mcpenv run``: serve an environment, and say how to use it."""

from __future__ import annotations

import functools
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal, TextIO

from cyclopts import Parameter
from watchfiles import Change, PythonFilter, run_process

from mcpenv_client.tools import Mode

from ..config import ServerConfig, mode_from
from ..errors import ConfigurationError
from ..hosts import PASTED, Place, Server
from ..serve import serve_http, serve_stdio
from ..targets import Target, load_target, watched_path
from .output import Page, author_output, note

RELOADED = "WATCHFILES_CHANGES"
"""Set by watchfiles for the process it starts: a JSON list, empty at the first start."""

_DEFAULTS = ServerConfig()


def run(
    target: str,
    /,
    *,
    mode: Literal["simulation", "production"] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    transport: Literal["http", "stdio"] = "http",
    max_sessions: int | None = None,
    step_timeout_s: float = _DEFAULTS.step_timeout_s,
    session_timeout_s: float = _DEFAULTS.session_timeout_s,
    reload: Annotated[bool, Parameter(negative=())] = False,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info",
    debug: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Serve an environment over HTTP or stdio.

    Args:
        target: Folder with environment.py, .py file, folder:Class, module:Class, module:factory, or an installed name.
        mode: Who uses it: orchestrators (simulation) or live clients (production). Default: MCPENV_MODE, or simulation.
        host: Address to listen on; a loopback one.
        port: Port to listen on; 0 for any free one.
        transport: http for many clients, stdio for the one that starts this command.
        max_sessions: Sessions at a time. Default: 1, or 1024 where the environment supports several.
        step_timeout_s: Longest step, in seconds.
        session_timeout_s: Seconds without use after which a session ends.
        reload: Start again when a Python file of the environment changes.
        settings: name=value for the environment's constructor; may be given several times.
        log_level: What is logged to stderr.
        debug: Show the traceback when something fails.
    """
    config = ServerConfig(
        mode=mode_from(mode),
        max_concurrent_envs=max_sessions,
        step_timeout_s=_positive("--step-timeout-s", step_timeout_s),
        session_timeout_s=_positive("--session-timeout-s", session_timeout_s),
    )
    if reload:
        if transport == "stdio":
            raise ConfigurationError("--reload needs --transport http: a client of stdio would lose its session")
        return _run_reloading(target)
    with author_output():
        loaded = load_target(target, settings or ())
    if transport == "stdio":
        _introduce_stdio(sys.stderr, loaded, config)
        serve_stdio(loaded.factory, config, log_level=log_level)
        return 0
    serve_http(
        loaded.factory,
        config,
        host=host,
        port=port,
        log_level=log_level,
        readme=loaded.readme,
        on_started=functools.partial(_introduce_http, sys.stdout, loaded, config, host),
    )
    return 0


def _positive(flag: str, seconds: float) -> float:
    if seconds > 0:
        return seconds
    raise ConfigurationError(f"{flag} is {seconds:g}; it is a number of seconds, more than 0")


def _introduce_http(stream: TextIO, target: Target, config: ServerConfig, host: str, port: int) -> None:
    """Say where the server is and how to use it."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    page = Page(stream)
    title = _title(target)
    if os.environ.get(RELOADED, "[]") != "[]":
        page.line((title, "bold"), f" reloaded, {config.mode.value} mode, http://{address}")
        return
    simulation = config.mode is Mode.SIMULATION
    page.line((title, "bold"), f" in {config.mode.value} mode")
    page.line()
    page.line("MCP      ", (f"http://{address}/mcp", "cyan"), indent=2)
    if simulation:
        page.line("control  ", (f"ws://{address}/ws", "cyan"), indent=2)
    page.line("docs     ", (f"http://{address}/docs", "cyan"), indent=2)
    page.line()
    _print_pasted(page, Server(target.name, url=f"http://{address}/mcp"))
    page.line("Anonymous stateless MCP clients share one instance of the environment.")
    if simulation:
        page.line("Without a token, an agent on this machine can reach the control plane.")
    page.line(("Ctrl-C stops the server.", "dim"))


def _introduce_stdio(stream: TextIO, target: Target, config: ServerConfig) -> None:
    """One line for the host's log; for somebody who started it by hand, how a host would."""
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
    """Run the same command without ``--reload`` in a process of its own, anew after each change of a Python file."""
    watched = watched_path(target)
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--reload")]
    command = [sys.executable, "-m", "mcpenv", *arguments]
    # watchfiles takes one text and splits it as the system's shell does.
    text = subprocess.list2cmdline(command) if sys.platform == "win32" else shlex.join(command)
    # A process that ended by itself has said why; here it only waits for the next change.
    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    note(f"Watching {watched} for changes.")
    run_process(watched, target=text, target_type="command", watch_filter=PythonFilter(), callback=_tell_changes)
    return 0


def _tell_changes(changes: set[tuple[Change, str]]) -> None:
    names = ", ".join(sorted({Path(path).name for _, path in changes}))
    note(f"{names} changed, starting again.")
