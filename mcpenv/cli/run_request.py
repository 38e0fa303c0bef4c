"""The options of one ``mcpenv run`` or ``mcpenv dev``, and the pairs of them that are refused.

The help of these commands imports this module. It loads the server only when the options are used: that takes 2 s of a
processor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from mcpenv.errors import ConfigurationError
from mcpenv.server.config import MODE_VARIABLE, LogFormat, ServerConfig, mode_from
from mcpenv.targets.manifest import MANIFEST, Manifest
from mcpenv_client.types.tools import Mode

from .output import author_output
from .run_options import LOOPBACK, Addresses, Credentials, Flag, Limits, Sessions, Several, config_from, with_manifest

if TYPE_CHECKING:
    from mcpenv.server.serve import Listening
    from mcpenv.targets.target import Target

REFUSED = (
    ("record", "stdio", "--record: there are no episodes to record over stdio"),
    ("record", "production", "--record: there are no episodes to record in production mode"),
    ("console", "stdio", "--console needs --transport http: over stdio there is no page"),
    ("workers", "win32", "--workers needs Unix sockets, which this system does not have"),
    ("workers", "stdio", "--workers needs --transport http: over stdio there is only one client"),
    ("ready_file", "stdio", "--ready-file needs --transport http: over stdio there is no address"),
    ("wires", "stdio", "--wire needs --transport http: over stdio there are no routes"),
    ("extensions", "stdio", "--extension needs --transport http: over stdio there are no routes"),
    ("durable", "stdio", "--durable: there are no episodes to keep over stdio"),
    ("durable", "production", "--durable: there are no episodes to keep in production mode"),
    ("reload", "stdio", "--reload needs --transport http: over stdio the client would lose its session"),
)
"""Options that have no effect, or no meaning, under a condition: the option, the condition, and the error."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of ``mcpenv run`` that are in no group.

    Attributes:
        mode: simulation for orchestrators, production for live clients. Default: MCPENV_MODE, or simulation.
        transport: http for many clients, stdio for the client that starts this command.
        settings: name=value for the environment's constructor, or for mcpenv in a JSON file. May be
            given several times.
        tasks: Tasks to use instead of the environment's own: a file of JSON or Parquet, or a dataset's folder.
        columns: Columns of that file by the fields of a task, such as prompt=question,answer=solution. A field that
            tasks do not have is in the metadata, as columns are that are not named.
        record: Folder to write every episode to; see: mcpenv trajectories --help
        console: Serve the console at /console. Default: MCPENV_CONSOLE, or in simulation only. In production it needs a
            control token.
        workers: Number of processes that serve together as one server. Useful for tools that use much CPU time. One
            that does not answer for 30 s is killed and replaced, also with 1. Default: this process serves, alone.
        ready_file: File to write once the server accepts connections: a JSON object with url and mcp_url.
        trust: Run the code of a hub: target without asking.
        env: Name of an environment variable to give to the container of an image: target; may be given several times.
        reload: Reload the code when a file of the environment changes; see: mcpenv dev --help
        log_level: Lowest level of messages to log to stderr. No level logs tokens, handles or secret settings.
        log_format: Log lines of text, or JSON objects, one a line.
        no_access_log: Do not log tool calls. They are logged at level info, without arguments.
    """

    mode: Literal["simulation", "production"] | None = None
    transport: Literal["http", "stdio"] = "http"
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None
    tasks: Path | None = None
    columns: str | None = None
    record: Path | None = None
    console: Annotated[bool | None, Parameter(show_default=False)] = None
    workers: int | None = None
    ready_file: Path | None = None
    trust: Flag = False
    env: Several = None
    reload: Flag = False
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    log_format: LogFormat = "text"
    no_access_log: Flag = False


@dataclass(frozen=True, kw_only=True)
class RunRequest(RunOptions):
    """The options with which an environment is served. Extensions that serve a target in their own way get it."""

    target: str
    addresses: Addresses
    credentials: Credentials
    sessions: Sessions
    limits: Limits

    @property
    def access_log(self) -> bool:
        """True if tool calls are logged."""
        return not self.no_access_log

    def config(self, manifest: Manifest | None) -> ServerConfig:
        """Return the settings of the server without credentials.

        Raises:
            ConfigurationError: an option cannot be used.
        """
        sessions, limits = with_manifest(self.sessions, self.limits, manifest)
        config = config_from(mode_for(self.mode, manifest), self.addresses, sessions, limits)
        return replace(config, record=self.record, console=self.console)

    @property
    def listening(self) -> Listening:
        """The addresses on which to listen."""
        from mcpenv.server.serve import Listening

        given = self.addresses
        return Listening(
            given.host, given.port, given.control_host or LOOPBACK, given.control_port, self.credentials.insecure
        )

    def load(self) -> Target:
        """Load the environment in this process.

        Raises:
            StartupError: as `load_target`.
        """
        from mcpenv.targets.target import load_target

        with author_output():
            return load_target(self.target, self.settings or (), self.tasks, self.columns)

    def refuse_env(self) -> None:
        """Raise if there are environment variables for a container, and no container.

        Raises:
            ConfigurationError: variables are given without a container.
        """
        if self.env:
            raise ConfigurationError("--env is for image: targets; others have the environment of this process")

    def refuse_pairs(self, mode: Mode) -> None:
        """Raise if two options do not go together.

        Raises:
            ConfigurationError: with the text of the first pair in `REFUSED`.
        """
        if self.workers is not None and self.workers < 1:
            raise ConfigurationError(f"--workers is {self.workers}; it must be 1 or more")
        used, conditions = set(self._used()), {self.transport, mode.value, sys.platform}
        for option, condition, message in REFUSED:
            if option in used and condition in conditions:
                raise ConfigurationError(message)

    def _used(self) -> Iterator[str]:
        """Yield the options of the table that have an effect."""
        if self.record is not None:
            yield "record"
        if self.console:
            yield "console"
        if self.workers is not None:
            yield "workers"
        if self.ready_file is not None:
            yield "ready_file"
        if self.sessions.wires:
            yield "wires"
        if self.sessions.extensions:
            yield "extensions"
        if self.sessions.durable is not None:
            yield "durable"
        if self.reload:
            yield "reload"


def mode_for(mode: str | None, manifest: Manifest | None) -> Mode:
    """Return the mode to serve in: the given one, else ``MCPENV_MODE``, else the first that a manifest allows.

    Simulation comes first.

    Raises:
        ConfigurationError: there is no such mode, or the manifest does not allow it.
    """
    if manifest is None:
        return mode_from(mode)
    chosen = mode_from(mode)
    if mode is None and not os.environ.get(MODE_VARIABLE) and chosen.value not in manifest.modes:
        return Mode(manifest.modes[0])
    if chosen.value not in manifest.modes:
        raise ConfigurationError(
            f"the mode is {chosen.value}, and the environment's {MANIFEST} allows {' and '.join(manifest.modes)}; "
            f"choose that, or add {chosen.value} to modes there"
        )
    return chosen
