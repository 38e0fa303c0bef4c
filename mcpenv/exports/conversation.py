"""Conversation: an episode as a chat with tool calls, of which every chat format is a spelling.

Messages are OpenAI's, with the arguments of calls as objects. Those of a model that played the episode are used as they
are; where there are none, the prompt and the calls make them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcpenv_client.records import StepRecord, Trajectory
from mcpenv_client.tools import ToolResult

from ..recording.episodes import OBSERVATIONS, RecordedEpisode

Message = dict[str, Any]


def conversation_of(episode: RecordedEpisode) -> list[Message]:
    """The chat of an episode."""
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
    """The step of each tool call in a chat: the calls of a name are the steps of that name, in order.

    Calls that were no steps (a tool of the agent's own, one that was never sent) have none.
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
    """The id of a call that a record has no id for."""
    return f"call_{step.call.step:04d}"


def prompt_of(episode: RecordedEpisode) -> str:
    """What the agent was told when the episode began; where nothing was recorded, a line that says so."""
    trajectory = episode.trajectory
    prompt = _first_prompt(trajectory)
    if prompt:
        return prompt
    seen = _first_observation(trajectory)
    return json.dumps(seen, ensure_ascii=False) if seen else f"({episode.environment.name}: no prompt was recorded)"


def text_of(episode: RecordedEpisode, step: StepRecord) -> str:
    """What the agent could read of a step."""
    outcome = step.outcome
    if outcome.error is not None:
        return outcome.error.message
    if outcome.result is not None:
        return outcome.result.text
    own = episode.extra.get(OBSERVATIONS, {}).get(str(step.call.step))
    return "" if own is None else json.dumps(own, ensure_ascii=False)


def flat_text(content: Any) -> str:
    """The text of a message's content, which may be in parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", f"[{part.get('type', 'content')}]")) for part in content)
    return "" if content is None else str(content)


def failed(step: StepRecord) -> bool:
    """Whether the call gave no result, or one that says it failed."""
    result: ToolResult | None = step.outcome.result
    return step.outcome.error is not None or (result is not None and result.is_error)


def _first_prompt(trajectory: Trajectory) -> str | None:
    metadata = (trajectory.observation or {}).get("metadata")
    said = metadata.get("prompt") if isinstance(metadata, dict) else None
    if isinstance(said, str) and said:
        return said
    return trajectory.task.prompt if trajectory.task is not None else None


def _first_observation(trajectory: Trajectory) -> dict[str, Any]:
    """What a reset answered that is the author's."""
    framework = {"reward", "done", "terminated", "truncated", "info"}
    seen = {name: value for name, value in (trajectory.observation or {}).items() if name not in framework}
    return seen if seen.get("metadata") or seen.keys() - {"metadata"} else {}


def _with_objects(message: Mapping[str, Any]) -> Message:
    """A recorded message, the arguments of its calls as objects."""
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
    """The arguments that a model wrote; what is no JSON object is kept under a name of its own."""
    try:
        value = json.loads(text) if text else {}
    except (TypeError, ValueError):
        value = None
    return value if isinstance(value, dict) else {"malformed_arguments": text}
