"""The command ``mcpenv dev``: serve an environment while its author edits it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from mcpenv.cli.run_options import Addresses, Credentials, Limits, Sessions
from mcpenv.cli.run_request import RunRequest
from mcpenv.server.config import LogFormat


def dev(
    target: str = ".",
    /,
    *,
    mode: Literal["simulation", "production"] | None = None,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    tasks: Path | None = None,
    columns: str | None = None,
    record: Path | None = None,
    open_page: Annotated[bool, Parameter(name="--open", negative=(), show_default=False)] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info",
    log_format: LogFormat = "text",
    no_access_log: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    addresses: Addresses = Addresses(),  # noqa: B008 - frozen
    credentials: Credentials = Credentials(),  # noqa: B008
    sessions: Sessions = Sessions(),  # noqa: B008
    limits: Limits = Limits(),  # noqa: B008
) -> int:
    """Serve an environment with the console, and reload its code after each change.

    Code that does not load is reported with file and line; the previous code continues to serve. Sessions end when new
    code serves. Watched are the target's folder (Python, YAML, JSONL and Markdown files) and imported files outside of
    it.

    Args:
        target: As for mcpenv run, but with code of its own that can change. Default: the current folder.
        mode: simulation for orchestrators, production for live clients. Default: MCPENV_MODE, or simulation.
        settings: name=value for the environment's constructor. May be given several times.
        tasks: Tasks to use instead of the environment's own: a file of JSON or Parquet, or a dataset's folder.
        columns: Columns of that file by the fields of a task, such as prompt=question,answer=solution. A field that
            tasks do not have is in the metadata, as columns are that are not named.
        record: Folder to write every episode to; see: mcpenv trajectories --help
        open_page: Open the console in a browser.
        as_json: Print one JSON object a line for each event (loading, serving, failed), and nothing else on stdout.
        log_level: Lowest level of messages to log to stderr. No level logs tokens, handles or secret settings.
        log_format: Log lines of text, or JSON objects, one a line.
        no_access_log: Do not log tool calls. They are logged at level info, without arguments.
        debug: Show the traceback when something fails.
    """
    # Loads the server, which the help does not need.
    from .reloading import Program, opening_browser, print_event, print_event_as_json

    request = RunRequest(
        target=target,
        mode=mode,
        settings=settings,
        tasks=tasks,
        columns=columns,
        record=record,
        log_level=log_level,
        log_format=log_format,
        no_access_log=no_access_log,
        addresses=addresses,
        credentials=credentials,
        sessions=sessions,
        limits=limits,
    )
    on_event = print_event_as_json if as_json else print_event
    return Program(request, quiet=as_json).serve(opening_browser(on_event) if open_page else on_event)
