"""OpenAI's chat format: one row an episode, with ``messages`` and ``tools`` as chat completions take them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from mcpenv_client.tools import Tool

from ..recording.episodes import RecordedEpisode
from .conversation import conversation_of
from .metadata import metadata_of

Arguments = Literal["text", "object"]
"""How the arguments of a call are written: JSON text, as OpenAI has it, or an object, as most chat templates want."""


def openai_row(episode: RecordedEpisode, tools: Sequence[Tool], arguments: Arguments = "text") -> dict[str, Any]:
    """An episode as ``{"messages", "tools", "metadata"}``.

    Args:
        tools: what the agent could call.
        arguments: those of calls, as JSON text or as objects.
    """
    messages = conversation_of(episode)
    if arguments == "text":
        for call in (call for message in messages for call in message.get("tool_calls") or ()):
            call["function"] = {
                **call["function"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            }
    return {"messages": messages, "tools": [tool.to_openai() for tool in tools], "metadata": metadata_of(episode)}
