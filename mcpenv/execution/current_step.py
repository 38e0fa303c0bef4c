"""The running step, and the context variable by which user code finds it."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcpenv.tracing import StepTrace
from mcpenv_client.errors import WireError
from mcpenv_client.types.records import LogEntry, StepRecord, ToolCall
from mcpenv_client.types.status import COMPLETED, Status

from .episode import Finish

if TYPE_CHECKING:
    from mcpenv.environment import MCPEnvironment

    from .execution import AgentCall
    from .instance import Instance

NOT_SCORED: Any = object()
"""The score of a step that was not scored where its tool ran."""


@dataclass(eq=False)
class Step:
    """The running step of an instance.

    Most steps change few of the attributes that are no arguments, so that these are defaults of the class.

    Attributes:
        owner: the instance that takes the step.
        env: its environment. `close` may empty the instance while a tool that could not be stopped still runs.
        kept: the values that the episode's tools keep until the next reset.
        own_kept: the values that this call keeps until its end; None: no value yet.
        timeout_s: the caller's limit in seconds; None: no limit.
        terminal: True if the tool is declared to end the episode.
        started_at, clock: the time at which the step began: since the epoch, and of ``time.perf_counter``; seconds.
        ran: True if the tool or the action has returned.
        tool_s: seconds that it took.
        decided: the record of the step, once the episode is decided to end with it.
        score: the result of a sync `score`, which runs in the thread of its tool; else `NOT_SCORED`.
        logs: the messages that the tool logged so far.
        finish: the arguments of the first ``finish(...)``.
        fault: an error of the environment, with which the step fails: ``score`` raised in the tool's thread, or the
            reward of ``finish(...)`` was not finite.
        client: the agent's call, which may outlive its client; None for all other callers.
        settled: True if the episode ends with this step, and its end is being scored.
        status: the status of the step, for its record.
        trace: the spans of the step; None if this process does not trace.
    """

    owner: Instance
    call: ToolCall
    env: MCPEnvironment
    kept: dict[str, Any]
    timeout_s: float | None = None
    client: AgentCall | None = None
    terminal: bool = False
    started_at: float = field(default_factory=time.time)
    clock: float = field(default_factory=time.perf_counter)
    logs: list[LogEntry] = field(default_factory=list)
    own_kept: dict[str, Any] | None = field(default=None, init=False)
    finish: Finish | None = field(default=None, init=False)
    fault: WireError | None = field(default=None, init=False)
    score: Any = field(default=NOT_SCORED, init=False)
    status: Status = field(default=COMPLETED, init=False)
    ran: bool = field(default=False, init=False)
    tool_s: float = field(default=0.0, init=False)
    decided: StepRecord | None = field(default=None, init=False)
    settled: bool = field(default=False, init=False)
    trace: StepTrace | None = field(default=None, init=False)


current: ContextVar[object | None] = ContextVar("mcpenv_current", default=None)
"""The `Step` that runs in this context, or the instance during its reset, state or close."""


def inside(owner: object) -> bool:
    """Return True if the caller is running code of this environment."""
    now = current.get()
    return now is owner or (isinstance(now, Step) and now.owner is owner)
