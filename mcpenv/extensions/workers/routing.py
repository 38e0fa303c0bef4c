"""Routing of a request to a worker by its head: method, path, query and header fields. No I/O.

The order of the rules is that of `mcpenv.server.sessions.resolver`. Requests that only the bearer token or the body can
route are left to the worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from urllib.parse import parse_qs

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcpenv.server.sessions.credential import SESSION_ID

from . import worker_id

_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)
_REQUEST_LINE = re.compile(rb"([A-Z]+) ([^ ?#]*)(?:\?([^ #]*))? HTTP/1\.[01]\r\n")

_PARTS = "trajectory|events|running|pause|resume|holder|calls|cancel|moves"
_PART = re.compile(rf"/(?:{_PARTS}|steps/[0-9]+/content/[0-9]+)\Z")
"""What follows a session's id in the paths of its parts."""

SESSION_HEADER = b"mcp-session-id"

Headers = Iterable[tuple[bytes, bytes]]
"""Header names in lower case, with their values."""


class Kind(Enum):
    """The kind of worker that a request belongs to."""

    ANYBODY = "anybody"
    """Any worker can answer the request."""
    WORKER = "worker"
    """The worker with the tag in the request's id."""
    CHOSEN = "chosen"
    """The worker with the session whose id the client chose; any worker if there is no such session."""
    SERVICE = "service"
    """The worker with the session that all anonymous stateless clients share."""
    OPENS = "opens"
    """The least loaded worker: the request opens a session that is bound to its connection."""
    BODY = "body"
    """The body of the request decides."""
    NAMED = "named"
    """The worker with the session of an id without a tag."""
    PLACED = "placed"
    """The least loaded worker: the request makes a session, which any connection may use."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The worker that a request belongs to.

    Attributes:
        value: the worker's tag, or the session's id; empty for other kinds.
    """

    kind: Kind
    value: str = ""


ANYBODY, SERVICE, OPENS, BODY, PLACED = (
    Destination(kind) for kind in (Kind.ANYBODY, Kind.SERVICE, Kind.OPENS, Kind.BODY, Kind.PLACED)
)


def destination(method: str, path: str, query: bytes, headers: Headers) -> Destination:
    """Return the worker that a request belongs to.

    Args:
        path: without query. It may be percent-encoded or not, because ids need no encoding.
    """
    if path.startswith("/episodes/"):
        return _tagged(path.split("/", 3)[2])
    if path in ("/mcp", "/mcp/"):
        return _mcp(method, headers)
    if path == "/ws":
        return _socket(query, headers)
    if path in ("/reset", "/step", "/end"):
        return BODY
    if path == "/state":
        given = parse_qs(query.decode("latin-1")).get("session_id")
        return PLACED if given is None else _tagged(given[0])
    if path in ("/sessions", "/console/api/sessions"):
        return PLACED if method == "POST" else ANYBODY
    if path == "/sessions/events":
        return ANYBODY
    if path.startswith("/sessions/"):
        session_id = _PART.sub("", path.removeprefix("/sessions/"))
        found = _tagged(session_id)
        return Destination(Kind.NAMED, session_id) if found is ANYBODY else found
    return ANYBODY


def destination_of_head(head: bytes) -> Destination:
    """Return the same for the first bytes of a connection; `ANYBODY` for an incomplete or malformed head."""
    end = head.find(b"\r\n\r\n")
    line = _REQUEST_LINE.match(head)
    if end < 0 or line is None:
        return ANYBODY
    # No regular expression: the hub's loop would wait for seconds while it searches 16 KiB of letters or blanks.
    lines = [field.partition(b":") for field in head[line.end() : end].split(b"\r\n")]
    fields = [(name.lower(), value.strip(b" \t")) for name, colon, value in lines if colon]
    return destination(line[1].decode(), line[2].decode("latin-1"), line[3] or b"", fields)


def speaks_mcp(headers: Headers) -> bool:
    """Return True if a POST to ``/mcp`` is certainly MCP; False if it may be OpenEnv's plain JSON-RPC."""
    for name, value in headers:
        if name in (SESSION_HEADER, b"mcp-protocol-version"):
            return True
        if name == b"accept" and b"text/event-stream" in value.lower():
            return True
    return False


def connection_tag(headers: Headers) -> Destination:
    """Return the worker of a handshake MCP client, from the tag in its ``Mcp-Session-Id``."""
    given = [value.decode("latin-1") for name, value in headers if name == SESSION_HEADER]
    return _tagged(given[0]) if len(given) == 1 else ANYBODY


def _mcp(method: str, headers: Headers) -> Destination:
    headers = list(headers)
    versions = [value.strip() for name, value in headers if name == b"mcp-protocol-version"]
    if method == "POST" and len(versions) == 1 and versions[0] in _MODERN:
        return SERVICE  # stateless clients: any Mcp-Session-Id is ignored
    if any(name == SESSION_HEADER for name, _ in headers):
        return connection_tag(headers)
    if method != "POST":
        return ANYBODY
    return OPENS if speaks_mcp(headers) else BODY


def _socket(query: bytes, headers: Headers) -> Destination:
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("session_id")
    if given is not None:
        return _tagged(given[0])
    chosen = [value.decode("latin-1").strip() for name, value in headers if name == b"mcpenv-session-id"]
    if chosen and SESSION_ID.fullmatch(chosen[-1]):
        return Destination(Kind.CHOSEN, chosen[-1])
    return OPENS


def _tagged(name: str) -> Destination:
    worker, _ = worker_id.split(name)
    return ANYBODY if worker is None else Destination(Kind.WORKER, worker)
