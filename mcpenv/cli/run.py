"""The command ``mcpenv run``: serve an environment and print how to use it."""

from __future__ import annotations

import functools
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from fastmcp.server.auth import AuthProvider
from watchfiles import Change, PythonFilter, run_process

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.mcp_proxy.target_text import PREFIX
from mcpenv.extensions.reload.reloading import Program, print_event
from mcpenv.extensions.reload.watcher import CAN_FORK
from mcpenv.extensions.shipping.download import downloaded
from mcpenv.extensions.shipping.hub.space import HUB
from mcpenv.extensions.shipping.run_image import IMAGE, environment_of, refuse_for_image, run_image
from mcpenv.extensions.workers.worker import Served
from mcpenv.server.config import ServerConfig
from mcpenv.server.logs import LogFormat
from mcpenv.server.serve import Listening, serve_http, serve_stdio, serve_workers
from mcpenv.targets.manifest import MANIFEST
from mcpenv.targets.place import manifest_of
from mcpenv.targets.target import load_target
from mcpenv.targets.watched import watched_path
from mcpenv_client.types.tools import Mode

from .introduction import LOOPBACK, Introduction, introduce_stdio
from .mode import mode_for
from .output import author_output, note
from .ready_file import prepare_ready_file
from .run_options import Addresses, Credentials, Limits, Sessions, config_from, with_manifest

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
    trust: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    env: Annotated[list[str] | None, Parameter(negative=())] = None,
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
            installed name, a JSON file with mcpServers, cassette:RECORD, hub:OWNER/NAME@REVISION for a Space of
            Hugging Face, or image:REF for a container.
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
        reload: Load the code anew when a file of the environment changes; see: mcpenv dev --help
        log_level: Lowest level of messages to log to stderr. No level logs tokens, handles or secret settings.
        log_format: Log lines of text, or JSON objects, one a line.
        no_access_log: Do not log tool calls. They are logged at level info, without arguments.
        debug: Show the traceback when something fails.
    """
    if (target is None) == (mcp is None):
        raise ConfigurationError("name one environment: a TARGET, or --mcp with the command or URL of an MCP server")
    target = target if target is not None else f"{PREFIX}{mcp}"
    if ready_file is not None:
        prepare_ready_file(ready_file)
    if target.startswith(IMAGE):
        # Tuples of the option's name, its value, and that without an effect.
        unfit = (
            ("transport", transport, "http"), ("tasks", tasks, None), ("record", record, None),
            ("workers", workers, 1), ("reload", reload, False), ("console", console, None),
        )  # fmt: skip
        refuse_for_image(
            [name for name, value, usual in unfit if value != usual], addresses, sessions, limits, credentials
        )
        token = credentials.read(ServerConfig())[0].control_token
        options = [*([] if mode is None else ["--mode", mode]), *(f"--set={setting}" for setting in settings or ())]
        port = addresses.port if "port" in addresses.given else 0
        return run_image(target, options, environment_of(env or ()), token, port, ready_file)
    if env:
        raise ConfigurationError("--env is for image: targets; others have the environment of this process")
    if target.startswith(HUB):
        if reload:
            raise ConfigurationError("--reload is for code of your own; copy it first, with mcpenv fork")
        target = downloaded(target, trust)
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
    if ready_file is not None and transport == "stdio":
        raise ConfigurationError("--ready-file needs --transport http: over stdio there is no address")
    if sessions.wires and transport == "stdio":
        raise ConfigurationError("--wire needs --transport http: over stdio there are no routes")
    if reload:
        if transport == "stdio":
            raise ConfigurationError("--reload needs --transport http: over stdio the client would lose its session")
        if workers > 1 or not CAN_FORK:
            return _run_restarting(target)
        program = Program(
            target=target,
            mode=mode,
            settings=settings or (),
            tasks=tasks,
            record=record,
            console=console,
            ready_file=ready_file,
            log_level=log_level,
            log_format=log_format,
            access_log=not no_access_log,
            addresses=addresses,
            credentials=credentials,
            sessions=sessions,
            limits=limits,
        )
        return program.serve(print_event)
    # Tokens are taken out of the environment before user code is loaded, so that it cannot read them.
    config, agents = credentials.read(config)
    config = config.with_console() if transport == "http" else replace(config, console=False)
    auth = agents()
    with author_output():
        loaded = load_target(target, settings or (), tasks)
    if transport == "stdio":
        introduce_stdio(sys.stderr, loaded, config)
        serve_stdio(loaded.factory, config, log_level=log_level, log_format=log_format, access_log=not no_access_log)
        return 0
    introduction = Introduction(loaded, config, addresses, reloaded=_was_restarted())
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


def _load_again(
    target: str, settings: list[str] | None, tasks: Path | None, agents: Callable[[], AuthProvider | None]
) -> Served:
    """Load what `run` serves, in a worker process."""
    with author_output():
        loaded = load_target(target, settings or (), tasks)
    return Served(loaded.factory, agents(), loaded.readme)


def _was_restarted() -> bool:
    return os.environ.get(RELOADED, "[]") != "[]"


def _run_restarting(target: str) -> int:
    """Run the same command without ``--reload`` in a child process; restart it after each change of a Python file.

    For several workers, and for systems that cannot fork.
    """
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
