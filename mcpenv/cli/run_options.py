"""The options of ``mcpenv run`` in groups, and their conversion to settings of a server."""

from __future__ import annotations

import functools
import ipaddress
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from mcpenv.errors import ConfigurationError
from mcpenv.server.config import Algorithm, ServerConfig, Wire
from mcpenv.targets.manifest import Manifest
from mcpenv_client.types.tools import Mode

from .tokens import AGENT_TOKEN, CONTROL_TOKEN, METRICS_TOKEN, Secret, agent_scopes, agent_tokens, forget, read_token

if TYPE_CHECKING:
    from fastmcp.server.auth import AuthProvider

LOOPBACK = "127.0.0.1"

_DEFAULTS = ServerConfig()

G = TypeVar("G", bound="Given")

Several = Annotated[list[str] | None, Parameter(negative=())]
Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Extensions = Annotated[list[str] | None, Parameter(name="--extension", negative=())]
Wires = Annotated[list[Wire] | None, Parameter(name="--wire", negative=())]
Scopes = Annotated[list[str] | None, Parameter(negative=())]
Secrets = Annotated[list[str] | None, Parameter(name="--agent-token", negative=(), allow_leading_hyphen=True)]

_ADDRESSES = Group("Addresses", sort_key=10)
_CREDENTIALS = Group(
    "Credentials",
    help="Every user of this machine can see the command line (ps): prefer a file or an environment variable.",
    sort_key=11,
)
_SESSIONS = Group("Sessions", sort_key=12)
_LIMITS = Group("Limits", sort_key=13)


class Given:
    """A group of options that knows which of them were given, even with the value of the default.

    Attributes:
        given: their names.
    """

    given: frozenset[str]

    def __new__(cls, **given: Any) -> Self:
        """Remember which options are given."""
        self = super().__new__(cls)
        object.__setattr__(self, "given", frozenset(given))  # the groups are frozen
        return self


@Parameter(name="*", group=_ADDRESSES)
@dataclass(frozen=True, kw_only=True)
class Addresses(Given):
    """The options for a server's addresses.

    Attributes:
        host: Address to listen on. An address that other machines can reach requires credentials.
        port: Port to listen on; 0 for any free one.
        control_host: Address of the control plane, if it has a port of its own. Default: 127.0.0.1.
        control_port: Separate port for the control plane, by which orchestrators reset, judge and watch episodes, and
            which agents must not reach; 0 for any free one.
        public_url: URL at which clients reach the server, if a proxy changes it. Every mcp_url starts with it.
        allowed_hosts: Further Host names to accept, separated by commas. The public URL's is accepted.
        allowed_origins: Further browser origins to accept, separated by commas.
        trusted_proxies: Addresses or networks of trusted proxies: their X-Forwarded-* headers are used; * for all.
        frame_ancestors: Origins of pages that may show the console in a frame, separated by commas.
    """

    host: str = "127.0.0.1"
    port: Port = 8000
    control_host: str | None = None
    control_port: Port | None = None
    public_url: str | None = None
    allowed_hosts: Several = None
    allowed_origins: Several = None
    trusted_proxies: Several = None
    frame_ancestors: Several = None

    def check(self) -> None:
        """Raise if an option requires another option that is missing.

        Raises:
            ConfigurationError: the control plane has an address of its own but no port.
        """
        if self.control_host is not None and self.control_port is None:
            raise ConfigurationError("--control-host needs --control-port: the separate port of the control plane")


@Parameter(name="*", group=_CREDENTIALS)
@dataclass(frozen=True, kw_only=True)
class Credentials(Given):
    """The options for authentication.

    Attributes:
        control_token: Token that orchestrators must present. Default: MCPENV_CONTROL_TOKEN.
        control_token_file: File with that token.
        metrics_token: Token that reads /metrics and nothing else. Default: MCPENV_METRICS_TOKEN.
        metrics_token_file: File with that token.
        agent_tokens: NAME=TOKEN of an agent; may be given several times. Default: MCPENV_AGENT_TOKENS,
            name=token,name=token.
        agent_scopes: NAME=SCOPE,SCOPE: the scopes of the agent of that name; may be given several times.
        agent_tokens_file: File with one name=token a line.
        agent_jwks_url: URL of the keys that verify agents' JSON Web Tokens.
        agent_issuer: Issuer that those tokens must have.
        agent_audience: Audience that those tokens must have.
        agent_algorithm: Algorithm with which those tokens must be signed.
        agent_oauth: Direct MCP clients without a token to the issuer to get one. Requires --public-url.
        insecure: Serve other machines without credentials.
    """

    control_token: Secret = None
    control_token_file: Path | None = None
    metrics_token: Secret = None
    metrics_token_file: Path | None = None
    agent_tokens: Secrets = None
    agent_scopes: Scopes = None
    agent_tokens_file: Path | None = None
    agent_jwks_url: str | None = None
    agent_issuer: str | None = None
    agent_audience: str | None = None
    agent_algorithm: Algorithm = "RS256"
    agent_oauth: Flag = False
    insecure: Flag = False

    def read(self, config: ServerConfig) -> tuple[ServerConfig, Callable[[], AuthProvider | None]]:
        """Return the settings with the tokens of the control plane, and a factory of agent authentication.

        The factory returns None if agents are not authenticated. It can be pickled, for worker processes. It is called
        once here, so that a mistake in the options is reported at once.

        Raises:
            ConfigurationError: a token cannot be read or used.
        """
        from mcpenv.server.security.agent_auth import agent_auth_from

        # A server does not use a client's token, but processes that its tools start could use it to act as that agent.
        forget(AGENT_TOKEN)
        if self.agent_oauth and config.public_url is None:
            raise ConfigurationError("--agent-oauth needs --public-url: tokens are issued for that URL")
        agents = functools.partial(
            agent_auth_from,
            tokens=agent_tokens(self.agent_tokens or [], self.agent_tokens_file),
            scopes=agent_scopes(self.agent_scopes or []),
            jwks_url=self.agent_jwks_url,
            issuer=self.agent_issuer,
            audience=self.agent_audience,
            algorithm=self.agent_algorithm,
            oauth_at=config.public_url if self.agent_oauth else None,
        )
        agents()
        control = read_token("--control-token", CONTROL_TOKEN, self.control_token, self.control_token_file)
        metrics = read_token("--metrics-token", METRICS_TOKEN, self.metrics_token, self.metrics_token_file)
        return replace(config, control_token=control, metrics_token=metrics), agents


