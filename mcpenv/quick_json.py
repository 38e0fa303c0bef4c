"""Plain data as JSON, quickly: what `mcpenv_client.wire` writes, by a faster library where that writes the same."""

from __future__ import annotations

from typing import Any

import orjson

from mcpenv_client.values import encode_plain
from mcpenv_client.wire import encode_reply


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
