"""Serving with reload, for ``mcpenv dev`` and ``mcpenv run --reload``: loading the code, and printing events."""

from __future__ import annotations

import functools
import json
import sys
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastmcp.server.auth import AuthProvider

from mcpenv.cli.introduction import Introduction
from mcpenv.cli.output import Page, note
from mcpenv.cli.ready_file import adopt_ready_file
from mcpenv.cli.run_request import RunRequest
from mcpenv.errors import ConfigurationError
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import Served, configure_process
from mcpenv.targets.target import manifest_of

from .changes import Sources
from .generation import Loaded
from .messages import Broken, Loading, Reloaded
from .restarting import run_restarting
from .saved_tasks import SavedTasks
from .watched import watched_path
from .watcher import CAN_FORK, Event, serve_reloading


def run_reloading(request: RunRequest) -> int:
    """Serve for ``mcpenv run --reload`` and return the exit status.

    Raises:
        StartupError: as `Program.serve`.
    """
    if request.workers is not None or not CAN_FORK:
        return run_restarting(request.target)

    def on_event(event: Event) -> None:
        if request.ready_file is not None and isinstance(event, Reloaded) and event.first:
            adopt_ready_file(request.ready_file)
        print_event(event)

    return Program(request).serve(on_event)


@dataclass(frozen=True)
class Program:
    """The code of an environment, loaded once for each change.

    Attributes:
        request: the options.
        quiet: True to print no introduction.
    """

    request: RunRequest
    quiet: bool = False

    def serve(self, on_event: Callable[[Event], None]) -> int:
        """Serve until a signal comes, and reload the code after each change; return the exit status.

        Raises:
            StartupError: an option cannot be used, the target does not exist, or a port is in use. Code that does not
                load raises nothing: the next change may repair it.
        """
        if not CAN_FORK:
            raise ConfigurationError(
                "this system cannot fork processes, and so not reload in place; use mcpenv run TARGET --reload"
            )
        request = self.request
        root = watched_path(request.target)
        # Remove tokens from the environment before loading user code, so that it cannot read them.
        config, agents = request.credentials.read(request.config(None))
        request.listening.check(config, agents_need_token=None if agents() is None else True)
        files = frozenset() if request.tasks is None else frozenset({request.tasks.absolute()})
        ignored = None if request.record is None else request.record.absolute()
        return serve_reloading(
            functools.partial(self._load, root, config, agents),
            request.listening,
            Sources(root, files, ignored),
            shutdown_timeout_s=config.shutdown_timeout_s,
            on_event=on_event,
        )

    def _load(self, root: Path, given: ServerConfig, agents: Callable[[], AuthProvider | None]) -> Loaded:
        """Load the environment in a new process.

        Args:
            root: the folder or file that is watched.
            given: settings with the tokens.
        """
        request = self.request
        stated = request.config(manifest_of(request.target))
        config = replace(stated, control_token=given.control_token, metrics_token=given.metrics_token).with_console()
        target = request.load()
        saving = functools.partial(SavedTasks, target)
        config = replace(config, extensions=(saving, *config.extensions))
        configure_process(request.log_level, request.log_format, request.access_log)
        introduction = Introduction(target, config, request.addresses, watched=root)
        show = functools.partial(introduction.show, sys.stdout, request.ready_file)
        return Loaded(
            Served(target.factory, agents(), target.readme),
            config,
            introduction.title,
            introduction.urls,
            _nothing if self.quiet else show,
        )


def _nothing(port: int, control_port: int, agents_need_token: bool) -> None:
    """Print no introduction."""


# -- printing


def print_event(event: Event) -> None:
    """Print an event for a person, on stderr. The first process that serves prints an introduction itself."""
    match event:
        case Loading() if event.changed:
            note(f"{', '.join(event.changed)} changed, loading.")
        case Reloaded() if not event.first:
            address = (event.addresses.get("console", event.addresses["url"]), "cyan")
            Page(sys.stderr).line((event.name, "bold"), f" reloaded in {event.took_s:.2f} s  ", address)
        case Broken():
            failure, page = event.failure, Page(sys.stderr)
            place = "" if failure.file is None else f"{failure.file}:{failure.line}: "
            page.line(("error:", "bold red"), f" {place}{failure.message}")
            if failure.source is not None:
                page.line(failure.source, indent=4)
            if event.serving:
                note("The code before this change goes on serving.")
            else:
                what = "Nothing is served" if event.url is None else f"{event.url} shows this"
                note(f"{what} until it is mended; waiting for a change.")


def print_event_as_json(event: Event) -> None:
    """Print an event as one JSON object, on stdout."""
    print(json.dumps(_plain(event), ensure_ascii=False), flush=True)


def _plain(event: Event) -> dict[str, Any]:
    match event:
        case Loading():
            return {"event": "loading", **vars(event)}
        case Reloaded():
            return {"event": "serving", **_without(event, "first", "sources")}
        case Broken():
            return {"event": "failed", **_without(event, "failure"), **vars(event.failure)}


def _without(event: Event, *names: str) -> dict[str, Any]:
    return {name: value for name, value in vars(event).items() if name not in names}


def opening_browser(on_event: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return a function like ``on_event`` that also opens the page of the first generation that serves."""

    def opening(event: Event) -> None:
        on_event(event)
        if isinstance(event, Reloaded) and event.first:
            url = event.addresses.get("console") or event.addresses.get("docs", event.addresses["url"])
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()  # some browsers do not return

    return opening
