"""Plain data as JSON, quickly: what `mcpenv_client.wire` writes, by a faster library where that writes the same."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from mcpenv_client.tools import json_text
from mcpenv_client.values import encode_plain
from mcpenv_client.wire import MAX_REQUEST_ID, Frame, FrameType, encode_reply

_STEP = FrameType.STEP
_PLAIN = frozenset({str, int, bool, type(None)})
_BRACES = 3
"""Of the frame, of its data and of its arguments."""


def bytes_of(data: Any) -> bytes:
    """JSON text of plain data that came as JSON."""
    try:
        return orjson.dumps(data)
    except TypeError:  # an integer of more than 64 bits, say
        return encode_plain(data)


def step_reply(data: dict[str, Any], request_id: str | None) -> str:
    """`encode_reply` of a step's `step_data`: what it holds was found finite when it was made.

    Raises:
        NotSerializable: naming the field.
    """
    frame: dict[str, Any] = {"type": "observation", "data": data}
    if request_id is not None:
        frame["request_id"] = request_id
    try:
        text = orjson.dumps(frame)
    except TypeError:  # an integer of more than 64 bits, say
        return encode_reply("observation", data, request_id)
    if _too_large(text):
        return encode_reply("observation", data, request_id)
    return text.decode()


def step_frame(text: str) -> Frame | None:
    """`decode_frame` of a step that calls a tool with plain arguments, as nearly every frame is; None: it is none.

    orjson reads integers of more than 64 bits, and what is too large for a float, as floats or not at all; so a frame
    with a float among its arguments, or with values inside values, is not taken here.
    """
    if text.count("{") != _BRACES:
        return None  # or it would be read twice
    try:
        frame = orjson.loads(text)
    except ValueError:
        return None
    if type(frame) is dict and frame.get("type") == "step":
        data, whose = frame.get("data"), None
        if len(frame) == 3:
            whose = frame.get("request_id")
            if type(whose) is not str or not 0 < len(whose) <= MAX_REQUEST_ID:
                return None
        elif len(frame) != 2:
            return None
        if type(data) is dict and len(data) == 3 and data.get("type") == "call_tool":
            arguments = data.get("arguments")
            if type(arguments) is dict and type(data.get("tool_name")) is str:
                for value in arguments.values():
                    if type(value) not in _PLAIN:
                        return None
                return Frame(_STEP, data, whose)
    return None


def wrapping_reply(
    tool_name: str, value: str | int | bool, around: dict[str, Any], request_id: str | None
) -> str | None:
    """`step_reply` of a tool that returned a plain value: the same text, without a `ToolResult` and its data.

    Args:
        around: the step's data without its observation.

    Returns:
        None if it is not sure to be the same.
    """
    try:
        tail = orjson.dumps(around)
        if _too_large(tail):
            return None
        named = "" if request_id is None else f',"request_id":{orjson.dumps(request_id).decode()}'
        return f'{_head(tool_name)}{wrapping_text(value)},"error":null}},{tail.decode()[1:]}{named}}}'
    except TypeError:  # an integer of more than 64 bits, say
        return None


def wrapping_text(value: str | int | bool) -> str:
    """The fields of `ToolResult.wrapping`.

    Raises:
        TypeError: orjson does not write it: a lone surrogate.
    """
    if type(value) is str:
        data = text = orjson.dumps(value).decode()
    else:
        data = json_text(value)
        text = f'"{data}"'
    return (
        f'{{"content":[{{"type":"text","text":{text}}}],"structured_content":{{"result":{data}}},"data":{data},'
        '"is_error":false,"meta":{"fastmcp":{"wrap_result":true}}}'
    )


@lru_cache(1024)
def _head(tool_name: str) -> str:
    name = orjson.dumps(tool_name).decode()
    return f'{{"type":"observation","data":{{"observation":{{"metadata":{{}},"tool_name":{name},"result":'


def _too_large(text: bytes) -> bool:
    """Whether the sum of all rewards may have become too large for a float."""
    return text.find(b'"return":null') >= 0
