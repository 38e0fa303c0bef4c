"""The settings with which an environment shows a tool of a mounted or a proxied server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from mcpenv.errors import InvalidTool, meant
from mcpenv_client.types.tools import Mode


class ToolSettings(BaseModel):
    """The settings of one tool.

    Attributes:
        name: another name for agents.
        description: another description.
        hidden: True to leave the tool out.
        mode: "simulation" or "production"; None for both.
        annotations: MCP hints, merged over the server's own, such as ``{"readOnlyHint": true}``.
        arguments: values that the agent does not see and cannot set.
        terminal: True if a successful call ends the episode.
        timeout_s: maximum seconds of a call.
    """

    model_config = ConfigDict(extra="forbid")

    name: str | None = None
    description: str | None = None
    hidden: bool = False
    mode: Mode | None = None
    annotations: dict[str, bool | str] = Field(default_factory=dict)
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    terminal: bool = False
    timeout_s: Annotated[float, Field(gt=0)] | None = None

    def schema_for_agents(self, schema: dict[str, Any], tool: str) -> dict[str, Any]:
        """Return an input schema without the bound arguments.

        Raises:
            InvalidTool: the tool has no such argument, or a value does not fit its schema.
        """
        if not self.arguments:
            return schema
        properties = schema.get("properties", {})
        for name in self.arguments:
            if name not in properties:
                raise InvalidTool(tool, f"it has no argument {name!r} to bind")
        from .bound_values import check_bound  # slow to import, and seldom needed

        check_bound(tool, schema, self.arguments)
        kept = {name: value for name, value in properties.items() if name not in self.arguments}
        return {**schema, "properties": kept, "required": [name for name in schema.get("required", ()) if name in kept]}

    def merged_annotations(self, annotations: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return a tool's hints, updated by the hints of these settings."""
        return {**(annotations or {}), **self.annotations} or None


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the text about an unknown key: the key that was probably meant, or all ``known`` keys."""
    names = list(known)
    return f"unknown key {key!r}" + (meant(key, names) or f": the keys are {', '.join(names)}")
