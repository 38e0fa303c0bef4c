"""Scopes and events of ASGI as messages of a tunnel, and back.

Keys for which a message has no field are left out, and an event of an unknown type is refused, as HTTP servers do.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.types import Message as Event
from starlette.types import Scope

from .framing import BadMessage, explained
from .messages import (
    HTTPDisconnect,
    Message,
    OpenRequest,
    RequestBody,
    ResponseBody,
    ResponseStart,
    SocketAccept,
    SocketClose,
    SocketConnect,
    SocketDisconnect,
    SocketReceive,
    SocketSend,
)

ModelT = TypeVar("ModelT", bound=Message)

EXTENSIONS = frozenset({"websocket.http.response"})
"""The ASGI extensions whose events a tunnel carries. Applications are offered no others."""

_EVENTS: dict[str, type[Message]] = {
    "http.request": RequestBody,
    "http.disconnect": HTTPDisconnect,
    "http.response.start": ResponseStart,
    "http.response.body": ResponseBody,
    "websocket.connect": SocketConnect,
    "websocket.receive": SocketReceive,
    "websocket.disconnect": SocketDisconnect,
    "websocket.accept": SocketAccept,
    "websocket.send": SocketSend,
    "websocket.close": SocketClose,
    "websocket.http.response.start": ResponseStart,
    "websocket.http.response.body": ResponseBody,
}


def request_of(scope: Scope, door: int) -> OpenRequest:
    """Return the message that opens a request at the worker to which it belongs.

    Raises:
        BadMessage: the scope has a value of a type that ASGI does not allow there.
    """
    given = {**scope, "door": door}
    if "extensions" in scope:
        given["extensions"] = {name: {} for name in EXTENSIONS.intersection(scope["extensions"] or ())}
    return _made(OpenRequest, given)


def scope_of(request: OpenRequest) -> Scope:
    """Return the scope of a request."""
    return {name: value for name, value in request if name != "door" and value is not None}


def message_of(event: Event) -> Message:
    """Return the message of an ASGI event.

    Raises:
        BadMessage: it has a type that tunnels do not carry, or a value of a type that ASGI does not allow there.
    """
    model = _EVENTS.get(event["type"])
    if model is None:
        raise BadMessage(f"ASGI events of type {event['type']!r} are not carried between the workers of a server")
    if model in (SocketReceive, SocketSend):
        text, data = event.get("text"), event.get("bytes")
        if (text is None) == (data is None):
            raise BadMessage(f"an ASGI event of type {event['type']!r} needs either text or bytes")
        event = {"type": event["type"], "text": text, "body": data}
    return _made(model, event)


def event_of(message: Message) -> Event:
    """Return the ASGI event of a message."""
    event = {name: value for name, value in message if value is not None}
    if isinstance(message, SocketReceive | SocketSend):
        data = event.pop("body")
        if message.text is None:
            event["bytes"] = data
    return event


def _made(model: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    try:
        given = {name: _plain(name, values[name]) for name in model.model_fields if values.get(name) is not None}
        return model(**given)
    except ValidationError as error:
        raise BadMessage(f"{values['type']}: {explained(error)}") from error


def _plain(name: str, value: Any) -> Any:
    """Return a scope's or an event's value as the type that its message has.

    Applications and servers use others, too: an `HTTPStatus`, a ``bytearray``, headers as lists, subclasses of ``str``.

    Raises:
        BadMessage: ASGI does not allow the value there.
    """
    try:
        if name in ("status", "code"):
            return int(operator.index(value))
        if name == "body":
            return bytes(memoryview(value))
        if name == "headers":
            return [(bytes(memoryview(key)), bytes(memoryview(text))) for key, text in value]
        if name == "more_body":
            return bool(value)
        if name in ("client", "server"):
            return tuple(value)
        if name == "subprotocols":
            return list(value)
    except (TypeError, ValueError) as error:
        raise BadMessage(f"the ASGI value {name!r} has a wrong type: {error}") from error
    return str.__str__(value) if isinstance(value, str) else value
