"""Lines of a record, quickly: what the serializer of episodes writes, in a quarter of its time."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson
from pydantic_core import to_json

from mcpenv_client.records import LogEntry, StepRecord
from mcpenv_client.tasks import Task
from mcpenv_client.values import plain

if TYPE_CHECKING:
    from .episodes import RecordedEpisode

ANY_LENGTH = sys.maxsize

_GOES_ON = orjson.Fragment(b'false,"truncated":false,"reason":null')
_QUIET = orjson.Fragment(b'[],"fault":null')
"""Several fields under the name of the first: what nearly every step has, and a dictionary is not filled with again."""

_FINITE = frozenset({int, bool, type(None)})


def quick_line(episode: RecordedEpisode, longest: int = ANY_LENGTH) -> bytes | None:
    """The episode's line; None if it is not sure that all of it is finite and that orjson writes it, or if it is long.

    Results and the reset's observation are taken to be finite, which is seen to when they are made.

    Args:
        longest: characters of a text in a step's arguments and results, above which an episode is long. What is no text
            may have any size, and is long too, unless there is no limit.
    """
    trajectory = episode.trajectory
    rows = _steps(trajectory.steps, longest)
    if rows is None or not math.isfinite(trajectory.total_reward):
        return None
    try:
        told = {
            "episode_id": trajectory.episode_id,
            "seed": trajectory.seed,
            "options": _written(trajectory.options),
            "implicit_reset": trajectory.implicit_reset,
            "steps": rows,
            "dropped": trajectory.dropped,
            "total_reward": trajectory.total_reward,
            "terminated": trajectory.terminated,
            "truncated": trajectory.truncated,
            "reason": trajectory.reason,
            "started_at": trajectory.started_at,
            "ended_at": trajectory.ended_at,
            "task": None if trajectory.task is None else _task(trajectory.task),
            "observation": trajectory.observation,
            "end_reward": trajectory.end_reward,
            "verified": trajectory.verified,
            "fault": trajectory.fault,
            "forked_from": trajectory.forked_from,
        }
        line = {
            "trajectory": told,
            "environment": episode.environment,
            "versions": episode.versions,
            "tools": episode.tools,
            "messages": _written(episode.messages),
            "agent": _written(episode.agent),
            "extra": _written(episode.extra),
            "format": episode.format,
        }
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
    except (TypeError, ValueError):
        # An integer of more than 64 bits, a lone surrogate, a key that is no text, levels without end; no JSON at all.
        return None


def _steps(steps: Sequence[StepRecord], longest: int) -> list[dict[str, Any]] | None:
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
    return rows


def _task(task: Task) -> dict[str, Any]:
    oracle = task.oracle
    return {
        "id": task.id,
        "split": task.split,
        "prompt": task.prompt,
        "options": _written(task.options),
        "seed": task.seed,
        "limits": {"max_steps": task.limits.max_steps, "timeout_s": task.limits.timeout_s},
        "metadata": _written(task.metadata),
        "version": task.version,
        "oracle": oracle and [{"tool_name": call.tool_name, "arguments": _written(call.arguments)} for call in oracle],
        "verifier": _written(task.verifier),
        "reward_range": task.reward_range,
    }


def _written(value: Any) -> Any:
    """What orjson writes as the serializer does."""
    return value if value is None or _is_finite(value) else _fragment(value)


def _fragment(value: Any) -> orjson.Fragment:
    """What the serializer writes of it.

    Raises:
        ValueError: it has no JSON form, or may have none: the names of what is not finite may stand inside a string
            too, but then nothing is lost.
    """
    text = to_json(value, inf_nan_mode="constants", bytes_mode="base64", fallback=plain)
    if b"NaN" in text or b"Infinity" in text:
        raise ValueError("it may hold NaN or infinity")
    return orjson.Fragment(text)


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
