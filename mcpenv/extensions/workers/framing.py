"""Framing: the encoding of messages on a stream between processes of one server.

A message is two lengths, a JSON object of its fields, and its body as it is.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from .messages import Message, MessageWithBody

_LENGTHS = struct.Struct("!II")

MAX_BYTES = 2**30
"""Maximum bytes of a message's fields, and of its body."""


class Closed(Exception):
    """The other end has disconnected."""


class BadMessage(Exception):
    """The message does not fit its schema, or is too long."""


def encode(message: Message) -> bytes:
    """Return a message's bytes.

    Raises:
        BadMessage: it has a value without a JSON form, for example half of a surrogate pair, or is too long.
    """
    try:
        fields = message.model_dump_json(warnings="error").encode()
    except (PydanticSerializationError, UnicodeError) as error:
        raise BadMessage(f"a message of type {_name(message)} has a value without a JSON form") from error
    body = message.body if isinstance(message, MessageWithBody) else b""
    if len(fields) > MAX_BYTES or len(body) > MAX_BYTES:
        raise BadMessage(f"a message of type {_name(message)} is longer than {MAX_BYTES} bytes")
    return b"".join((_LENGTHS.pack(len(fields), len(body)), fields, body))


def decode(schema: TypeAdapter[Any], fields: bytes, body: bytes) -> Any:
    """Return the message of a schema from its fields and its body.

    Raises:
        BadMessage: it does not fit the schema.
    """
    try:
        message = schema.validate_json(fields)
    except ValidationError as error:
        raise BadMessage(f"a message does not fit its schema: {explained(error)}") from error
    if isinstance(message, MessageWithBody):
        return message.model_copy(update={"body": body})
    if body:
        raise BadMessage(f"a message of type {_name(message)} has a body of {len(body)} bytes, but takes none")
    return message


def send(writer: asyncio.StreamWriter, message: Message) -> None:
    """Write a message. The caller must await `drain`.

    Raises:
        BadMessage: it cannot be encoded. Nothing is written.
    """
    writer.write(encode(message))


async def receive(reader: asyncio.StreamReader, schema: TypeAdapter[Any]) -> Any:
    """Return the next message.

    Raises:
        Closed: the other end has disconnected.
        BadMessage: the message does not fit the schema.
    """
    try:
        fields_length, body_length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if fields_length > MAX_BYTES or body_length > MAX_BYTES:
            raise BadMessage(f"a message is longer than {MAX_BYTES} bytes")
        fields = await reader.readexactly(fields_length)
        body = await reader.readexactly(body_length)
    except (asyncio.IncompleteReadError, OSError) as error:
        raise Closed from error
    return decode(schema, fields, body)


def explained(error: ValidationError) -> str:
    """Return what does not fit, without the values, because headers and bodies may be secret."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'all of it'}: {each['msg']}" for each in details)


def _name(message: Message) -> str:
    return type(message).__name__
