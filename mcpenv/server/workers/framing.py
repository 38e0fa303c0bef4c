"""Frames: plain values over a stream between processes of one server.

Both ends must run the same Python, because values are encoded with `marshal`.
"""

from __future__ import annotations

import asyncio
import marshal
import struct
from typing import Any

_LENGTH = struct.Struct("!I")


class Closed(Exception):
    """The other end has disconnected."""


def send(writer: asyncio.StreamWriter, value: Any) -> None:
    """Write a value of None, booleans, numbers, strings, bytes, and tuples, lists and dicts of them.

    The caller must await `drain`.
    """
    data = marshal.dumps(value)
    writer.write(_LENGTH.pack(len(data)) + data)


async def receive(reader: asyncio.StreamReader) -> Any:
    """Return the next value.

    Raises:
        Closed: the other end has disconnected.
    """
    try:
        head = await reader.readexactly(_LENGTH.size)
        data = await reader.readexactly(*_LENGTH.unpack(head))
    except (asyncio.IncompleteReadError, OSError) as error:
        raise Closed from error
    return marshal.loads(data)
