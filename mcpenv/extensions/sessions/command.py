"""The command ``mcpenv sessions``: show or end the sessions of a server, over its control plane."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Annotated, Any
from urllib.parse import quote

import httpx
from cyclopts import Parameter
from pydantic import TypeAdapter, ValidationError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mcpenv.cli.output import Page, print_json, print_table, printable, shown_parts
from mcpenv.cli.remote import CONNECT_S
from mcpenv.cli.tokens import ControlToken
from mcpenv.errors import ConfigurationError
from mcpenv_client.connection.addresses import http_base, is_loopback, without_password
from mcpenv_client.errors import AGENTS_TOKEN, ConnectionFailed
from mcpenv_client.types.records import Reward
from mcpenv_client.types.server import ServerCapacityStatus, SessionInfo

REFRESH_S = 1.0
"""Seconds between two requests with ``--watch``."""

SHORT = 14
"""Maximum characters of an id in the table."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def sessions(
    url: str,
    /,
    *,
    token: ControlToken = ControlToken(),  # noqa: B008 - frozen
    watch: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    end: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Show the sessions of a server, or end one of them.

    Exit status 0: shown, or ended. 2: the server was not reached, or has no such session.

    Args:
        url: URL of the server, or of its control plane (for orchestrators) if that has a port of its own.
        watch: Update the table until Ctrl-C.
        end: End the session with this id, or the only one with an id that starts with it.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    if watch and (as_json or end is not None):
        raise ConfigurationError("--watch cannot be combined with --json or --end")
    with ControlPlane(url, token.read(url)) as server:
        if end is not None:
            ended = server.end(server.find(end))
            if as_json:
                print_json(ended)
            else:
                Page(sys.stdout).line(f"{printable(ended['session_id'])} has ended.")
        elif watch:
            _watch(server)
        elif as_json:
            print_json(server.look().document)
        else:
            _print(server.look())
    return 0


# -- requests


@dataclass(frozen=True)
class Seen:
    """The answer of a server about its sessions.

    Attributes:
        sessions: the most recently used one first.
        now: the server's clock, in seconds since the epoch.
        document: the server's answers as plain JSON data.
    """

    sessions: list[SessionInfo]
    capacity: ServerCapacityStatus
    now: float
    document: dict[str, Any]


_SESSIONS = TypeAdapter(list[SessionInfo])


class ControlPlane:
    """The client of a server's control plane for sessions.

    Args:
        token: the control token, if the server requires one.

    Raises (constructor and methods):
        ConfigurationError: the server has no such routes at this URL, requires another token, or refused.
        ConnectionFailed: no server listens there, or it is not a server of mcpenv.
    """

    def __init__(self, url: str, token: str | None) -> None:
        try:
            base = http_base(http_base(url), "/mcp")
        except ValueError as error:
            raise ConfigurationError(str(error).replace("base_url", "URL", 1)) from error
        self._shown = without_password(base)
        self._http = httpx.Client(
            base_url=base,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=CONNECT_S,
            trust_env=not is_loopback(base),
        )

    def __enter__(self) -> ControlPlane:
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def look(self) -> Seen:
        """Return the server's present sessions and capacity."""
        reply, listed = self._ask("GET", "/sessions")
        _, capacity = self._ask("GET", "/capacity")
        try:
            sessions = _SESSIONS.validate_python(listed.get("sessions"))
            status = ServerCapacityStatus.model_validate(capacity)
        except ValidationError as error:
            raise ConnectionFailed(self._shown, "its answer about sessions is not that of an mcpenv server") from error
        sessions.sort(key=lambda session: session.last_activity_at, reverse=True)
        return Seen(sessions, status, _clock(reply), {**listed, "capacity": capacity})

    def find(self, beginning: str) -> str:
        """Return the id of the session with this id, or of the only one with an id that starts with ``beginning``."""
        ids = [session.session_id for session in self.look().sessions]
        found = [each for each in ids if each == beginning] or [each for each in ids if each.startswith(beginning)]
        if not beginning or not found:
            raise ConfigurationError(f"there is no session {beginning!r} at {self._shown}")
        if len(found) > 1:
            raise ConfigurationError(
                f"{len(found)} session ids start with {beginning!r}: {', '.join(map(printable, found))}"
            )
        return found[0]

    def end(self, session_id: str) -> dict[str, Any]:
        """End a session and return the server's answer."""
        return self._ask("DELETE", f"/sessions/{quote(session_id, safe='')}")[1]

    def _ask(self, method: str, path: str) -> tuple[httpx.Response, dict[str, Any]]:
        try:
            reply = self._http.request(method, path)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConnectionFailed(self._shown, str(error) or type(error).__name__) from error
        try:
            body = reply.json()
        except ValueError:
            body = None
        if reply.is_success and isinstance(body, dict):
            return reply, body
        raise self._refused(reply, body, path)

    def _refused(self, reply: httpx.Response, body: Any, path: str) -> ConfigurationError:
        message = body.get("message") if isinstance(body, dict) else None
        if reply.status_code == httpx.codes.UNAUTHORIZED:
            another = ", and refuses this one" if "Authorization" in reply.request.headers else ""
            another += ", which is an agent's" if AGENTS_TOKEN in str(message) else ""
            why = f"it requires its control token{another} (--control-token-file, or MCPENV_CONTROL_TOKEN)"
        elif message is not None:
            why = str(message)
        elif reply.status_code == httpx.codes.NOT_FOUND:
            why = f"it has no {path}: in production it needs a control token, or its control plane has another URL"
        else:
            why = f"it answered {path} with status {reply.status_code}"
        return ConfigurationError(f"{self._shown}: {why}")


