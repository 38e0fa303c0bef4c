"""Steps as JSON, quickly: what the serializer of episodes writes of them, in less than half of its time."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import orjson

from mcpenv_client.records import LogEntry, StepRecord

ANY_LENGTH = sys.maxsize

_GOES_ON = orjson.Fragment(b'false,"truncated":false,"reason":null')
_QUIET = orjson.Fragment(b'[],"fault":null')
"""Several fields under the name of the first: what nearly every step has, and a dictionary is not filled with again."""

_FINITE = frozenset({int, bool, type(None)})


def steps_json(steps: Sequence[StepRecord], longest: int = ANY_LENGTH) -> bytes | None:
    """The list of them; None if it is not sure that all of it is finite and that orjson writes it, or if one is long.

    Results are taken to be finite, which is seen to when they are made.

    Args:
        longest: characters of a text in arguments and results, above which a step is long. What is no text may have any
            size, and is long too, unless there is no limit.
    """
    rows = []
    plane = principal = origin = None
    for step in steps:
        call, outcome, reward = step.call, step.outcome, step.reward
        for value in call.arguments.values():
            kind = type(value)
            if kind is str:
                if len(value) > longest:
                    return None
            elif kind not in _FINITE and not (
                math.isfinite(value) if kind is float else longest == ANY_LENGTH and _is_finite(value)
            ):
                return None
        result, error = outcome.result, outcome.error
        fields = None if result is None else result.__dict__
        if fields is not None and longest != ANY_LENGTH:
            for block in fields["content"]:
                text = block.get("text")
                if type(text) is not str or len(text) > longest:
                    return None
        if origin is None or call.plane is not plane or call.principal is not principal:
            plane, principal = call.plane, call.principal
            origin = _origin(plane, principal)
            if origin is None:
                return None
        row: dict[str, Any] = {
            "call": {"name": call.name, "arguments": call.arguments, "step": call.step, "plane": origin},
            "outcome": {
                "result": fields,
                "error": None if error is None else error.__dict__,
                "duration_s": outcome.duration_s,
            },
            "reward": None if reward is None else {"value": reward.value, "components": reward.components},
            "terminated": _GOES_ON,
            "started_at": step.started_at,
            "logs": _QUIET,
        }
        if step.terminated or step.truncated or step.reason is not None:
            row.update(terminated=step.terminated, truncated=step.truncated, reason=step.reason)
        if step.logs or step.fault is not None:
            if longest != ANY_LENGTH and step.logs:
                return None
            logs = [_logged(entry) for entry in step.logs]
            if None in logs:
                return None
            row.update(logs=logs, fault=step.fault)
        rows.append(row)
    try:
        return orjson.dumps(rows)
    except TypeError:  # an integer of more than 64 bits, a lone surrogate, a key that is no text, levels without end
        return None


def _origin(plane: str, principal: str | None) -> orjson.Fragment | None:
    """Both fields, which steps beside each other mostly have the same."""
    try:
        return orjson.Fragment(orjson.dumps(plane) + b',"principal":' + orjson.dumps(principal))
    except TypeError:
        return None


def _logged(entry: LogEntry) -> dict[str, Any] | None:
    if not (_is_finite(entry.progress) and _is_finite(entry.total)):
        return None
    return {"level": entry.level, "message": entry.message, "progress": entry.progress, "total": entry.total}


def _is_finite(value: Any, depth: int = 0) -> bool:
    """Whether it is plain JSON data, and finite."""
    kind = type(value)
    if kind is str or kind in _FINITE:
        return True
    if kind is float:
        return math.isfinite(value)
    if depth > _DEEP:
        return False
    if kind is list:
        return all(_is_finite(item, depth + 1) for item in value)
    return kind is dict and all(_is_finite(item, depth + 1) for item in value.values())


_DEEP = 100
"""Levels, above which the serializer sees to it."""
