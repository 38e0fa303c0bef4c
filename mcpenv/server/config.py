"""Settings of a server: each a flag of ``mcpenv run`` and a field here. Times in seconds, sizes in bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mcpenv.errors import ConfigurationError
from mcpenv_client.types.tools import Mode

MODE_VARIABLE = "MCPENV_MODE"
"""The environment variable that sets the default mode."""

MANY_SESSIONS = 1024
"""``max_concurrent_envs`` of environments that support several sessions."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How an environment is served.

    Attributes:
        max_concurrent_envs: sessions at a time; None: 1, or 1,024 where the environment supports several.
        step_timeout_s: longest step.
        session_timeout_s: idle time after which a session without an open socket ends.
        queue_timeout_s: how long a client waits its turn when every slot is taken.
        resume_grace_s: how long a session whose socket was lost waits for its client to come back; 0: not at all.
        control_token: what orchestrators present; None: nothing. In production it brings ``/ws``.
        session_scope: what an authenticated agent's session is: one per "principal", or one per "connection".
        require_handle: MCP clients need the handle of an episode; plain ``/mcp`` says how to get one.
        public_url: the server's base URL for others, where it is not what they connect to.
        trusted_proxies: addresses or networks (10.0.0.0/8) of proxies whose ``X-Forwarded-*`` are believed.
        max_calls_in_flight: calls under way or waiting in one session, above which more are refused.
        max_requests_per_s: listings and calls of one agent a second, in the long run; None: no limit. An agent is who
            its token says, or whoever has the handle, or else everybody without either.
        max_message_bytes: largest frame or request body.
        ping_interval_s: time between keep-alive pings on ``/ws``.
        allowed_hosts: further ``Host`` names to answer to, beside loopback ones.
        allowed_origins: further browser origins to answer to.
        max_quarantined: instances with code that cannot be stopped, above which no new sessions are taken.
        max_snapshots: snapshots that one session holds.
        max_snapshot_bytes: how large they may be together.
        shutdown_timeout_s: how long steps under way may take to finish at shutdown.
        record: the folder to which every episode is written; None: none is.
    """

    mode: Mode = Mode.SIMULATION
    max_concurrent_envs: int | None = None
    step_timeout_s: float = 300.0
    session_timeout_s: float = 1800.0
    queue_timeout_s: float = 30.0
    resume_grace_s: float = 0.0
    control_token: str | None = field(default=None, repr=False)
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
    max_quarantined: int = 16
    max_snapshots: int = 256
    max_snapshot_bytes: int = 256 * 1024 * 1024
    shutdown_timeout_s: float = 30.0
    record: Path | None = None


def mode_from(value: Mode | str | None) -> Mode:
    """A mode given by name; None means ``MCPENV_MODE``, or simulation.

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
