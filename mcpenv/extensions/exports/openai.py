"""OpenAI's chat format: one row for each episode, with ``messages`` and ``tools`` as in chat completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from mcpenv.extensions.records.chat import conversation_of
from mcpenv.trajectories.episode import RecordedEpisode
from mcpenv_client.types.tools import Tool

from .metadata import metadata_of

Arguments = Literal["text", "object"]
"""The form of a call's arguments: JSON text as in OpenAI's API, or an object as most chat templates require."""


def openai_row(episode: RecordedEpisode, tools: Sequence[Tool], arguments: Arguments = "text") -> dict[str, Any]:
    """Return an episode as ``{"messages", "tools", "metadata"}``.

    Args:
        tools: the tools that the agent could call.
        arguments: the form of a call's arguments.
    """
    messages = conversation_of(episode)
    if arguments == "text":
        for call in (call for message in messages for call in message.get("tool_calls") or ()):
            call["function"] = {
                **call["function"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            }
    return {"messages": messages, "tools": [tool.to_openai() for tool in tools], "metadata": metadata_of(episode)}
