"""Conversations: an episode as a chat with tool calls, the common form of all chat formats.

Messages are OpenAI's, with the arguments of calls as objects. If a model's messages were recorded, they are used
unchanged; otherwise messages are made from the prompt and the calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcpenv.trajectories.episode import OBSERVATIONS, RecordedEpisode
from mcpenv_client.formats.images import without_data
from mcpenv_client.types.records import StepRecord, Trajectory
from mcpenv_client.types.tools import ToolResult

Message = dict[str, Any]


def conversation_of(episode: RecordedEpisode) -> list[Message]:
    """Return the messages of an episode."""
    if episode.messages is not None:
        return [_with_objects(message) for message in episode.messages]
    messages: list[Message] = [{"role": "user", "content": prompt_of(episode)}]
    for step in episode.trajectory.steps:
        call = {"name": step.call.name, "arguments": step.call.arguments}
        call_id = call_id_of(step)
        messages.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": call_id, "type": "function", "function": call}],
            }
        )
        answer = {"role": "tool", "tool_call_id": call_id, "name": step.call.name, "content": text_of(episode, step)}
        messages.append(answer)
    return messages


def steps_by_call(episode: RecordedEpisode, messages: Sequence[Mapping[str, Any]]) -> dict[str, StepRecord]:
    """Return the step of each tool call in a chat, by the call's id.

    The calls of a tool are matched with the steps of that tool in order. Calls without a step (of an agent's own tool,
    or never sent) are omitted.
    """
    waiting: dict[str, list[StepRecord]] = {}
    for step in episode.trajectory.steps:
        waiting.setdefault(step.call.name, []).append(step)
    found: dict[str, StepRecord] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            steps = waiting.get(call["function"]["name"])
            if steps:
                found[call["id"]] = steps.pop(0)
    return found


def call_id_of(step: StepRecord) -> str:
    """Return an id for a call that has none in the record."""
    return f"call_{step.call.step:04d}"


def prompt_of(episode: RecordedEpisode) -> str:
    """Return the prompt of an episode: the recorded one, else the first observation as JSON, else a placeholder."""
    trajectory = episode.trajectory
    prompt = recorded_prompt(trajectory)
    if prompt:
        return prompt
    seen = _first_observation(trajectory)
    return (
        json.dumps(without_data(seen), ensure_ascii=False)
        if seen
        else f"({episode.environment.name}: no prompt was recorded)"
    )


def text_of(episode: RecordedEpisode, step: StepRecord) -> str:
    """Return the agent-visible text of a step."""
    outcome = step.outcome
    if outcome.error is not None:
        return outcome.error.message
    if outcome.result is not None:
        return outcome.result.text
    own = episode.extra.get(OBSERVATIONS, {}).get(str(step.call.step))
    return "" if own is None else json.dumps(own, ensure_ascii=False)


def flat_text(content: Any) -> str:
    """Return the text of a message's content, which may be a list of parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", f"[{part.get('type', 'content')}]")) for part in content)
    return "" if content is None else str(content)


def failed(step: StepRecord) -> bool:
    """Return True if the call has an error instead of a result, or a result that is marked as an error."""
    result: ToolResult | None = step.outcome.result
    return step.outcome.error is not None or (result is not None and result.is_error)


def recorded_prompt(trajectory: Trajectory) -> str | None:
    """Return the prompt of the first observation, else that of the task; None without one."""
    metadata = (trajectory.observation or {}).get("metadata")
    said = metadata.get("prompt") if isinstance(metadata, dict) else None
    if isinstance(said, str) and said:
        return said
    return trajectory.task.prompt if trajectory.task is not None else None


def _first_observation(trajectory: Trajectory) -> dict[str, Any]:
    """Return the environment's own fields of a reset's observation; empty if there are none."""
    framework = {"reward", "done", "terminated", "truncated", "info"}
    seen = {name: value for name, value in (trajectory.observation or {}).items() if name not in framework}
    return seen if seen.get("metadata") or seen.keys() - {"metadata"} else {}


def _with_objects(message: Mapping[str, Any]) -> Message:
    """Return a recorded message with the arguments of its calls as objects."""
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if not isinstance(arguments, dict):
        function["arguments"] = _object_of(arguments)
    return {**call, "type": "function", "function": function}


def _object_of(text: Any) -> dict[str, Any]:
    """Return the arguments that a model wrote; text that is not a JSON object is kept as ``malformed_arguments``."""
    try:
        value = json.loads(text) if text else {}
    except (TypeError, ValueError):
        value = None
    return value if isinstance(value, dict) else {"malformed_arguments": text}
