"""The command ``mcpenv run``: serve an environment and print how to use it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from fastmcp.server.auth import AuthProvider

from mcpenv.entry_points import entries_of, load_entry
from mcpenv.errors import ConfigurationError
from mcpenv.server.config import ServerConfig
from mcpenv.server.logs import LogFormat
from mcpenv.server.serve import Served, serve_http, serve_stdio, serve_workers
from mcpenv.targets.external import runner_of
from mcpenv.targets.target import Target, manifest_of

from .introduction import LOOPBACK, Introduction, introduce_stdio
from .ready_file import prepare_ready_file
from .run_options import Addresses, Credentials, Flag, Limits, Sessions, Several
from .run_request import RunRequest

RELOADED = "WATCHFILES_CHANGES"
"""The environment variable that watchfiles sets for its child process: a JSON list, empty at the first start."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class _Options:
    """The options that are in no group.

    Attributes:
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
        trust: Run the code of a hub: target without asking.
        env: Name of an environment variable to give to the container of an image: target; may be given several times.
        reload: Reload the code when a file of the environment changes; see: mcpenv dev --help
        log_level: Lowest level of messages to log to stderr. No level logs tokens, handles or secret settings.
        log_format: Log lines of text, or JSON objects, one a line.
        no_access_log: Do not log tool calls. They are logged at level info, without arguments.
    """

    mcp: str | None = None
    mode: Literal["simulation", "production"] | None = None
    transport: Literal["http", "stdio"] = "http"
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None
    tasks: Path | None = None
    record: Path | None = None
    console: Annotated[bool | None, Parameter(show_default=False)] = None
    workers: int = 1
    ready_file: Path | None = None
    trust: Flag = False
    env: Several = None
    reload: Flag = False
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    log_format: LogFormat = "text"
    no_access_log: Flag = False


def run(
    target: str | None = None,
    /,
    *,
    options: _Options = _Options(),
    debug: Flag = False,
    addresses: Addresses = Addresses(),  # noqa: B008
    credentials: Credentials = Credentials(),  # noqa: B008
    sessions: Sessions = Sessions(),  # noqa: B008
    limits: Limits = Limits(),  # noqa: B008
) -> int:
    """Serve an environment over HTTP or stdio.

    Args:
        target: Folder with mcpenv.yaml or environment.py, .py file, folder:Class, module:Class, module:factory, an
            installed name, a JSON file with mcpServers, cassette:RECORD, hub:OWNER/NAME@REVISION for a Space of
            Hugging Face, or image:REF for a container.
        debug: Show the traceback when something fails.
    """
    if (target is None) == (options.mcp is None):
        raise ConfigurationError("name one environment: a TARGET, or --mcp with the command or URL of an MCP server")
    if options.ready_file is not None:
        prepare_ready_file(options.ready_file)
    request = RunRequest(
        target=target if target is not None else f"mcp:{options.mcp}",
        mode=options.mode,
        transport=options.transport,
        settings=options.settings or (),
        tasks=options.tasks,
        record=options.record,
        console=options.console,
        workers=options.workers,
        ready_file=options.ready_file,
        trust=options.trust,
        env=options.env or (),
        reload=options.reload,
        log_level=options.log_level,
        log_format=options.log_format,
        access_log=not options.no_access_log,
        addresses=addresses,
        credentials=credentials,
        sessions=sessions,
        limits=limits,
    )
    return serve(request)


def serve(request: RunRequest) -> int:
    """Serve until a signal comes and return the exit status.

    Raises:
        StartupError: an option cannot be used, the environment does not load, or a port is in use.
    """
    run_target = runner_of(request.target)
    if run_target is not None:
        ran = run_target(request)
        if isinstance(ran, int):
            return ran
        request = replace(request, target=ran)
    request.refuse_env()
    config = request.config(manifest_of(request.target))
    request.refuse_pairs(config.mode)
    if request.reload:
        return _reloading()(request)
    # Remove tokens from the environment before loading user code, so that it cannot read them.
    config, agents = request.credentials.read(config)
    if request.transport == "stdio":
        return _serve_stdio(request, replace(config, console=False))
    return _serve_http(request, config.with_console(), agents)


def _serve_stdio(request: RunRequest, config: ServerConfig) -> int:
    loaded = request.load()
    introduce_stdio(sys.stderr, loaded, config)
    serve_stdio(
        loaded.factory,
        config,
        log_level=request.log_level,
        log_format=request.log_format,
        access_log=request.access_log,
    )
    return 0


def _serve_http(request: RunRequest, config: ServerConfig, agents: Callable[[], AuthProvider | None]) -> int:
    auth, loaded = agents(), request.load()
    introduction = Introduction(loaded, config, request.addresses, reloaded=_was_restarted())
    on_started = functools.partial(introduction.show, sys.stdout, request.ready_file)
    if request.workers > 1:
        serve_workers(
            functools.partial(_load_again, request, agents),
            config,
            request.workers,
            request.listening,
            agents_need_token=auth is not None,
            log_level=request.log_level,
            log_format=request.log_format,
            access_log=request.access_log,
            on_started=on_started,
        )
        return 0
    addresses = request.addresses
    serve_http(
        loaded.factory,
        config,
        host=addresses.host,
        port=addresses.port,
        control_host=addresses.control_host or LOOPBACK,
        control_port=addresses.control_port,
        log_level=request.log_level,
        log_format=request.log_format,
        access_log=request.access_log,
        readme=loaded.readme,
        auth=auth,
        insecure=request.credentials.insecure,
        on_started=on_started,
    )
    return 0


def _load_again(request: RunRequest, agents: Callable[[], AuthProvider | None]) -> Served:
    """Load the environment of `run` in a worker process."""
    loaded: Target = request.load()
    return Served(loaded.factory, agents(), loaded.readme)


def _reloading() -> Callable[[RunRequest], int]:
    """Return the function of the extension that serves with reload.

    Raises:
        ConfigurationError: it is not installed.
    """
    entry = entries_of("mcpenv.server").get("reload")
    if entry is None:
        raise ConfigurationError("--reload: the extension reload is not installed")
    function: Callable[[RunRequest], int] = load_entry(entry, "the server extension")
    return function


def _was_restarted() -> bool:
    return os.environ.get(RELOADED, "[]") != "[]"


__all__ = ["RELOADED", "run", "serve"]
