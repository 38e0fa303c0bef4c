"""Lines of a record, quickly: what the serializer of episodes writes, by orjson wherever that writes the same."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import TypeAdapter
from pydantic_core import CoreConfig, SchemaSerializer, to_json

from mcpenv_client.records import WRAPS, LogEntry, StepRecord
from mcpenv_client.tasks import OracleCall, Task, TaskLimits
from mcpenv_client.values import plain

from ..kept_step import parts
from ..quick_json import wrapping_text

if TYPE_CHECKING:
    from .episodes import RecordedEpisode

ANY_LENGTH = sys.maxsize

_GOES_ON = orjson.Fragment(b'false,"truncated":false,"reason":null')
_QUIET = orjson.Fragment(b'[],"fault":null')
"""Several fields under the name of the first: what nearly every step has, and a dictionary is not filled with again."""

_STRICT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
"""What orjson would write in its own way is left to the serializer."""

AS_RECORDED = CoreConfig(ser_json_inf_nan="constants", ser_json_bytes="base64")
"""How the serializer writes: what is not finite by its name, so that it is seen."""

_FINITE = frozenset({int, bool, type(None)})


def quick_line(episode: RecordedEpisode, longest: int = ANY_LENGTH) -> bytes | None:
    """The episode's line; None if it is not sure that all of it is finite and that orjson writes it, or if it is long.

    Results are taken to be finite, which is seen to when they are made.

    Args:
        longest: characters of a text in a step's arguments and results, above which an episode is long. What is no text
            may have any size, and is long too, unless there is no limit.
    """
    trajectory = episode.trajectory
    rows = _steps(trajectory.steps, longest)
    if rows is None:
        return None
    # What most episodes have not got is not looked at.
    options, task, verified, end = trajectory.options, trajectory.task, trajectory.verified, trajectory.end_reward
    environment, messages, agent, extra = episode.environment, episode.messages, episode.agent, episode.extra
    seen, fork = trajectory.observation, trajectory.forked_from
    try:
        if not math.isfinite(trajectory.total_reward):
            return None
        told = {
            "episode_id": trajectory.episode_id,
            "seed": trajectory.seed,
            "options": _written(options) if options else options,
            "implicit_reset": trajectory.implicit_reset,
            "steps": rows,
            "dropped": trajectory.dropped,
            "total_reward": trajectory.total_reward,
            "terminated": trajectory.terminated,
            "truncated": trajectory.truncated,
            "reason": trajectory.reason,
            "started_at": trajectory.started_at,
            "ended_at": trajectory.ended_at,
            "task": None if task is None else _task(task),
            "observation": seen if seen is None or _is_finite(seen) else _written(seen),
            "end_reward": None if end is None else {"value": end.value, "components": end.components},
            "verified": None if verified is None else {"value": verified.value, "components": verified.components},
            "fault": trajectory.fault,
            "forked_from": None if fork is None else {"episode_id": fork.episode_id, "step": fork.step},
        }
        line = {
            "trajectory": told,
            "environment": {"name": environment.name, "version": environment.version},
            "versions": episode.versions,
            "tools": episode.tools,
            "messages": _written(messages) if messages else messages,
            "agent": _written(agent) if agent else agent,
            "extra": _written(extra) if extra else extra,
            "format": episode.format,
        }
        return orjson.dumps(line, _fields, _STRICT | orjson.OPT_APPEND_NEWLINE)
    except (TypeError, ValueError, OverflowError, RecursionError):
        # An integer of more than 64 bits, a lone surrogate, a key that is no text, levels without end; no JSON at all.
        return None


def _steps(steps: Sequence[StepRecord], longest: int) -> list[dict[str, Any]] | None:
    rows = []
    plane = principal = origin = None
    for step in steps:
        name, arguments, number, at, who, result, error, came, duration_s, reward, components, logs = parts(step)
        for value in arguments.values():
            kind = type(value)
            if kind is str:
                if len(value) > longest:
                    return None
            elif kind not in _FINITE and not (
                math.isfinite(value) if kind is float else longest == ANY_LENGTH and _is_finite(value)
            ):
                return None
        fields: Any = None
        if result is WRAPS:
            if type(came) is str and len(came) > longest:
                return None
            fields = orjson.Fragment(wrapping_text(came))
        elif result is not None:
            fields = result.__dict__
            if longest != ANY_LENGTH:
                for block in fields["content"]:
                    text = block.get("text")
                    if type(text) is not str or len(text) > longest:
                        return None
        if origin is None or at is not plane or who is not principal:
            plane, principal = at, who
            origin = _origin(plane, principal)
            if origin is None:
                return None
        row: dict[str, Any] = {
            "call": {"name": name, "arguments": arguments, "step": number, "plane": origin},
            "outcome": {
                "result": fields,
                "error": None if error is None else error.__dict__,
                "duration_s": duration_s,
            },
            "reward": None if reward is None else {"value": reward, "components": components},
            "terminated": _GOES_ON,
            "started_at": step.started_at,
            "logs": _QUIET,
        }
        if step.terminated or step.truncated or step.reason is not None:
            row.update(terminated=step.terminated, truncated=step.truncated, reason=step.reason)
        if logs or step.fault is not None:
            if longest != ANY_LENGTH and logs:
                return None
            logged = [_logged(entry) for entry in logs]
            if None in logged:
                return None
            row.update(logs=logged, fault=step.fault)
        rows.append(row)
    return rows


def _task(task: Task) -> orjson.Fragment:
    limits = task.limits
    absent = (task.seed, task.oracle, task.verifier, limits.max_steps, limits.timeout_s).count(None)
    if type(task) is not Task or (text := _quickly(task, absent)) is None:
        text = known_finite(_task_serializer().to_json(task, fallback=plain))
    return orjson.Fragment(text)


@functools.cache
def _task_serializer() -> SchemaSerializer:
    return SchemaSerializer(TypeAdapter(Task).core_schema, AS_RECORDED)


def _fields(model: object) -> dict[str, Any]:
    """Of a task, and of what it is made of: nothing else comes to orjson that it does not know."""
    if type(model) not in _MODELS:
        raise TypeError(f"a {type(model).__name__} has no JSON form")
    return model.__dict__


_MODELS = frozenset({Task, TaskLimits, OracleCall})


def _written(value: Any) -> orjson.Fragment:
    """What the serializer writes of it.

    Raises:
        ValueError: it may not be finite.
    """
    text = _quickly(value, 0)
    if text is None:
        text = known_finite(
            to_json(value, by_alias=False, inf_nan_mode="constants", bytes_mode="base64", fallback=plain)
        )
    return orjson.Fragment(text)


def _quickly(value: Any, absent: int) -> bytes | None:
    """What orjson writes, if that is sure to be what the serializer writes; to look through the value takes longer.

    Args:
        absent: how often it has None. More nulls than that stood for what is not finite, or are in a string.
    """
    try:
        text = orjson.dumps(value, _fields, _STRICT)
    except TypeError:
        return None
    return text if text.count(b"null") == absent else None


def known_finite(text: bytes) -> bytes:
    """Text that the serializer wrote.

    Raises:
        ValueError: there may be a number in it that JSON does not know. Its name may stand inside a string too: then
            nothing is lost.
    """
    if b"NaN" in text or b"Infinity" in text:
        raise ValueError("it may hold NaN or infinity")
    return text


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
