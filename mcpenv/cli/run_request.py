"""The options of one ``mcpenv run`` or ``mcpenv dev``, and the pairs of them that are refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mcpenv.errors import ConfigurationError
from mcpenv.server.config import ServerConfig
from mcpenv.server.logs import LogFormat
from mcpenv.server.serve import Listening
from mcpenv.targets.manifest import Manifest
from mcpenv.targets.target import Target, load_target
from mcpenv_client.types.tools import Mode

from .introduction import LOOPBACK
from .mode import mode_for
from .output import author_output
from .run_options import Addresses, Credentials, Limits, Sessions, config_from, with_manifest

REFUSED = (
    ("record", "stdio", "--record: there are no episodes to record over stdio"),
    ("record", "production", "--record: there are no episodes to record in production mode"),
    ("console", "stdio", "--console needs --transport http: over stdio there is no page"),
    ("workers", "win32", "--workers needs Unix sockets, which this system does not have"),
    ("workers", "stdio", "--workers needs --transport http: over stdio there is only one client"),
    ("ready_file", "stdio", "--ready-file needs --transport http: over stdio there is no address"),
    ("wires", "stdio", "--wire needs --transport http: over stdio there are no routes"),
    ("extensions", "stdio", "--extension needs --transport http: over stdio there are no routes"),
    ("reload", "stdio", "--reload needs --transport http: over stdio the client would lose its session"),
)
"""Options that have no effect, or no meaning, under a condition: the option, the condition, and the error."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The options with which an environment is served. Extensions that serve a target in their own way get it.

    Attributes:
        env: names of environment variables for a container.
        trust: run code of other people without asking.
    """

    target: str
    addresses: Addresses
    credentials: Credentials
    sessions: Sessions
    limits: Limits
    mode: str | None = None
    transport: Literal["http", "stdio"] = "http"
    settings: Sequence[str] = ()
    tasks: Path | None = None
    record: Path | None = None
    console: bool | None = None
    workers: int = 1
    ready_file: Path | None = None
    trust: bool = False
    env: Sequence[str] = ()
    reload: bool = False
    log_level: str = "info"
    log_format: LogFormat = "text"
    access_log: bool = True

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
        given = self.addresses
        return Listening(
            given.host, given.port, given.control_host or LOOPBACK, given.control_port, self.credentials.insecure
        )

    def load(self) -> Target:
        """Load the environment in this process.

        Raises:
            StartupError: as `load_target`.
        """
        with author_output():
            return load_target(self.target, self.settings, self.tasks)

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
        if self.workers < 1:
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
        if self.workers > 1:
            yield "workers"
        if self.ready_file is not None:
            yield "ready_file"
        if self.sessions.wires:
            yield "wires"
        if self.sessions.extensions:
            yield "extensions"
        if self.reload:
            yield "reload"


__all__ = ["REFUSED", "RunRequest"]
