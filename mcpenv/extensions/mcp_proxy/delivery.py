"""Track the delivery of a request to a server. The delivery decides if the request may be sent again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Request:
    """One request in progress.

    Args:
        starting: True for the requests that start a session. Only their faults are noted.

    Attributes:
        sent: True once the transport has accepted its first byte, so that only an answer tells the outcome. Before
            that the server cannot have received it, and it may be sent again. The transport sets it.
        fault: the fault that the transport detected, or None.
        world_lost: True if the server lost its session.
    """

    def __init__(self, *, starting: bool = False) -> None:
        self.starting = starting
        self.sent = False
        self.fault: str | None = None
        self.world_lost = False


CURRENT: ContextVar[Request | None] = ContextVar("mcpenv_upstream_request", default=None)
"""The request that the running task is sending. Transports send in the caller's task, so that they find it here."""


@contextmanager
def sending(*, starting: bool = False) -> Iterator[Request]:
    """Make a request the running task's own while the block runs, and yield it."""
    request = Request(starting=starting)
    before = CURRENT.set(request)
    try:
        yield request
    finally:
        CURRENT.reset(before)


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
