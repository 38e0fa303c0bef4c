"""Results: what a tool returned, as the contract's `ToolResult` and as MCP's; one conversion for every plane.

FastMCP's ``convert_result`` decides. Plain values take a shorter way that a property test holds equal to it.
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
from mcpenv_client.records import WRAPS
from mcpenv_client.tools import ToolResult
from mcpenv_client.values import MAX_NESTING, refuse_non_finite, to_plain

from .kinds import ToolKind

_BLOCKS: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock])
_SHORT = -(2**63)
"""The least integer of 64 bits."""


def result_of(kind: ToolKind, value: Any) -> ToolResult:
    """The result for the value that a tool of this kind returned; `WRAPS` for a plain one that surely has a result.

    Raises:
        NotSerializable: the value has no JSON form; the path begins with ``result``.
        fastmcp.exceptions.ToolError: the value does not fit the tool's output schema.
    """
    if type(value) is kind.plain_return:
        if type(value) is str and not value.isascii():
            _refuse_surrogates(value)
        elif type(value) is int and not _SHORT <= value <= -_SHORT:
            return ToolResult.wrapping(value)  # Python refuses to write very long ones
        return WRAPS  # type: ignore[no-any-return]
    if "numpy" in sys.modules and _holds_numpy(value):
        value = to_plain(value, "result")
    refuse_non_finite(value, "result", MAX_NESTING)
    try:
        return from_fastmcp(kind.component.convert_result(value))
    except (PydanticSerializationError, UnicodeDecodeError, RecursionError) as error:
        raise NotSerializable("result", f"a {type(value).__name__} has no JSON form") from error


def from_fastmcp(result: FastMCPResult) -> ToolResult:
    """The contract's form of a FastMCP result.

    Raises:
        NotSerializable: it holds NaN or infinity, which MCP's JSON would turn into null.
    """
    structured = result.structured_content
    refuse_non_finite(structured, "result", MAX_NESTING)
    refuse_non_finite(result.meta, "result.meta", MAX_NESTING)
    for block in result.content:
        if isinstance(block, TextContent) and not block.text.isascii():
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
    """The FastMCP form of the contract's result, as ``tools/call`` answers it."""
    content: Any
    if len(result.content) == 1 and result.content[0].keys() == {"type", "text"}:
        content = [TextContent(type="text", text=result.content[0]["text"])]
    else:
        content = _BLOCKS.validate_python(result.content, by_alias=True)
    converted = FastMCPResult.model_construct(
        content=content, structured_content=result.structured_content, meta=result.meta, is_error=result.is_error
    )
    converted._raw_mcp_result = None
    return converted


def _refuse_surrogates(text: str) -> None:
    """A lone surrogate has no UTF-8 form, so that no plane could send it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotSerializable("result", "the text holds a lone surrogate, which has no UTF-8 form") from error


def _holds_numpy(value: Any) -> bool:
    """Whether there is a numpy scalar or array in ``value``; FastMCP would give its ``repr``, or fail."""
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
