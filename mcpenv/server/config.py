"""Settings of a server: each a flag of ``mcpenv run`` and a field here. Times in seconds, sizes in bytes."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcpenv.errors import ConfigurationError
from mcpenv.redaction import hide
from mcpenv_client.types.tools import Mode
from mcpenv_client.wire.faults import describe_faults

from .extension import installed

if TYPE_CHECKING:
    from .extension import MakeExtension

MODE_VARIABLE = "MCPENV_MODE"
"""The environment variable that sets the default mode."""

CONSOLE_VARIABLE = "MCPENV_CONSOLE"
"""The environment variable that sets whether the console is served: 1 or 0."""

Wire = Literal["nemo-gym", "ors"]
"""Protocols of trainers that a server speaks on request, beside its own and OpenEnv's."""

LogFormat = Literal["text", "json"]
"""The formats of log lines."""

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""The signature algorithms of JSON Web Tokens that are accepted. None of them shares a secret with the server."""

MIN_TOKEN = 8
"""Minimum length of a token, in characters."""

MANY_SESSIONS = 1024
"""``max_concurrent_envs`` of environments that support several sessions."""


def check_token(token: str, what: str) -> str:
    """Return a token that is usable, and keep it out of the logs.

    Raises:
        ConfigurationError: the token is shorter than `MIN_TOKEN` or not printable ASCII.
    """
    if len(token) < MIN_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigurationError(f"{what} needs {MIN_TOKEN} or more printable ASCII characters without blanks")
    hide(token)
    return token


class ConcurrencyConfig(BaseModel):
    """The limits on the sessions of a server, for ``create_app(concurrency=)``; each is a field of `ServerConfig` too.

    Attributes:
        max_concurrent_envs: maximum sessions at a time, 1 or more; None: 1, or 1,024 where the environment supports
            several.
        session_timeout_s: idle seconds after which a session without an open socket ends; ``math.inf``: never.
            OpenEnv's ``session_timeout`` is accepted for it, with None for never.
        queue_timeout_s: seconds that a client waits for a free session; 0: it does not wait.
        resume_grace_s: seconds that a session whose socket was lost waits for its client to reconnect; 0: it does not.
        max_quarantined: instances with code that cannot be stopped, above which new sessions are refused.

    Raises:
        ConfigurationError: a value out of range, an unknown name, or two different session timeouts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_concurrent_envs: int | None = Field(default=None, ge=1, strict=True)
    session_timeout_s: float = Field(default=1800.0, gt=0)
    queue_timeout_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    resume_grace_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    max_quarantined: int = Field(default=16, ge=0, strict=True)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            max_concurrent_envs: int | None = None,
            session_timeout_s: float = 1800.0,
            session_timeout: float | None = ...,
            queue_timeout_s: float = 30.0,
            resume_grace_s: float = 0.0,
            max_quarantined: int = 16,
        ) -> None: ...

    else:

        def __init__(self, **limits: Any) -> None:
            if "session_timeout" in limits:
                theirs = limits.pop("session_timeout")
                given = math.inf if theirs is None else theirs
                if limits.setdefault("session_timeout_s", given) != given:
                    raise ConfigurationError("session_timeout_s and session_timeout differ; give one of them")
            try:
                super().__init__(**limits)
            except ValidationError as error:
                raise ConfigurationError(describe_faults(error)) from error

    @property
    def session_timeout(self) -> float | None:
        """OpenEnv's name of ``session_timeout_s``; None if sessions never time out."""
        return None if self.session_timeout_s == math.inf else self.session_timeout_s

    @property
    def given(self) -> dict[str, Any]:
        """The limits that were given; the others have their defaults."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}


_LIMITS = ConcurrencyConfig()


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The settings of a server.

    Attributes:
        max_concurrent_envs: sessions at a time; None: 1, or 1,024 where the environment supports several.
        step_timeout_s: longest step.
        session_timeout_s: idle time after which a session without an open socket ends.
        queue_timeout_s: how long a client waits for a slot when every slot is taken.
        resume_grace_s: how long a session whose socket was lost waits for its client to come back; 0: not at all.
        control_token: the token that orchestrators present; None: no token. In production it brings ``/ws``.
        metrics_token: the token that a scraper of ``/metrics`` presents; it opens nothing else. None: the control
            token.
        session_scope: the session of an authenticated agent: one per "principal", or one per "connection".
        require_handle: MCP clients need the handle of an episode; plain ``/mcp`` says how to get one.
        public_url: the server's base URL for others, if they connect to another address.
        trusted_proxies: addresses or networks (10.0.0.0/8) of proxies whose ``X-Forwarded-*`` are believed.
        max_calls_in_flight: running and waiting calls of one session, above which more are refused.
        max_requests_per_s: listings and calls of one agent a second, in the long run; None: no limit. An agent is who
            its token says, or the client that has the handle; without either, all are one client.
        max_message_bytes: largest frame or request body.
        ping_interval_s: time between keep-alive pings on ``/ws``.
        allowed_hosts: further ``Host`` names to answer to, beside loopback ones.
        allowed_origins: further browser origins to answer to.
        max_quarantined: instances with code that cannot be stopped, above which no new sessions are taken.
        max_snapshots: snapshots that one session holds.
        max_snapshot_bytes: how large they may be together.
        drain_s: how long running episodes may take to end at SIGTERM, before `shutdown_timeout_s` begins.
        shutdown_timeout_s: how long running steps may take to finish at shutdown.
        record: the folder to which every episode is written; None: none is.
        durable: the folder or URL of the store that keeps sessions for other servers; None: they end with this one.
        console: serve the console at ``/console``; None: as ``MCPENV_CONSOLE`` says, else in simulation only, if the
            extension is installed.
        frame_ancestors: origins whose pages may show the console in a frame.
        wires: the protocols of trainers that it speaks too, in simulation.
        extensions: further extensions: names of entry points of the group ``mcpenv.server``, or what those lead to.

    Raises:
        ConfigurationError: a limit of `concurrency` is out of range, two tokens are the same, a protocol is unknown, or
            there are protocols of trainers in production.
    """

    mode: Mode = Mode.SIMULATION
    max_concurrent_envs: int | None = _LIMITS.max_concurrent_envs
    step_timeout_s: float = 300.0
    session_timeout_s: float = _LIMITS.session_timeout_s
    queue_timeout_s: float = _LIMITS.queue_timeout_s
    resume_grace_s: float = _LIMITS.resume_grace_s
    control_token: str | None = field(default=None, repr=False)
    metrics_token: str | None = field(default=None, repr=False)
    session_scope: Literal["principal", "connection"] = "principal"
    require_handle: bool = False
    public_url: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    max_calls_in_flight: int = 1024
    max_requests_per_s: float | None = None
    max_message_bytes: int = 4 * 1024 * 1024
    ping_interval_s: float = 20.0
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_quarantined: int = _LIMITS.max_quarantined
    max_snapshots: int = 256
    max_snapshot_bytes: int = 256 * 1024 * 1024
    drain_s: float = 30.0
    shutdown_timeout_s: float = 30.0
    record: Path | None = None
    durable: str | None = None
    console: bool | None = None
    frame_ancestors: tuple[str, ...] = ()
    wires: tuple[Wire, ...] = ()
    extensions: tuple[str | MakeExtension, ...] = ()

    def __post_init__(self) -> None:
        self.concurrency  # noqa: B018 - its model checks the limits
        if self.metrics_token is not None and self.metrics_token == self.control_token:
            raise ConfigurationError("the metrics token is the control token; it must open nothing but /metrics")
        for wire in self.wires:
            if wire not in get_args(Wire):
                raise ConfigurationError(f"there is no wire {wire!r}; use one of: {', '.join(get_args(Wire))}")
            if self.mode is not Mode.SIMULATION:
                raise ConfigurationError(f"the wire {wire} needs episodes, which {self.mode.value} mode has not")

    @property
    def concurrency(self) -> ConcurrencyConfig:
        """The limits on sessions."""
        return ConcurrencyConfig(
            max_concurrent_envs=self.max_concurrent_envs,
            session_timeout_s=self.session_timeout_s,
            queue_timeout_s=self.queue_timeout_s,
            resume_grace_s=self.resume_grace_s,
            max_quarantined=self.max_quarantined,
        )

    @property
    def has_control(self) -> bool:
        """True if there is a control plane: always in simulation, in production with a control token."""
        return self.mode is Mode.SIMULATION or self.control_token is not None

    @property
    def reserves_sessions(self) -> bool:
        """True if a share of the sessions is for orchestrators alone: where a token tells them from agents."""
        return self.mode is Mode.SIMULATION and self.control_token is not None

    def with_console(self) -> ServerConfig:
        """Return these settings with `console` decided.

        Raises:
            ConfigurationError: ``MCPENV_CONSOLE`` is neither 1 nor 0, or production has a console but no control token.
        """
        console, source = self.console, "console"
        if console is None:
            console, source = _console_of_environment(), CONSOLE_VARIABLE
        if console is None:
            return replace(self, console=self.mode is Mode.SIMULATION and "console" in installed())
        if console and self.mode is not Mode.SIMULATION and self.control_token is None:
            raise ConfigurationError(
                f"{source}: in {self.mode.value} mode the console needs a control token; "
                "set MCPENV_CONTROL_TOKEN or --control-token-file, or leave the console off"
            )
        return replace(self, console=console)

    def with_limits(self, concurrency: ConcurrencyConfig | None, max_concurrent_envs: int | None) -> ServerConfig:
        """Return these settings with limits on sessions that were given besides.

        A limit may be given twice with the same value. A limit of these settings that has its default value counts as
        not given.

        Raises:
            ConfigurationError: a limit is given twice with different values, or is out of range.
        """
        limits = {} if concurrency is None else concurrency.given
        if max_concurrent_envs is not None:
            if limits.get("max_concurrent_envs", max_concurrent_envs) != max_concurrent_envs:
                raise _given_twice("max_concurrent_envs", max_concurrent_envs, limits["max_concurrent_envs"])
            limits["max_concurrent_envs"] = max_concurrent_envs
        for name, value in limits.items():
            own = getattr(self, name)
            if own not in (value, getattr(_LIMITS, name)):
                raise _given_twice(name, own, value)
        return replace(self, **limits)