@Parameter(name="*", group=_SESSIONS)
@dataclass(frozen=True, kw_only=True)
class Sessions(Given):
    """The options for sessions.

    Attributes:
        max_sessions: Maximum concurrent sessions. Default: 1, or 1024 if the environment supports several.
        session_timeout_s: Seconds without use after which a session is closed.
        queue_timeout_s: Seconds that a client may wait for a free session.
        resume_grace_s: Seconds that an orchestrator has to reconnect after its socket is lost.
        durable: Folder or URL of a store that servers share. An episode then outlives its server: another one, or this
            one when it starts again, continues it.
        session_scope: One session for each agent with a token (principal), or for each of its connections (connection).
        require_handle: Serve agents only at an episode's own URL, info.mcp_url of a reset.
        wires: Protocol of a trainer to speak too: nemo-gym or ors. May be given several times. Needs one worker.
        extensions: Name of an installed extension to serve with; see the docs on extending. May be given several times.
    """

    max_sessions: int | None = None
    session_timeout_s: float = _DEFAULTS.session_timeout_s
    queue_timeout_s: float = _DEFAULTS.queue_timeout_s
    resume_grace_s: float = _DEFAULTS.resume_grace_s
    durable: str | None = None
    session_scope: Literal["principal", "connection"] = _DEFAULTS.session_scope
    require_handle: Flag = False
    wires: Wires = None
    extensions: Extensions = None


@Parameter(name="*", group=_LIMITS)
@dataclass(frozen=True, kw_only=True)
class Limits(Given):
    """The options for limits.

    Attributes:
        step_timeout_s: Timeout of a step, in seconds.
        drain_s: Seconds that running episodes have to end at SIGTERM; Ctrl-C does not wait for them.
        shutdown_timeout_s: Seconds that running steps have to finish at shutdown.
        ping_interval_s: Seconds between keep-alive pings on /ws.
        max_calls_in_flight: Maximum running and queued calls of one session; more are refused.
        max_requests_per_s: Maximum average rate of one agent's listings and calls, per second. Default: no limit.
        max_message_bytes: Maximum bytes of a frame or request body.
        max_quarantined: Maximum quarantined instances (their code cannot be stopped); above it new sessions are
            refused.
        max_snapshots: Maximum snapshots of one session; 0 disables snapshots.
        max_snapshot_bytes: Maximum total bytes of one session's snapshots.
    """

    step_timeout_s: float = _DEFAULTS.step_timeout_s
    drain_s: float = _DEFAULTS.drain_s
    shutdown_timeout_s: float = _DEFAULTS.shutdown_timeout_s
    ping_interval_s: float = _DEFAULTS.ping_interval_s
    max_calls_in_flight: int = _DEFAULTS.max_calls_in_flight
    max_requests_per_s: float | None = None
    max_message_bytes: int = _DEFAULTS.max_message_bytes
    max_quarantined: int = _DEFAULTS.max_quarantined
    max_snapshots: int = _DEFAULTS.max_snapshots
    max_snapshot_bytes: int = _DEFAULTS.max_snapshot_bytes


def with_manifest(sessions: Sessions, limits: Limits, manifest: Manifest | None) -> tuple[Sessions, Limits]:
    """Return the options with the limits of a manifest. An option that was given wins."""
    stated = {} if manifest is None else manifest.limits.given()
    return _with_stated(sessions, stated), _with_stated(limits, stated)


