"""A step under way, and the context variable by which the author's code finds it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from fastmcp import FastMCP

from mcpenv_client.errors import WireError
from mcpenv_client.records import LogEntry, ToolCall

from .notifications import Changes
from .rewards import Finish


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


class Step:
    """A step under way.

    Attributes:
        owner: the execution whose step it is.
        kept: what the episode's tools keep until the next reset.
        own_kept: what this one keeps until the end of the call; None: nothing yet.
        timeout_s: seconds that the caller gives it; None: no limit.
        score: the result of a sync `score`, which runs in the thread of its tool; else `NOT_SCORED`.
        logs: what the tool logged so far.
        finish: what the first ``finish(...)`` said.
        fault: an error of the environment, with which the step fails: ``score`` raised in the tool's thread, or
            ``finish(...)`` was given no finite reward.
        settled: it has been decided that the episode ends with it; its end is being judged.
    """

    def __init__(self, owner: Place, call: ToolCall, kept: dict[str, Any], timeout_s: float | None) -> None:
        self.owner = owner
        self.call = call
        self.kept = kept
        self.timeout_s = timeout_s
        self.logs: list[LogEntry] = []
        self.own_kept: dict[str, Any] | None = None
        self.finish: Finish | None = None
        self.fault: WireError | None = None
        self.settled = False
        self.score = NOT_SCORED


NOT_SCORED: Any = object()
"""The score of a step that was not scored where its tool ran."""

current: ContextVar[object | None] = ContextVar("mcpenv_current", default=None)
"""The `Step` under way in this context, or the execution whose reset, state or close is."""


def inside(owner: object) -> bool:
    """Whether the caller is code of this environment that is under way."""
    now = current.get()
    return now is owner or (isinstance(now, Step) and now.owner is owner)
