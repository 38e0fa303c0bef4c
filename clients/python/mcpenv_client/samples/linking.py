"""Linking: finds the steps of an episode that the calls of its model made."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mcpenv_client.types.model_turns import CONVERSATION, ModelTurn, TurnCall
from mcpenv_client.types.records import StepRecord, Trajectory

_OTHERS = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True)
class _Asked:
    """A call with the time range in which it was made, in seconds since the epoch.

    Attributes:
        after: the beginning of the turn, because agents begin calls while an answer is streamed.
        before: the beginning of the first turn that gives the model the call's result; None without one.
    """

    call: TurnCall
    after: float
    before: float | None

    def fits(self, step: StepRecord, *, by_time: bool) -> bool:
        """Return True if this call may have made the step."""
        if not _same_tool(self.call.name, step.call.name) or self.call.arguments != step.call.arguments:
            return False
        if not by_time:
            return True
        return self.after <= step.started_at and (self.before is None or step.started_at <= self.before)


def link_calls(turns: Sequence[ModelTurn], trajectory: Trajectory) -> int:
    """Set `TurnCall.step` of each call that made a step, and return the number of such calls.

    A call has made a step of its tool with its arguments, after its turn began and before the model got a result with
    the call's id. Each step belongs to one call. If no call fits by time, the clocks of proxy and server differ, and
    the order alone decides.

    Args:
        turns: the turns of an episode, shortened or not.
        trajectory: the episode.
    """
    asked = sorted(_asked(turns), key=lambda each: each.after)
    return _link(asked, trajectory.steps, by_time=True) or _link(asked, trajectory.steps, by_time=False)


def unlinked(turns: Sequence[ModelTurn], trajectory: Trajectory) -> str | None:
    """Return why no call of an episode's turns made one of its steps; None if one did, or if there are no steps.

    Without such a call, no turn has a reward of its own.

    Args:
        turns: the turns after `link_calls`.
        trajectory: the episode.
    """
    calls = [call for turn in turns for call in turn.calls]
    tools = sorted({step.call.name for step in trajectory.steps})
    if not turns or not tools or any(call.step is not None for call in calls):
        return None
    if not calls:
        return f"the answers of the model have no calls, and the episode has {len(trajectory.steps)} steps"
    if not any(_same_tool(call.name, tool) for call in calls for tool in tools):
        asked = ", ".join(sorted({call.name for call in calls})[:5])
        return f"none of the {len(calls)} calls ({asked}) has the name of a tool of the steps ({', '.join(tools[:5])})"
    return f"the {len(calls)} calls have other arguments or times than the {len(trajectory.steps)} steps"


def _asked(turns: Sequence[ModelTurn]) -> Iterator[_Asked]:
    told: defaultdict[str | None, list[float]] = defaultdict(list)
    for turn in turns:
        for identity in _results(turn):
            told[identity].append(turn.started_at)
    for turn in turns:
        for call in turn.calls:
            call.step = None
            # Some endpoints reuse ids.
            later = [at for at in told[call.id] if at > turn.started_at]
            yield _Asked(call, turn.started_at, min(later, default=None))


def _link(asked: Sequence[_Asked], steps: Sequence[StepRecord], *, by_time: bool) -> int:
    waiting, linked = list(steps), 0
    for each in asked:
        found = next((step for step in waiting if each.fits(step, by_time=by_time)), None)
        if found is not None:
            waiting.remove(found)
            each.call.step = found.call.step
            linked += 1
    return linked


def _same_tool(asked: str, tool: str) -> bool:
    """Return True if the model's name means the tool, possibly with a prefix of its agent (``mcp__env__add``)."""
    asked, tool = (_OTHERS.sub("_", name).lower() for name in (asked, tool))
    return asked == tool or asked.endswith(f"_{tool}")


def _results(turn: ModelTurn) -> Iterator[str]:
    """Yield the ids of the calls with results in a request."""
    messages = turn.request.get(CONVERSATION[turn.api])
    # Results of Gemini's API usually have no ids, so there is no upper bound.
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        parts: list[Any] = [message, *(content if isinstance(content, list) else ())]
        for part in parts:
            if not isinstance(part, dict):
                continue
            for name in ("tool_call_id", "tool_use_id"):
                if isinstance(part.get(name), str):
                    yield part[name]
            if str(part.get("type")).endswith("_call_output") and isinstance(part.get("call_id"), str):
                yield part["call_id"]
