"""Kept steps: the record of a step while its episode runs on, in as few objects as it can be.

An episode holds thousands of records that nobody may ever look at. A whole one is nine objects for the cycle collector
to pass over and 2 kB for the processor's caches to lose; a kept one is one object, and becomes whole when it is looked
at.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from mcpenv_client.records import (
    LogEntry,
    Plane,
    Reward,
    StepRecord,
    ToolCall,
    ToolOutcome,
    call_made,
    outcome_made,
    result_or_wraps,
    reward_made,
)
from mcpenv_client.tools import ToolFailure, ToolResult


def kept(record: StepRecord) -> StepRecord:
    """An equal record, to be held for long. A field that is set from now on is set in one of them alone.

    Both have the same arguments, logs, reward components and (where it was made already) result.
    """
    if record.reward is not None and type(record.reward) is not Reward:
        return record  # the author's own, with more in it
    step = _Draft()
    step.call = _packed(record.call, record.outcome, record.reward, record.logs)
    step.terminated = record.terminated
    step.truncated = record.truncated
    step.reason = record.reason
    step.started_at = record.started_at
    step.fault = record.fault
    step.__class__ = KeptStep
    return step  # type: ignore[no-any-return]


Parts = tuple[
    str,
    dict[str, Any],
    int,
    Plane,
    str | None,
    ToolResult | None,
    ToolFailure | None,
    Any,
    float,
    float | None,
    dict[str, float] | None,
    list[LogEntry],
]
"""Of the call its name, arguments, step, plane and principal; of the outcome the result (or `WRAPS`), the error, the
value and the seconds; of the reward value and components; the logs."""


def _packed(call: ToolCall, outcome: ToolOutcome, reward: Reward | None, logs: list[LogEntry]) -> Parts:
    return (
        call.name,
        call.arguments,
        call.step,
        call.plane,
        call.principal,
        result_or_wraps(outcome),
        outcome.error,
        outcome.value,
        outcome.duration_s,
        None if reward is None else reward.value,
        None if reward is None else reward.components,
        logs,  # itself: what a tool has left running may still log
    )


def parts(step: StepRecord) -> Parts:
    """What four of the fields are made of; a kept record does not become whole for it."""
    held = _call.__get__(step)
    return held if type(held) is tuple else _packed(held, step.outcome, step.reward, step.logs)


def has_result(step: StepRecord) -> bool:
    """Whether its tool returned something; a kept record does not become whole for it."""
    held = _call.__get__(step)
    return (held[_RESULT] if type(held) is tuple else result_or_wraps(step.outcome)) is not None


_RESULT = 5

_call, _outcome, _reward, _logs = (getattr(StepRecord, name) for name in ("call", "outcome", "reward", "logs"))


_making = threading.Lock()


def _make_whole(step: StepRecord) -> None:
    with _making:  # or what another thread has set meanwhile would be set back
        packed = _call.__get__(step)
        if type(packed) is tuple:
            name, arguments, number, plane, principal, result, error, value, duration_s, reward, parts, logs = packed
            _outcome.__set__(step, outcome_made(result, error, value, duration_s))
            _reward.__set__(step, None if reward is None else reward_made(reward, parts))
            _logs.__set__(step, logs)
            _call.__set__(step, call_made(name, arguments, number, plane, principal))
        step.__class__ = StepRecord


def _made_whole(slot: Any) -> property:
    def get(step: StepRecord) -> Any:
        _make_whole(step)
        return slot.__get__(step)

    def put(step: StepRecord, value: Any) -> None:
        _make_whole(step)
        slot.__set__(step, value)

    return property(get, put)


class KeptStep(StepRecord):
    """A record whose slot ``call`` holds what four of its fields are made of. It becomes a `StepRecord`."""

    __slots__ = ()
    __dataclass_fields__ = StepRecord.__dataclass_fields__  # orjson looks for them in the class itself

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A `StepRecord`: what is made anew is not held."""
        return StepRecord(*args, **kwargs)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Any:
        """A `StepRecord`."""
        return StepRecord.from_plain(data)

    call = _made_whole(_call)
    outcome = _made_whole(_outcome)
    reward = _made_whole(_reward)
    logs = _made_whole(_logs)

    def __eq__(self, other: object) -> bool:
        _make_whole(self)
        return self == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        _make_whole(self)
        return repr(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _make_whole(self)
        return self.__reduce_ex__(protocol)


_Draft: Any = type("_StepDraft", (StepRecord.__mro__[1],), {"__slots__": StepRecord.__slots__})
