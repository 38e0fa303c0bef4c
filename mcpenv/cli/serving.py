"""Serve what ``mcpenv run`` was asked for: over HTTP in this process or in workers, or by an extension."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fastmcp.server.auth import AuthProvider

from mcpenv.server.config import ServerConfig
from mcpenv.server.extension import load as extension
from mcpenv.server.serve import Served, serve_http, serve_workers
from mcpenv.targets.external import runner_of
from mcpenv.targets.target import Target, manifest_of

from .introduction import Introduction
from .run_options import LOOPBACK
from .run_request import RunRequest

RELOADED = "WATCHFILES_CHANGES"
"""The environment variable that watchfiles sets for its child process: a JSON list, empty at the first start."""


@dataclass(frozen=True)
class Prepared:
    """A request whose options were checked, with the settings of its server.

    Attributes:
        agents: makes the authentication of agents; None admits everybody.
    """

    request: RunRequest
    config: ServerConfig
    agents: Callable[[], AuthProvider | None]


def serve(request: RunRequest) -> int:
    """Serve until a signal comes and return the exit status.

    Raises:
        StartupError: an option cannot be used, the environment does not load, or a port is in use.
    """
    if request.transport == "stdio":
        run_over_stdio: Callable[[RunRequest], int] = extension("stdio")
        return run_over_stdio(request)
    prepared = prepare(request)
    if isinstance(prepared, int):
        return prepared
    return _serve_http(prepared.request, prepared.config.with_console(), prepared.agents)


def prepare(request: RunRequest) -> Prepared | int:
    """Check the options and read the tokens; return the exit status where an extension has served.

    Raises:
        StartupError: an option cannot be used.
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
        reloading: Callable[[RunRequest], int] = extension("reload")
        return reloading(request)
    # Remove tokens from the environment before loading user code, so that it cannot read them.
    return Prepared(request, *request.credentials.read(config))


def _serve_http(request: RunRequest, config: ServerConfig, agents: Callable[[], AuthProvider | None]) -> int:
    auth, loaded = agents(), request.load()
    introduction = Introduction(loaded, config, request.addresses, reloaded=os.environ.get(RELOADED, "[]") != "[]")
    on_started = functools.partial(introduction.show, sys.stdout, request.ready_file)
    logs: Any = {"log_level": request.log_level, "log_format": request.log_format, "access_log": request.access_log}
    if request.workers is not None:
        serve_workers(
            functools.partial(_load_again, request, agents),
            config,
            request.workers,
            request.listening,
            agents_need_token=auth is not None,
            on_started=on_started,
            **logs,
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
        readme=loaded.readme,
        auth=auth,
        insecure=request.credentials.insecure,
        on_started=on_started,
        **logs,
    )
    return 0


def _load_again(request: RunRequest, agents: Callable[[], AuthProvider | None]) -> Served:
    """Load the environment of `run` in a worker process."""
    loaded: Target = request.load()
    return Served(loaded.factory, agents(), loaded.readme)
