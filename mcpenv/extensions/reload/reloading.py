"""Serving with reload, for ``mcpenv dev`` and ``mcpenv run --reload``: how code is loaded, and what is printed."""

from __future__ import annotations

import functools
import json
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastmcp.server.auth import AuthProvider

from mcpenv.cli.introduction import LOOPBACK, Introduction
from mcpenv.cli.mode import mode_for
from mcpenv.cli.output import Page, author_output, note
from mcpenv.cli.run_options import Addresses, Credentials, Limits, Sessions, config_from, with_manifest
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.workers.worker import Served
from mcpenv.server.config import ServerConfig
from mcpenv.server.logs import LogFormat, configure_logging
from mcpenv.server.serve import Listening
from mcpenv.server.trace_export import export_traces
from mcpenv.targets.manifest import Manifest
from mcpenv.targets.place import manifest_of
from mcpenv.targets.target import load_target
from mcpenv.targets.watched import watched_path

from .changes import Sources
from .generation import Loaded
from .messages import Broken, Loading, Reloaded
from .watcher import CAN_FORK, Event, serve_reloading


@dataclass(frozen=True, kw_only=True)
class Program:
    """The options with which code is loaded, once for each change.

    Attributes:
        quiet: print no introduction.
    """

    target: str
    addresses: Addresses
    credentials: Credentials
    sessions: Sessions
    limits: Limits
    mode: str | None = None
    settings: Sequence[str] = ()
    tasks: Path | None = None
    record: Path | None = None
    console: bool | None = None
    ready_file: Path | None = None
    log_level: str = "info"
    log_format: LogFormat = "text"
    access_log: bool = True
    quiet: bool = False

    def config(self, manifest: Manifest | None) -> ServerConfig:
        """Return the settings without credentials.

        Raises:
            ConfigurationError: an option cannot be used.
        """
        sessions, limits = with_manifest(self.sessions, self.limits, manifest)
        config = config_from(mode_for(self.mode, manifest), self.addresses, sessions, limits)
        return replace(config, record=self.record, console=self.console)

    def serve(self, on_event: Callable[[Event], None]) -> int:
        """Serve until a signal comes, and load the code anew after each change; return the exit status.

        Raises:
            StartupError: an option cannot be used, the target is not there, or a port is in use. Code that does not
                load is no reason: it may be mended.
        """
        if not CAN_FORK:
            raise ConfigurationError(
                "this system cannot fork processes, and so not reload in place; use mcpenv run TARGET --reload"
            )
        root = watched_path(self.target)
        # Tokens are taken out of the environment before user code is loaded, so that it cannot read them.
        config, agents = self.credentials.read(self.config(None))
        address = self.addresses
        listening = Listening(
            address.host,
            address.port,
            address.control_host or LOOPBACK,
            address.control_port,
            self.credentials.insecure,
        )
        listening.check(config, agents_need_token=None if agents() is None else True)
        files = frozenset() if self.tasks is None else frozenset({self.tasks.absolute()})
        ignored = None if self.record is None else self.record.absolute()
        return serve_reloading(
            functools.partial(self._load, root, config, agents),
            listening,
            Sources(root, files, ignored),
            shutdown_timeout_s=config.shutdown_timeout_s,
            on_event=on_event,
        )

    def _load(self, root: Path, given: ServerConfig, agents: Callable[[], AuthProvider | None]) -> Loaded:
        """Load the environment in a new process.

        Args:
            root: what is watched.
            given: settings with the tokens.
        """
        stated = self.config(manifest_of(self.target))
        config = replace(stated, control_token=given.control_token, metrics_token=given.metrics_token).with_console()
        with author_output():
            target = load_target(self.target, self.settings, self.tasks)
        configure_logging(self.log_level, self.log_format, access_log=self.access_log)
        export_traces()
        introduction = Introduction(target, config, self.addresses, watched=root)
        show = functools.partial(introduction.show, sys.stdout, self.ready_file)
        return Loaded(
            Served(target.factory, agents(), target.readme),
            config,
            introduction.title,
            introduction.urls,
            _nothing if self.quiet else show,
        )


def _nothing(port: int, control_port: int, agents_need_token: bool) -> None:
    """Print no introduction."""


# -- what is printed


def print_event(event: Event) -> None:
    """Print what has happened for a person, on stderr. The first process that serves prints an introduction itself."""
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
    """Print what has happened as one JSON object, on stdout."""
    print(json.dumps(_plain(event), ensure_ascii=False), flush=True)


def _plain(event: Event) -> dict[str, Any]:
    match event:
        case Loading():
            return {"event": "loading", **event.model_dump(exclude={"type"})}
        case Reloaded():
            return {"event": "serving", **event.model_dump(exclude={"type", "first", "sources"})}
        case Broken():
            data = event.model_dump(exclude={"type", "failure"})
            return {"event": "failed", **data, **event.failure.model_dump()}


def opening_browser(on_event: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return a function like ``on_event`` that also opens the page of the first generation that serves."""

    def opening(event: Event) -> None:
        on_event(event)
        if isinstance(event, Reloaded) and event.first:
            url = event.addresses.get("console", event.addresses["docs"])
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()  # some browsers do not return

    return opening


__all__ = ["Program", "opening_browser", "print_event", "print_event_as_json"]
