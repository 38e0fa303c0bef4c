"""Convert the values that tools return to the contract's `ToolResult` and to MCP's, in one way for every plane.

FastMCP's ``convert_result`` makes the result. `ToolResult.wrapping` makes the result of a plain value without it. A
property test keeps both equal.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from fastmcp.tools.base import ToolResult as FastMCPResult
from mcp_types import ContentBlock, TextContent
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError

from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.records import ToolOutcome
from mcpenv_client.types.tools import ToolResult
from mcpenv_client.types.values import MAX_NESTING, refuse_non_finite, to_plain

from .definition import ToolDefinition

_BLOCKS: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock])
_LONGEST_INTEGER = 63
"""Maximum bits of an integer that is converted here. FastMCP converts longer integers, because Python refuses to write
integers of more than some thousand digits."""


def outcome_of(kind: ToolDefinition, value: Any, duration_s: float) -> ToolOutcome:
    """Return the outcome for the value that a tool of this kind returned.

    Raises:
        NotSerializable: the value has no JSON form; the path begins with ``result``.
        fastmcp.exceptions.ToolError: the value does not fit the tool's output schema.
    """
    if type(value) is kind.plain_return and not (isinstance(value, int) and value.bit_length() > _LONGEST_INTEGER):
        if isinstance(value, str):
            _refuse_surrogates(value)
        return ToolOutcome.returned(value, duration_s)
    return ToolOutcome(result_of(kind, value), None, value, duration_s)


def result_of(kind: ToolDefinition, value: Any) -> ToolResult:
    """Return FastMCP's result for the value that a tool of this kind returned.

    Raises:
        NotSerializable: the value has no JSON form; the path begins with ``result``.
        fastmcp.exceptions.ToolError: the value does not fit the tool's output schema.
    """
    if "numpy" in sys.modules and _holds_numpy(value):
        value = to_plain(value, "result")
    refuse_non_finite(value, "result", MAX_NESTING)
    try:
        return from_fastmcp(kind.component.convert_result(value))
    except (PydanticSerializationError, UnicodeDecodeError, RecursionError) as error:
        raise NotSerializable("result", f"a {type(value).__name__} has no JSON form") from error


def from_fastmcp(result: FastMCPResult) -> ToolResult:
    """Return the contract's form of a FastMCP result.

    Raises:
        NotSerializable: the result has NaN or infinity, which MCP's JSON would turn into null.
    """
    structured = result.structured_content
    refuse_non_finite(structured, "result", MAX_NESTING)
    refuse_non_finite(result.meta, "result.meta", MAX_NESTING)
    for block in result.content:
        if isinstance(block, TextContent):
            _refuse_surrogates(block.text)
    wrapped = bool(result.meta and result.meta.get("fastmcp", {}).get("wrap_result"))
    return ToolResult.model_construct(
        content=[block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content],
        structured_content=structured,
        data=structured["result"] if wrapped and structured is not None else structured,
        is_error=result.is_error,
        meta=result.meta,
    )


def to_fastmcp(result: ToolResult) -> FastMCPResult:
    """Return the FastMCP form of the contract's result, as the answer of ``tools/call``."""
    return FastMCPResult(
        content=_BLOCKS.validate_python(result.content, by_alias=True),
        structured_content=result.structured_content,
        meta=result.meta,
        is_error=result.is_error,
    )


def _refuse_surrogates(text: str) -> None:
    """Raise if a text has a lone surrogate. It has no UTF-8 form, so that no plane could send it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotSerializable("result", "the text holds a lone surrogate, which has no UTF-8 form") from error


def _holds_numpy(value: Any) -> bool:
    """Return True if ``value`` contains a numpy scalar or array; FastMCP would give its ``repr``, or fail."""
    if type(value).__module__ == "numpy":
        return hasattr(value, "tolist")
    if isinstance(value, list | tuple | set | frozenset):
        return any(_holds_numpy(item) for item in value)
    if isinstance(value, dict):
        return any(_holds_numpy(key) or _holds_numpy(item) for key, item in value.items())
    if isinstance(value, BaseModel):
        return any(_holds_numpy(item) for item in vars(value).values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(_holds_numpy(getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return False
