"""Fingerprints: the facts of an episode that must be equal in a replay, and their hash.

Times, durations, logs and ids are left out. So is the incident id in an error's message, because it is random, and the
list of tools in the answer to a call of an unknown tool, which older versions did not give.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from .scores import equal
from .types.records import Reward, StepRecord, Trajectory, summed
from .types.tools import ToolErrorType, ToolFailure

_INCIDENT = re.compile(r"\(incident [0-9a-f]{8}\)")
_NO_TOOL = re.compile(r"(?s)(Unknown tool: .*?)\. The tools are: .*")

Facts = dict[str, Any]
"""The facts of an episode, as plain JSON data."""


def facts_of_reset(trajectory: Trajectory) -> Facts:
    """Return the facts of a reset."""
    return {"observation": trajectory.observation}


def facts_of_step(step: StepRecord, observation: Any) -> Facts:
    """Return the facts of a step.

    Args:
        observation: the observation of an environment's own action, as plain JSON data; None for a tool.
    """
    result, error = step.outcome.result, step.outcome.error
    return {
        "result": None
        if result is None
        else {
            "content": [_masked(block) for block in result.content] if result.is_error else result.content,
            "structured_content": result.structured_content,
            "is_error": result.is_error,
        },
        "error": None if error is None else {"error_type": error.error_type.value, "message": _message(error)},
        "observation": observation,
        "reward": _reward(step.reward),
        "terminated": step.terminated,
        "truncated": step.truncated,
        "fault": step.fault,
    }


def facts_of_end(trajectory: Trajectory) -> Facts:
    """Return the facts of an episode's end."""
    return {
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "end_reward": _reward(trajectory.end_reward),
        "verified": _reward(trajectory.verified),
        "return": _return(trajectory),
        "fault": trajectory.fault,
    }


def canonical(facts: Facts) -> bytes:
    """Return JSON text that is equal for equal facts."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def digest(facts: Facts) -> str:
    """Return the SHA-256 of facts, in hexadecimal."""
    return hashlib.sha256(canonical(facts)).hexdigest()


def digest_of(trajectory: Trajectory) -> str:
    """Return the SHA-256 of an episode's seed, options, calls, results, rewards and end, without ids and times.

    Two plays of one seed by one policy have the same digest if the environment depends on nothing else.
    """
    steps = [
        {"name": step.call.name, "arguments": step.call.arguments, **facts_of_step(step, None)}
        for step in trajectory.steps
    ]
    begin = {"seed": trajectory.seed, "options": trajectory.options, **facts_of_reset(trajectory)}
    return digest({"begin": begin, "steps": steps, "dropped": trajectory.dropped, "end": facts_of_end(trajectory)})


def first_difference(recorded: Any, replayed: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the path and the two values of the first difference, in the recorded order; None if there is none."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for name in [*recorded, *(name for name in replayed if name not in recorded)]:
            inside = f"{path}.{name}" if path else str(name)
            if name not in recorded or name not in replayed:
                return inside, recorded.get(name), replayed.get(name)
            found = first_difference(recorded[name], replayed[name], inside)
            if found is not None:
                return found
        return None
    if isinstance(recorded, list) and isinstance(replayed, list):
        for index, (one, other) in enumerate(zip(recorded, replayed, strict=False)):
            found = first_difference(one, other, f"{path}[{index}]")
            if found is not None:
                return found
        if len(recorded) != len(replayed):
            index = min(len(recorded), len(replayed))
            return f"{path}[{index}]", _item(recorded, index), _item(replayed, index)
        return None
    # For Python 1, 1.0 and True are equal; their JSON differs.
    return None if canonical({"": recorded}) == canonical({"": replayed}) else (path, recorded, replayed)


def _item(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


def _return(trajectory: Trajectory) -> float:
    """Return the sum of the rewards. Older versions recorded it with rounding errors, which are removed."""
    exact = summed(trajectory.reward_values)
    return exact if equal(exact, trajectory.total_reward) else trajectory.total_reward


def _message(error: ToolFailure) -> str:
    text = _mask(error.message)
    return _NO_TOOL.sub(r"\1", text) if error.error_type is ToolErrorType.TOOL_NOT_FOUND else text


def _reward(reward: Reward | None) -> Facts | None:
    return None if reward is None else {"value": reward.value, "components": reward.components}


def _masked(block: dict[str, Any]) -> dict[str, Any]:
    text = block.get("text")
    return {**block, "text": _mask(text)} if isinstance(text, str) else block


def without_incidents(data: Any) -> Any:
    """Return plain JSON data with the incident ids in its texts masked, because they are random."""
    if isinstance(data, str):
        return _mask(data)
    if isinstance(data, list):
        return [without_incidents(each) for each in data]
    if isinstance(data, dict):
        return {name: without_incidents(value) for name, value in data.items()}
    return data


def _mask(text: str) -> str:
    return _INCIDENT.sub("(incident)", text)
