"""A step under way, and the context variable by which the author's code finds it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastmcp import FastMCP

from mcpenv_client.errors import WireError
from mcpenv_client.records import LogEntry, ToolCall

from .changes import Changes
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


@dataclass(slots=True)
class Step:
    """A step under way.

    Attributes:
        owner: the execution whose step it is.
        piece: of what is under way, it is this one.
        kept: what the episode's tools keep until the next reset.
        own_kept: what this one keeps until the end of the call.
        logs: what the tool logged so far.
        finish: what the first ``finish(...)`` said.
        fault: an error of the environment, with which the step fails: ``score`` raised in the tool's thread, or
            ``finish(...)`` was given no finite reward.
        settled: it has been decided that the episode ends with it; its end is being judged.
    """

    owner: Place
    call: ToolCall
    piece: Piece
    kept: dict[str, Any]
    logs: list[LogEntry] = field(default_factory=list)
    finish: Finish | None = None
    fault: WireError | None = None
    settled: bool = False
    own_kept: dict[str, Any] = field(default_factory=dict)


current: ContextVar[object | None] = ContextVar("mcpenv_current", default=None)
"""The `Step` under way in this context, or the execution whose reset, state or close is."""


def inside(owner: object) -> bool:
    """Whether the caller is code of this environment that is under way."""
    now = current.get()
    return now is owner or (isinstance(now, Step) and now.owner is owner)
