"""Convert the values that tools return to the contract's `ToolResult` and to MCP's, in one way for every plane.

FastMCP's ``convert_result`` makes the result of content that a tool made itself. All other values are written here, by
the annotation of the tool. `ToolResult.wrapping` makes the result of a plain value faster. A property test keeps the
three equal where FastMCP's answer is one that its clients accept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from fastmcp.exceptions import ToolError
from fastmcp.tools.base import ToolResult as FastMCPResult
from fastmcp.utilities.types import Audio, File, Image
from mcp_types import CallToolResult, ContentBlock
from pydantic import TypeAdapter

from mcpenv_client.types.records import ToolOutcome
from mcpenv_client.types.tools import ToolResult, unchecked
from mcpenv_client.types.values import refuse_unrecordable, to_recorded

from .definition import ToolDefinition

_CONTENT = (FastMCPResult, CallToolResult, *get_args(ContentBlock), Image, Audio, File)
_BLOCKS: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock])
_LONGEST_INTEGER = 63
"""Maximum bits of an integer that `ToolResult.wrapping` gets, which cannot fail. Python does not write integers of some
thousand digits."""


def outcome_of(kind: ToolDefinition, value: Any, duration_s: float) -> ToolOutcome:
    """Return the outcome for the value that a tool of this kind returned.

    Raises:
        NotSerializable: the value has no JSON form; the path begins with ``result``.
        fastmcp.exceptions.ToolError: the value does not fit the tool's output schema.
    """
    if type(value) is kind.plain_return and not (isinstance(value, int) and value.bit_length() > _LONGEST_INTEGER):
        if isinstance(value, str) and not value.isascii():
            refuse_unrecordable(value, "result")
        return ToolOutcome.returned(value, duration_s)
    return ToolOutcome(result_of(kind, value), None, value, duration_s)


def result_of(kind: ToolDefinition, value: Any) -> ToolResult:
    """Return the result for the value that a tool of this kind returned.

    Raises:
        NotSerializable: the value has no JSON form; the path begins with ``result``.
        fastmcp.exceptions.ToolError: the value does not fit the tool's output schema.
    """
    if _is_content(value):
        result = from_fastmcp(kind.component.convert_result(value))
        if not result.is_error:
            kind.returns.check(result.structured_content)
        return result
    data, text = to_recorded(value, "result", kind.returns.write)
    wraps = kind.returns.wraps
    structured = {"result": data} if wraps else data if isinstance(data, dict) else None
    try:
        kind.returns.check(structured, text)
    except ToolError:
        if not isinstance(value, Iterator):  # which is read once
            # A set where the type has none was written by its hashes, which differ between processes. Name it in order.
            again, _ = to_recorded(value, "result", kind.returns.write_untyped)
            kind.returns.check({"result": again} if wraps else again if isinstance(again, dict) else None)
        raise
    shown = data if isinstance(data, str) else text.decode()
    fields = {
        "content": [] if data is None else [{"type": "text", "text": shown}],
        "structured_content": structured,
        "data": None if structured is None else data,
        "is_error": False,
        "meta": {"fastmcp": {"wrap_result": True}} if wraps else None,
    }
    return unchecked(ToolResult, fields)


def _is_content(value: Any) -> bool:
    """Return True if a value is a result, content of a result, or a list with content, which FastMCP converts."""
    return (
        isinstance(value, _CONTENT)
        or type(value).__module__.partition(".")[0] == "prefab_ui"
        or (isinstance(value, list | tuple) and any(isinstance(item, _CONTENT) for item in value))
    )


def from_fastmcp(result: FastMCPResult) -> ToolResult:
    """Return the contract's form of a FastMCP result.

    Raises:
        NotSerializable: a part has no JSON form: NaN, infinity, or a text with a lone surrogate.
    """
    structured = result.structured_content
    content = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
    refuse_unrecordable(structured, "result")
    refuse_unrecordable(content, "result.content")
    meta, _ = to_recorded(result.meta, "result.meta")
    wrapped = bool(meta and meta.get("fastmcp", {}).get("wrap_result"))
    return ToolResult.model_construct(
        content=content,
        structured_content=structured,
        data=structured["result"] if wrapped and structured is not None else structured,
        is_error=result.is_error,
        meta=meta,
    )


def to_fastmcp(result: ToolResult) -> FastMCPResult:
    """Return the FastMCP form of the contract's result, as the answer of ``tools/call``."""
    return FastMCPResult(
        content=_BLOCKS.validate_python(result.content, by_alias=True),
        structured_content=result.structured_content,
        meta=result.meta,
        is_error=result.is_error,
    )
