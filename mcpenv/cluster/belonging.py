"""Belonging: which worker a request belongs to, by its head: method, path, query and header fields. No I/O.

The order is that of `mcpenv.binding`; what it cannot say, because only the bearer token or the body says it, is left to
the worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from urllib.parse import parse_qs

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from . import tag

_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)
_CHOSEN = re.compile(r"[A-Za-z0-9_-]{16,128}")
_REQUEST_LINE = re.compile(rb"([A-Z]+) ([^ ?#]*)(?:\?([^ #]*))? HTTP/1\.[01]\r\n")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*?)[ \t]*\r\n")

SESSION_HEADER = b"mcp-session-id"

Headers = Iterable[tuple[bytes, bytes]]
"""Names in lower case, and values."""


class Kind(Enum):
    """To whom."""

    ANYBODY = "anybody"
    """Any worker can answer it."""
    WORKER = "worker"
    """The one whose tag it has."""
    CHOSEN = "chosen"
    """The one with the session of an id that its client chose; if there is none, any."""
    SERVICE = "service"
    """The one with the session that all anonymous stateless clients share."""
    OPENS = "opens"
    """It is the begin of a session, on a connection that stays with it: the worker with the fewest."""
    BODY = "body"
    """Its body says it."""
    NAMED = "named"
    """The one with the session of that id, whoever made it up."""
    PLACED = "placed"
    """It makes a session, and may be answered from anywhere."""


@dataclass(frozen=True, slots=True)
class Belonging:
    """Where a request belongs.

    Attributes:
        value: the tag, or the id.
    """

    kind: Kind
    value: str = ""


ANYBODY, SERVICE, OPENS, BODY, PLACED = (
    Belonging(kind) for kind in (Kind.ANYBODY, Kind.SERVICE, Kind.OPENS, Kind.BODY, Kind.PLACED)
)


def belonging(method: str, path: str, query: bytes, headers: Headers) -> Belonging:
    """Where a request belongs.

    Args:
        path: without query, decoded or not: ids need no encoding.
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
    if path == "/sessions":
        return PLACED if method == "POST" else ANYBODY
    if path.startswith("/sessions/"):
        session_id = path.removeprefix("/sessions/")
        found = _tagged(session_id)
        return Belonging(Kind.NAMED, session_id) if found is ANYBODY else found
    return ANYBODY


def belonging_of(head: bytes) -> Belonging:
    """The same for the bytes with which a connection begins; what is not whole or odd belongs to anybody."""
    end = head.find(b"\r\n\r\n")
    line = _REQUEST_LINE.match(head)
    if end < 0 or line is None:
        return ANYBODY
    fields = [(name.lower(), value) for name, value in _FIELD.findall(head, line.end(), end + 2)]
    return belonging(line[1].decode(), line[2].decode("latin-1"), line[3] or b"", fields)


def speaks_mcp(headers: Headers) -> bool:
    """Whether a POST to ``/mcp`` is MCP, and no plain JSON-RPC of OpenEnv's; by its head alone, "no" is a maybe."""
    for name, value in headers:
        if name in (SESSION_HEADER, b"mcp-protocol-version"):
            return True
        if name == b"accept" and b"text/event-stream" in value.lower():
            return True
    return False


def connection_tag(headers: Headers) -> Belonging:
    """By the connection of a handshake MCP client."""
    given = [value.decode("latin-1") for name, value in headers if name == SESSION_HEADER]
    return _tagged(given[0]) if len(given) == 1 else ANYBODY


def _mcp(method: str, headers: Headers) -> Belonging:
    headers = list(headers)
    versions = [value.strip() for name, value in headers if name == b"mcp-protocol-version"]
    if method == "POST" and len(versions) == 1 and versions[0] in _MODERN:
        return SERVICE  # whatever Mcp-Session-Id it carries
    if any(name == SESSION_HEADER for name, _ in headers):
        return connection_tag(headers)
    if method != "POST":
        return ANYBODY
    return OPENS if speaks_mcp(headers) else BODY


def _socket(query: bytes, headers: Headers) -> Belonging:
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("session_id")
    if given is not None:
        return _tagged(given[0])
    chosen = [value.decode("latin-1").strip() for name, value in headers if name == b"mcpenv-session-id"]
    if chosen and _CHOSEN.fullmatch(chosen[-1]):
        return Belonging(Kind.CHOSEN, chosen[-1])
    return OPENS


def _tagged(name: str) -> Belonging:
    worker, _ = tag.split(name)
    return ANYBODY if worker is None else Belonging(Kind.WORKER, worker)
