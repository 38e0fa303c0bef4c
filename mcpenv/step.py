"""A step under way, and the context variable by which the author's code finds it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from fastmcp import FastMCP

from mcpenv_client.errors import WireError
from mcpenv_client.records import LogEntry, ToolCall

from .changes import Changes
from .deadline import Deadline
from .rewards import Finish
from .under_way import Piece


class Place(Protocol):
    """Where a step is taken: an environment instance at work.

    Attributes:
        session_id: names the instance for tools that keep state.
        changes: who is told of what its tools change.
    """

    session_id: str
    changes: Changes

    @property
    def server(self) -> FastMCP | None:
        """The FastMCP server that contexts belong to, if the author handed one in."""
        ...


class Step(Piece):
    """A step under way.

    Attributes:
        owner: the execution whose step it is.
        kept: what the episode's tools keep until the next reset.
        own_kept: what this one keeps until the end of the call; None: nothing yet.
        timeout_s: seconds that whoever called gives it; None: no limit.
        logs: what the tool logged so far.
        finish: what the first ``finish(...)`` said.
        fault: an error of the environment, with which the step fails: ``score`` raised in the tool's thread, or
            ``finish(...)`` was given no finite reward.
        settled: it has been decided that the episode ends with it; its end is being judged.
        limit_s: seconds from `limited_at` on, after which its tool is cancelled, if it waits; None: no limit.
        limited_at: when the tool began (``time.perf_counter``).
        late: the deadline that came of that; None: the tool has not waited.
    """

    # What every step sets has a slot; the rest is of the class until it is set.
    __slots__ = ("call", "kept", "late", "limit_s", "limited_at", "logs", "owner", "timeout_s")

    own_kept: dict[str, Any] | None = None
    finish: Finish | None = None
    fault: WireError | None = None
    settled = False

    def __init__(self, owner: Place, call: ToolCall, kept: dict[str, Any], timeout_s: float | None) -> None:
        self.owner = owner
        self.call = call
        self.kept = kept
        self.timeout_s = timeout_s
        self.logs: list[LogEntry] = []
        self.limit_s: float | None = None
        self.limited_at = 0.0
        self.late: Deadline | None = None

    def waits(self) -> None:
        """It waits for the first time."""
        super().waits()
        if self.limit_s is not None:
            self.late = Deadline(self.limit_s, self, self.limited_at)


current: ContextVar[object | None] = ContextVar("mcpenv_current", default=None)
"""The `Step` under way in this context, or the execution whose reset, state or close is."""


def inside(owner: object) -> bool:
    """Whether the caller is code of this environment that is under way."""
    now = current.get()
    return now is owner or (isinstance(now, Step) and now.owner is owner)
