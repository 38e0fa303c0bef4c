"""Actions: what an orchestrator can do in a step."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from .models import Model


class Action(Model):
    """Base of all actions. An environment's own actions subclass it and are told apart by ``type``.

    Give a subclass ``type: Literal["move"] = "move"``; an environment with a single action class may leave it out.
    Bytes are base64 text in JSON. Unknown fields are refused.
    """

    model_config = ConfigDict(
        extra="forbid",
        validate_assignment=True,
        arbitrary_types_allowed=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    metadata: dict[str, Any] = Field(default_factory=dict, description="Anything the caller wants kept with the step")


class ListToolsAction(Action):
    """List the tools. No step: not counted, not scored, allowed in any state."""

    type: Literal["list_tools"] = "list_tools"


class CallToolAction(Action):
    """Call one tool. A step, whatever comes of it."""

    type: Literal["call_tool"] = "call_tool"
    tool_name: str = Field(description="Name of the tool, as listed")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Arguments that fit the tool's input schema")
