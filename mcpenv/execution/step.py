"""The running step, and the context variable by which user code finds it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from fastmcp import FastMCP

from mcpenv.rewards.reward import Finish
from mcpenv.tracing import StepTrace
from mcpenv_client.errors import WireError
from mcpenv_client.types.records import LogEntry, ToolCall
from mcpenv_client.types.status import COMPLETED

from .concurrency.agent_call import AgentCall
from .notifications import Subscribers


class Place(Protocol):
    """The environment instance that takes a step.

    Attributes:
        session_id: names the instance for tools that keep state.
        subscribers: the subscribers to changes of its tools.
    """

    session_id: str
    subscribers: Subscribers

    @property
    def server(self) -> FastMCP | None:
        """The mounted FastMCP server, to which contexts belong; None without one."""
        ...


class Step:
    """The running step of an instance.

    Attributes:
        owner: the execution that takes it.
        kept: the values that the episode's tools keep until the next reset.
        own_kept: the values that this call keeps until its end; None: no value yet.
        timeout_s: the caller's limit in seconds; None: no limit.
        score: the result of a sync `score`, which runs in the thread of its tool; else `NOT_SCORED`.
        logs: the messages that the tool logged so far.
        finish: the arguments of the first ``finish(...)``.
        fault: an error of the environment, with which the step fails: ``score`` raised in the tool's thread, or the
            reward of ``finish(...)`` was not finite.
        client: the call of the agent, which may leave; None for all other callers.
        settled: True if the episode ends with this step, and its end is being scored.
        status: what became of the step.
        trace: its spans; None if this process does not trace.
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
        self.client: AgentCall | None = None
        self.settled = False
        self.status = COMPLETED
        self.score = NOT_SCORED
        self.trace: StepTrace | None = None


NOT_SCORED: Any = object()
"""The score of a step that was not scored where its tool ran."""

current: ContextVar[object | None] = ContextVar("mcpenv_current", default=None)
"""The `Step` that runs in this context, or the execution whose reset, state or close runs."""


def inside(owner: object) -> bool:
    """Return True if the caller is running code of this environment."""
    now = current.get()
    return now is owner or (isinstance(now, Step) and now.owner is owner)
