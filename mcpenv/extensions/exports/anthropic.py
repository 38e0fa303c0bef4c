"""Anthropic's chat format: ``tool_use`` and ``tool_result`` blocks; ``system`` and ``tools`` are separate fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcpenv.extensions.records.chat import conversation_of, failed, flat_text, steps_by_call
from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.formats.images import block_of
from mcpenv_client.types.records import StepRecord
from mcpenv_client.types.tools import Tool

from .metadata import metadata_of

Block = dict[str, Any]


def anthropic_row(episode: RecordedEpisode, tools: Sequence[Tool]) -> dict[str, Any]:
    """Return an episode as ``{"system", "messages", "tools", "metadata"}``, with alternating roles as the API requires.

    Args:
        tools: the tools that the agent could call.
    """
    conversation = conversation_of(episode)
    steps = steps_by_call(episode, conversation)
    system = [flat_text(message["content"]) for message in conversation if message["role"] in ("system", "developer")]
    messages: list[dict[str, Any]] = []
    for message in conversation:
        role = {"user": "user", "tool": "user", "assistant": "assistant"}.get(message["role"])
        blocks = _blocks(message, steps)
        if role is None or not blocks:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"].extend(blocks)
        else:
            messages.append({"role": role, "content": blocks})
    return {
        "system": "\n\n".join(system),
        "messages": messages,
        "tools": [_tool(tool) for tool in tools],
        "metadata": metadata_of(episode),
    }


def _blocks(message: Mapping[str, Any], steps: Mapping[str, StepRecord]) -> list[Block]:
    if message["role"] == "tool":
        return [_result(message, steps.get(message["tool_call_id"]))]
    content = message.get("content")
    if isinstance(content, list):
        blocks = [_part(part) for part in content if part.get("text") != ""]  # the API refuses empty texts
    else:
        blocks = [{"type": "text", "text": text}] if (text := flat_text(content)) else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": function["arguments"]})
    return blocks


def _result(message: Mapping[str, Any], step: StepRecord | None) -> Block:
    """Return the block of a call's answer, with the step's images if it has any, and errors marked."""
    result = None if step is None else step.outcome.result
    if result is not None and any(block.get("type") == "image" for block in result.content):
        content: str | list[Block] = [_content(block) for block in result.content]
    else:
        content = flat_text(message.get("content"))
    answer: Block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
    if step is not None and failed(step):
        answer["is_error"] = True
    return answer


def _part(part: Mapping[str, Any]) -> Block:
    """Return the block of a part of a recorded message, with its image if that is in the record."""
    block = block_of(part)
    return {"type": "text", "text": flat_text([part])} if block is None else _content(block)


def _content(block: Mapping[str, Any]) -> Block:
    if block.get("type") == "image":
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": block.get("mimeType"), "data": block.get("data")},
        }
    return {"type": "text", "text": str(block.get("text", f"[{block.get('type', 'content')}]"))}


def _tool(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