def _with_stated(group: G, stated: Mapping[str, Any]) -> G:
    own = {field.name for field in fields(group)} - group.given  # type: ignore[arg-type]
    return replace(group, **{name: value for name, value in stated.items() if name in own})  # type: ignore[type-var]


def config_from(mode: Mode, addresses: Addresses, sessions: Sessions, limits: Limits) -> ServerConfig:
    """Return the settings of a server without credentials, which `Credentials.read` adds.

    Raises:
        ConfigurationError: an option has a value out of range, or does not fit the mode.
    """
    addresses.check()
    if sessions.require_handle and mode is not Mode.SIMULATION:
        raise ConfigurationError(f"--require-handle: {mode.value} mode has no episodes, and so no handles")
    public_url = None if addresses.public_url is None else _base_url("--public-url", addresses.public_url)
    hosts = [_host_name("--allowed-hosts", name) for name in _split(addresses.allowed_hosts)]
    if public_url is not None:
        hosts.append(urlsplit(public_url).hostname or "")
    return ServerConfig(
        mode=mode,
        max_concurrent_envs=None
        if sessions.max_sessions is None
        else _count("--max-sessions", sessions.max_sessions, 1),
        step_timeout_s=_positive("--step-timeout-s", limits.step_timeout_s),
        session_timeout_s=_positive("--session-timeout-s", sessions.session_timeout_s),
        queue_timeout_s=_not_negative("--queue-timeout-s", sessions.queue_timeout_s),
        resume_grace_s=_not_negative("--resume-grace-s", sessions.resume_grace_s),
        session_scope=sessions.session_scope,
        require_handle=sessions.require_handle,
        wires=tuple(sessions.wires or ()),
        extensions=tuple(sessions.extensions or ()),
        durable=sessions.durable,
        public_url=public_url,
        trusted_proxies=tuple(_proxy("--trusted-proxies", proxy) for proxy in _split(addresses.trusted_proxies)),
        max_calls_in_flight=_count("--max-calls-in-flight", limits.max_calls_in_flight, 1),
        max_requests_per_s=_rate("--max-requests-per-s", limits.max_requests_per_s),
        max_message_bytes=_count("--max-message-bytes", limits.max_message_bytes, 1),
        ping_interval_s=_positive("--ping-interval-s", limits.ping_interval_s),
        allowed_hosts=tuple(hosts),
        allowed_origins=tuple(_origin("--allowed-origins", origin) for origin in _split(addresses.allowed_origins)),
        frame_ancestors=tuple(_origin("--frame-ancestors", origin) for origin in _split(addresses.frame_ancestors)),
        max_quarantined=_count("--max-quarantined", limits.max_quarantined, 0),
        max_snapshots=_count("--max-snapshots", limits.max_snapshots, 0),
        max_snapshot_bytes=_count("--max-snapshot-bytes", limits.max_snapshot_bytes, 1),
        drain_s=_not_negative("--drain-s", limits.drain_s),
        shutdown_timeout_s=_not_negative("--shutdown-timeout-s", limits.shutdown_timeout_s),
    )


# -- checks of single options


def _positive(option: str, seconds: float) -> float:
    if 0 < seconds < math.inf:
        return seconds
    raise ConfigurationError(f"{option} is {seconds:g}; it must be a number of seconds above 0")


def _not_negative(option: str, seconds: float) -> float:
    if 0 <= seconds < math.inf:
        return seconds
    raise ConfigurationError(f"{option} is {seconds:g}; it must be a number of seconds, 0 or more")


def _rate(option: str, per_s: float | None) -> float | None:
    if per_s is None or 0 < per_s < math.inf:
        return per_s
    raise ConfigurationError(f"{option} is {per_s:g}; it must be a number of requests a second above 0")


def _count(option: str, value: int, least: int) -> int:
    if value >= least:
        return value
    raise ConfigurationError(f"{option} is {value}; it must be {least} or more")


def _split(values: Sequence[str] | None) -> Iterable[str]:
    """Return the parts of comma-separated texts, stripped and without empty ones."""
    return (part.strip() for value in values or () for part in value.split(",") if part.strip())


def _base_url(option: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            f"{option} {url}: it must be an http(s):// URL without query, such as https://env.example.com"
        )
    return url.rstrip("/")


def _origin(option: str, origin: str) -> str:
    parts = urlsplit(_base_url(option, origin))
    if parts.path:
        raise ConfigurationError(f"{option} {origin}: an origin has no path, such as https://app.example.com")
    return f"{parts.scheme}://{parts.netloc}".lower()


def _host_name(option: str, name: str) -> str:
    if "/" in name or "*" in name or "@" in name or " " in name:
        raise ConfigurationError(
            f"{option} {name}: it must be a host name, such as env.example.com or env.example.com:8443"
        )
    return name.lower()


def _proxy(option: str, proxy: str) -> str:
    if proxy == "*":
        return proxy
    try:
        return str(ipaddress.ip_network(proxy))
    except ValueError as error:
        raise ConfigurationError(
            f"{option} {proxy}: it must be an IP address, a network such as 10.0.0.0/8, or * for all"
        ) from error
