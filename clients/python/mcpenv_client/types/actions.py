"""The actions that an orchestrator can take in a step."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from .models import Model


class Action(Model):
    """The base of all actions. An environment's own actions subclass it and are distinguished by ``type``.

    Give a subclass ``type: Literal["move"] = "move"``. An environment with a single action class may omit it. Bytes are
    base64 text in JSON. Unknown fields are refused.
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
    """List the tools. This is not a step: it is not counted, not scored, and allowed in any state."""

    type: Literal["list_tools"] = "list_tools"


class CallToolAction(Action):
    """Call one tool. This is a step, also if it fails."""

    type: Literal["call_tool"] = "call_tool"
    tool_name: str = Field(description="Name of the tool, as listed")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Arguments that fit the tool's input schema")
