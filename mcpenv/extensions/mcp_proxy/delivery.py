"""Track the delivery of a request to a server. The delivery decides if the request may be sent again."""

from __future__ import annotations

from contextvars import ContextVar
from enum import Enum


class Delivery(Enum):
    """The delivery state of a request."""

    NOT_SENT = "not sent"
    """The server cannot have received it: it may be sent again."""
    SENT = "sent"
    """The transport accepted its first byte. Only an answer tells the outcome."""


class Request:
    """One request in progress.

    Args:
        starting: True for the requests that start a session. Only their faults are noted.

    Attributes:
        delivery: the delivery state. The transport that sends the request sets it.
        fault: the fault that the transport detected, or None.
        world_lost: True if the server lost its session.
    """

    def __init__(self, *, starting: bool = False) -> None:
        self.starting = starting
        self.delivery = Delivery.NOT_SENT
        self.fault: str | None = None
        self.world_lost = False


CURRENT: ContextVar[Request | None] = ContextVar("mcpenv_upstream_request", default=None)
"""The request that the running task is sending. Transports send in the caller's task, so that they find it here."""


class UpstreamError(Exception):
    """The base of the failures of a server behind an environment.

    UpstreamError
    ├── DiscoveryFailed     it did not start, or did not list its tools
    └── CallFailed          a call has no answer
        ├── NotDelivered    the server cannot have seen the call
        ├── OutcomeUnknown  the call may have run
        └── WorldLost       the process or the session that held the world is gone
    """


class DiscoveryFailed(UpstreamError):
    """Raised if a server did not start, or did not list its tools."""


class CallFailed(UpstreamError):
    """The base of the failures of a call without an answer."""


class NotDelivered(CallFailed):
    """Raised if the server cannot have seen the call."""


class OutcomeUnknown(CallFailed):
    """Raised if the call may have run."""


class WorldLost(CallFailed):
    """Raised if the process or the session that held the world is gone."""