def _clock(reply: httpx.Response) -> float:
    """Return the server's time, to the second; this machine's if the reply has no date."""
    try:
        return parsedate_to_datetime(reply.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return time.time()


# -- output


def _print(seen: Seen) -> None:
    page = Page(sys.stdout)
    page.line(_summary(seen))
    if not seen.sessions:
        return
    page.line()
    headings = _headings(seen)
    rows = [_row(session, seen.now)[: len(headings)] for session in seen.sessions]
    print_table(page, headings, rows, right=_NUMBERS)


def _watch(server: ControlPlane) -> None:
    console = Console()
    if not console.is_terminal:
        raise ConfigurationError("--watch needs a terminal; without --watch the table is printed once")
    with Live(_live(server.look(), console), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_S)
            live.update(_live(server.look(), console), refresh=True)


def _live(seen: Seen, console: Console) -> RenderableType:
    # Four lines: the summary, an empty line, the table's heading, and the count of sessions left out.
    room = max(console.height - 4, 1)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    headings = _headings(seen)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in _NUMBERS else "left", no_wrap=True)
    for session in seen.sessions[:room]:
        row = _row(session, seen.now)[: len(headings)]
        table.add_row(*map(Text, row), style="cyan" if session.busy else "")
    parts: list[RenderableType] = [Text(_summary(seen), no_wrap=True, overflow="ellipsis"), Text(), table]
    if len(seen.sessions) > room:
        parts.append(Text(f"and {len(seen.sessions) - room} more", style="dim"))
    return Group(*parts)


_HEADINGS = ("id", "origin", "state", "steps", "age", "idle", "planes", "busy")
_REWARDS = ("return", "last reward")
_NUMBERS = ("steps", "age", "idle", "return")


def _headings(seen: Seen) -> tuple[str, ...]:
    """Return the headings of the table; rewards are included only if a session was scored."""
    return _HEADINGS + (_REWARDS if any(session.reward is not None for session in seen.sessions) else ())


def _row(session: SessionInfo, now: float) -> tuple[str, ...]:
    session_id = printable(session.session_id)
    return (
        session_id if len(session_id) <= SHORT else session_id[: SHORT - 1] + "…",
        session.origin,
        session.state,
        str(session.step_count),
        _duration(session.age_s(now)),
        _duration(session.idle_s(now)),
        "+".join(session.planes),
        "yes" if session.busy else "",
        "" if session.total_reward is None else f"{session.total_reward:g}",
        "" if session.reward is None else _parts(session.reward),
    )


def _parts(reward: Reward) -> str:
    return printable(shown_parts(reward.components) or f"{reward.value:g}")


def _summary(seen: Seen) -> str:
    capacity = seen.capacity
    parts = [f"{capacity.active_sessions} of {capacity.max_sessions} sessions"]
    if capacity.waiting:
        parts.append(f"{capacity.waiting} waiting")
    if capacity.quarantined:
        parts.append(f"{capacity.quarantined} quarantined")
    if not capacity.ready:
        parts.append(f"no new sessions accepted{': ' if capacity.reason else ''}{printable(capacity.reason or '')}")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``7s``, ``3m05s``, ``2h00m``, ``4d11h``."""
    # Negative if a session's time is ahead of the server's clock, which is read to the second.
    whole = max(int(seconds), 0)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02d}h"
