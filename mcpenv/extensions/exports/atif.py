"""ATIF 1.8, the Agent Trajectory Interchange Format of Harbor: one document for each episode.

The specification is RFC 0001 of https://github.com/laude-institute/harbor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mcpenv.extensions.records.chat import Message, conversation_of, flat_text, steps_by_call
from mcpenv.trajectories.episode import RecordedEpisode, name_of_agent
from mcpenv.trajectories.summary import components_of, summary_of
from mcpenv_client.types.records import StepRecord
from mcpenv_client.types.tools import Tool

VERSION = "ATIF-v1.8"


def atif_document(episode: RecordedEpisode, tools: Sequence[Tool]) -> dict[str, Any]:
    """Return an episode as an ATIF trajectory.

    Args:
        tools: the tools that the agent could call.
    """
    conversation = conversation_of(episode)
    steps = list(_steps(episode, conversation))
    agent = episode.agent or {}
    known = {"name", "version", "model"}
    extra = {name: value for name, value in agent.items() if name not in known}
    return {
        "schema_version": VERSION,
        "session_id": episode.id,
        "trajectory_id": episode.id,
        "agent": _given(
            {
                "name": name_of_agent(agent) or "unknown",
                "version": str(agent.get("version") or "unknown"),
                "model_name": agent.get("model"),
                "tool_definitions": [tool.to_openai() for tool in tools] or None,
                "extra": extra or None,
            }
        ),
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": {"total_steps": len(steps), "extra": _metrics(episode)},
        "extra": {**summary_of(episode), "versions": episode.versions},
    }


def _steps(episode: RecordedEpisode, conversation: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Yield ATIF steps without numbers. The answers to calls are part of the step that made the calls."""
    by_call = steps_by_call(episode, conversation)
    answers = {message["tool_call_id"]: message for message in conversation if message["role"] == "tool"}
    # The time of a model's message is not recorded; the start of its first call is used instead.
    began = _time(episode.trajectory.started_at)
    for message in conversation:
        role = message["role"]
        if role == "assistant":
            yield _agent_step(message, answers, by_call)
        elif role != "tool":
            source = "user" if role == "user" else "system"
            yield {"source": source, "message": flat_text(message.get("content")), "timestamp": began}


def _agent_step(message: Message, answers: Mapping[str, Message], by_call: Mapping[str, StepRecord]) -> dict[str, Any]:
    calls = message.get("tool_calls") or []
    made = [by_call[call["id"]] for call in calls if call["id"] in by_call]
    given = [answers[call["id"]] for call in calls if call["id"] in answers]
    results = [_result(answer, by_call.get(answer["tool_call_id"])) for answer in given]
    return _given(
        {
            "source": "agent",
            "timestamp": _time(made[0].started_at) if made else None,
            "message": flat_text(message.get("content")),
            "reasoning_content": message.get("reasoning_content") or message.get("reasoning"),
            "tool_calls": [_call(call) for call in calls] or None,
            "observation": {"results": results} if results else None,
        }
    )


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"tool_call_id": call["id"], "function_name": function["name"], "arguments": function["arguments"]}


def _result(answer: Message, step: StepRecord | None) -> dict[str, Any]:
    result: dict[str, Any] = {"source_call_id": answer["tool_call_id"], "content": flat_text(answer.get("content"))}
    if step is not None:
        reward, error = step.reward, step.outcome.error
        result["extra"] = _given(
            {
                "step": step.call.step,
                "caller": step.call.principal,
                "reward": None if reward is None else reward.value,
                "reward_components": None if reward is None else reward.components or None,
                "error_type": None if error is None else error.error_type.value,
                "status": step.status.to_plain(),
                "is_error": True if step.outcome.result is not None and step.outcome.result.is_error else None,
                "duration_s": step.outcome.duration_s,
                "scoring_s": step.scoring_s,
            }
        )
    return result


def _metrics(episode: RecordedEpisode) -> dict[str, Any]:
    """Return the metrics of the whole episode; the end's metrics are included only if they exist."""
    trajectory = episode.trajectory
    end, verified = trajectory.end_reward, trajectory.verified
    return {
        "return": summary_of(episode)["return"],
        "reward_components": components_of(trajectory),
        **_given(
            {
                "end_reward": None if end is None else end.value,
                "end_reward_components": None if end is None else end.components or None,
                "verified": None if verified is None else verified.value,
                "verified_components": None if verified is None else verified.components or None,
            }
        ),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
