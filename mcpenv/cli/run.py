"""The command ``mcpenv run``: serve an environment and print how to use it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace

from fastmcp.server.auth import AuthProvider

from mcpenv.entry_points import entries_of, load_entry
from mcpenv.errors import ConfigurationError
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import Served, serve_http, serve_stdio, serve_workers
from mcpenv.targets.external import runner_of
from mcpenv.targets.target import Target, manifest_of

from .introduction import LOOPBACK, Introduction, introduce_stdio
from .ready_file import prepare_ready_file
from .run_options import Addresses, Credentials, Flag, Limits, Sessions
from .run_request import RunOptions, RunRequest

RELOADED = "WATCHFILES_CHANGES"
"""The environment variable that watchfiles sets for its child process: a JSON list, empty at the first start."""


def run(
    target: str | None = None,
    /,
    *,
    mcp: str | None = None,
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
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
        mcp: Command or URL of an MCP server to serve as an environment, instead of a target.
        debug: Show the traceback when something fails.
    """
    if (target is None) == (mcp is None):
        raise ConfigurationError("name one environment: a TARGET, or --mcp with the command or URL of an MCP server")
    if options.ready_file is not None:
        prepare_ready_file(options.ready_file)
    request = RunRequest(
        **vars(options),
        target=target if target is not None else f"mcp:{mcp}",
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
