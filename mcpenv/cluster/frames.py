"""Frames: plain values over a stream between processes of one server. Both ends run the same Python."""

from __future__ import annotations

import asyncio
import marshal
import struct
from typing import Any

_LENGTH = struct.Struct("!I")


class Closed(Exception):
    """The other end is gone."""


def send(writer: asyncio.StreamWriter, value: Any) -> None:
    """Send None, booleans, numbers, strings, bytes, and tuples, lists and dicts of them; `drain` is the caller's."""
    data = marshal.dumps(value)
    writer.write(_LENGTH.pack(len(data)) + data)


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next value.

    Raises:
        Closed: there is none.
    """
    try:
        head = await reader.readexactly(_LENGTH.size)
        data = await reader.readexactly(*_LENGTH.unpack(head))
    except (asyncio.IncompleteReadError, OSError) as error:
        raise Closed from error
    return marshal.loads(data)
