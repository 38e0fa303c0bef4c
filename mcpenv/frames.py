"""Frames as text, quickly: what `mcpenv_client.wire` reads and writes, by a faster library where that does the same."""

from __future__ import annotations

import re
from typing import Any

import orjson

from mcpenv_client.values import MAX_DEPTH, encode_plain
from mcpenv_client.wire import Frame, decode_frame, encode_reply, frame_of

_LARGE_NUMBER = re.compile("[0-9](?:[eE]|[0-9]{17})")
"""What may be an integer of more than 64 bits, of which orjson makes a float, or too large for a float."""


def read_frame(text: str) -> Frame:
    """`decode_frame`.

    Raises:
        InvalidJSON, InvalidMessage, UnknownType: as there.
    """
    if _LARGE_NUMBER.search(text) or (len(text) > MAX_DEPTH and text.count("[") + text.count("{") > MAX_DEPTH):
        return decode_frame(text)
    try:
        frame = orjson.loads(text)
    except ValueError:
        return decode_frame(text)
    return frame_of(frame)


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
    if text.find(b'"return":null') >= 0:  # the sum of all rewards may have become too large for a float
        return encode_reply("observation", data, request_id)
    return text.decode()
