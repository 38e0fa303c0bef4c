"""The tools that an agent can call, and the results of calls."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import to_json

from .models import Model
from .texts import well_formed
from .values import to_plain

M = TypeVar("M", bound=Model)

_set = object.__setattr__

OUTPUT_META = "mcpenv/output"
"""The key in the metadata of a cut result, with data about the whole text: ``id``, ``characters``, ``lines``, ``kept``
and ``sha256``. The id is for the tools ``search_tool_output`` and ``view_tool_output``."""


class Mode(str, Enum):
    """The use of an environment. Mode decides which tools are visible, and nothing else."""

    SIMULATION = "simulation"
    """An orchestrator owns episodes: reset, step, reward, done."""
    PRODUCTION = "production"
    """Live clients use the tools, without episodes and rewards."""


ServerMode = Mode
"""OpenEnv's name of `Mode`."""


class Tool(Model):
    """The description of a tool for agents: the same on every plane and in both modes.

    ``input_schema`` and ``output_schema`` are JSON Schema objects as FastMCP makes them; ``annotations`` are
    MCP's tool annotations (``readOnlyHint``, ...) under their MCP names.
    """

    model_config = ConfigDict(extra="ignore")

    name: str
    title: str | None = None
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None

    @classmethod
    def from_mcp(cls, listed: Mapping[str, Any]) -> Tool:
        """Return the tool of an entry in MCP's ``tools/list``, as plain JSON data."""
        return cls(
            name=listed["name"],
            title=listed.get("title"),
            description=listed.get("description") or "",
            input_schema=listed["inputSchema"],
            output_schema=listed.get("outputSchema"),
            annotations=listed.get("annotations"),
            meta=listed.get("_meta"),
        )

    def to_openai(self) -> dict[str, Any]:
        """Return the tool as an entry of ``tools=`` of OpenAI-compatible chat completions."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.input_schema},
        }


class ToolErrorType(str, Enum):
    """The reason why a call has no result."""

    EXECUTION_ERROR = "execution_error"
    """The tool raised."""
    INVALID_ARGS = "invalid_args"
    """The arguments do not fit the tool's input schema; the tool did not run."""
    TRANSPORT_ERROR = "transport_error"
    """The call was lost between client and environment."""
    TOOL_NOT_FOUND = "tool_not_found"
    """No such tool in this mode."""
    TIMEOUT = "timeout"
    """The tool passed its deadline."""


def _readable(message: Any) -> Any:
    return well_formed(message) if isinstance(message, str) else message


class ToolFailure(Model):
    """The failure of a call, as data: the wire's ``error``.

    Attributes:
        error_type: the kind of failure.
        message: the failure as text, for agents.
        errors: for arguments that do not fit: each fault with the path of its value (``loc``), its text (``msg``) and
            its ``type``. On the wire only, and only from servers that send it; not part of a record.
    """

    error_type: ToolErrorType
    message: Annotated[str, BeforeValidator(_readable)]
    errors: list[dict[str, Any]] | None = Field(default=None, exclude=True, repr=False)

    def to_wire(self) -> dict[str, Any]:
        """Return the failure as plain JSON data, with its ``errors`` if there are any."""
        data: dict[str, Any] = {"error_type": self.error_type.value, "message": self.message}
        if self.errors is not None:
            data["errors"] = self.errors
        return data


class ToolResult(Model):
    """The value that a tool returned: plain JSON data, independent of its source.

    Attributes:
        content: MCP content blocks as JSON objects under their MCP names (``{"type": "text", "text": ...}``,
            ``{"type": "image", "data": base64, "mimeType": ...}``, audio, resources).
        structured_content: the JSON object that fits the tool's ``output_schema``, or None.
        data: the returned value as plain JSON data: ``structured_content`` without the ``{"result": ...}``
            that MCP wraps around values that are not objects. None if there is no structured content.
        is_error: True if the tool returned a result that is marked as an error.
        meta: MCP's ``_meta`` of the result, or None.

    Raises:
        NotSerializable: a value has no JSON form.
    """

    content: list[dict[str, Any]] = Field(default_factory=list)
    structured_content: dict[str, Any] | None = None
    data: Any = None
    is_error: bool = False
    meta: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, data: Any, info: ValidationInfo) -> Any:
        return to_plain(data, "result") if info.mode != "json" and isinstance(data, dict) else data

    @classmethod
    def wrapping(cls, value: str | int | bool) -> ToolResult:
        """Return the result of a tool that returned a plain value, which MCP wraps."""
        return unchecked(cls, wrapped_data(value))

    def to_plain(self) -> dict[str, Any]:
        """Return the result as plain JSON data."""
        return dict(vars(self))

    @property
    def text(self) -> str:
        """The text of the result, for a ``tool`` chat message. Other blocks are shown as ``[image]`` and similar."""
        return "\n".join(_text_of(block) for block in self.content)


def unchecked(model: type[M], fields: dict[str, Any]) -> M:
    """Return a model with all of its ``fields``, which are not checked. A tenth of the time of ``model_construct``.

    The other three attributes are the state of a pydantic model, as unpickling sets it.
    """
    made = model.__new__(model)
    _set(made, "__dict__", fields)
    _set(made, "__pydantic_fields_set__", set(fields))
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


def wrapped_data(value: str | int | bool) -> dict[str, Any]:
    """Return `ToolResult.wrapping` of a plain value as plain JSON data."""
    return {
        "content": [{"type": "text", "text": value if isinstance(value, str) else to_json(value).decode()}],
        "structured_content": {"result": value},
        "data": value,
        "is_error": False,
        "meta": {"fastmcp": {"wrap_result": True}},
    }


def _text_of(block: dict[str, Any]) -> str:
    if block.get("type") == "text":
        return str(block.get("text", ""))
    if block.get("type") == "resource" and "text" in block.get("resource", {}):
        return str(block["resource"]["text"])
    return f"[{block.get('type', 'content')}]"