def _given_twice(name: str, one: object, other: object) -> ConfigurationError:
    return ConfigurationError(f"{name} is given twice, as {one} and as {other}; give it once")


def _console_of_environment() -> bool | None:
    value = os.environ.get(CONSOLE_VARIABLE)
    if not value:
        return None
    known = {"1": True, "true": True, "0": False, "false": False}
    if value.lower() not in known:
        raise ConfigurationError(f"{CONSOLE_VARIABLE} is {value!r}; use 1 or 0")
    return known[value.lower()]


def config_from(mode: Mode | str | None, config: ServerConfig | None) -> ServerConfig:
    """Return settings in a mode that was given besides; None: in their own, or in the default mode.

    Raises:
        ConfigurationError: no such mode.
    """
    if config is None:
        return ServerConfig(mode=mode_from(mode))
    return config if mode is None else replace(config, mode=mode_from(mode))


def mode_from(value: Mode | str | None) -> Mode:
    """Return the mode of a name; None means ``MCPENV_MODE``, or simulation.

    Raises:
        ConfigurationError: no such mode.
    """
    source = "mode"
    if value is None:
        value, source = os.environ.get(MODE_VARIABLE) or Mode.SIMULATION, MODE_VARIABLE
    try:
        return Mode(value.lower() if isinstance(value, str) else value)
    except ValueError:
        allowed = " or ".join(repr(mode.value) for mode in Mode)
        raise ConfigurationError(f"{source} is {str(value)!r}; use {allowed}") from None
