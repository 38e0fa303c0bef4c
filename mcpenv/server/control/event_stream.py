"""The event streams of the control plane (HTML, section 9.2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

from mcpenv_client.types.values import encode

PING_S = 15.0
"""Seconds of silence after which `PING` is sent, so that no proxy closes the connection as dead."""

PING = b": nothing new\n\n"
"""A comment."""

_HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}


def event(name: str, event_id: str | None, data: dict[str, Any]) -> bytes:
    """Return an event."""
    # JSON text has no line breaks outside of its strings, where they are escaped.
    head = f"event: {name}\n" + (f"id: {event_id}\n" if event_id is not None else "")
    return head.encode() + b"data: " + encode(data, "event") + b"\n\n"


def streaming(events: AsyncIterator[bytes]) -> StreamingResponse:
    """Return the answer that sends events as they come."""
    return StreamingResponse(events, 200, _HEADERS, "text/event-stream")


__all__ = ["PING", "PING_S", "event", "streaming"]
