"""Messages between the processes of a server: each arrives as it was sent, and what does not fit is refused."""

from __future__ import annotations

import asyncio
import struct
import typing
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from starlette.types import Message as Event

from mcpenv.extensions.workers import messages
from mcpenv.extensions.workers.asgi import event_of, message_of, request_of, scope_of
from mcpenv.extensions.workers.framing import BadMessage, Closed, decode, encode, receive
from mcpenv.extensions.workers.messages import (
    CHANNEL,
    FROM_APPLICATION,
    FROM_CLIENT,
    LastUsed,
    Message,
    OpenRequest,
    Refusal,
    ResponseBody,
    ResponseStart,
    Sessions,
)
from mcpenv_client.types.records import Reward
from mcpenv_client.types.server import ServerCapacityStatus, SessionInfo

FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
SESSIONS = st.builds(
    SessionInfo,
    session_id=st.text(),
    created_at=FINITE,
    last_activity_at=FINITE,
    step_count=st.integers(0),
    environment_type=st.text(),
    origin=st.text(),
    mode=st.sampled_from(["simulation", "production"]),
    planes=st.lists(st.text()),
    episode_id=st.none() | st.text(),
    state=st.text(),
    busy=st.booleans(),
    task=st.none() | st.dictionaries(st.text(), st.text()),
    total_reward=st.none() | FINITE,
    reward=st.none() | st.builds(Reward, FINITE, st.dictionaries(st.text(), FINITE)),
)
CAPACITIES = st.builds(ServerCapacityStatus, active_sessions=st.integers(0), max_sessions=st.integers())

ACROSS: dict[str, Any] = {"channel": CHANNEL, "from client": FROM_CLIENT, "from application": FROM_APPLICATION}


def models(union: Any) -> Sequence[type[Message]]:
    """The messages of a union."""
    return typing.get_args(typing.get_args(union)[0])


SPECIAL = {
    LastUsed: st.builds(LastUsed, at=st.none() | FINITE),
    Sessions: st.builds(Sessions, sessions=st.lists(SESSIONS, max_size=3)),
    messages.Capacity: st.builds(messages.Capacity, status=CAPACITIES),
    messages.Metrics: st.builds(messages.Metrics, samples=st.lists(st.dictionaries(st.text(), FINITE), max_size=3)),
    Refusal: st.builds(Refusal, number=st.integers(), error=st.dictionaries(st.text(), JSON, max_size=3)),
}


def any_of(union: Any) -> st.SearchStrategy[Message]:
    return st.one_of(*(SPECIAL.get(model, st.from_type(model)) for model in models(union)))


SPECIAL[messages.Call] = st.builds(messages.Call, number=st.integers(), request=any_of(messages.Request))
SPECIAL[messages.Answer] = st.builds(messages.Answer, number=st.integers(), reply=any_of(messages.Reply))
SPECIAL[messages.Notify] = st.builds(messages.Notify, notice=any_of(messages.Notice))
CASES = [
    (schema, model)
    for schema, union in (
        (CHANNEL, messages.ChannelMessage),
        (FROM_CLIENT, messages.FromClient),
        (FROM_APPLICATION, messages.FromApplication),
    )
    for model in models(union)
]


async def arrived(schema: TypeAdapter[Any], data: bytes) -> Any:
    """The message that the other end reads from these bytes."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    message = await receive(reader, schema)
    assert reader.at_eof()
    return message


@pytest.mark.parametrize(("schema", "model"), CASES, ids=lambda value: getattr(value, "__name__", ""))
@given(data=st.data())
def test_every_message_arrives_as_it_was_sent(schema: TypeAdapter[Any], model: type[Message], data: Any) -> None:
    sent = data.draw(SPECIAL.get(model, st.from_type(model)))
    got = asyncio.run(arrived(schema, encode(sent)))
    assert (type(got), got) == (type(sent), sent)


@given(sent=any_of(messages.ChannelMessage) | any_of(messages.FromClient), data=st.data())
def test_damaged_bytes_are_refused_or_are_another_message(sent: Message, data: Any) -> None:
    whole = bytearray(encode(sent))
    where = data.draw(st.integers(0, len(whole) - 1))
    whole[where] ^= data.draw(st.integers(1, 255))
    for schema in (CHANNEL, FROM_CLIENT, FROM_APPLICATION):
        try:
            message = asyncio.run(arrived(schema, bytes(whole)))
        except (BadMessage, Closed):
            continue
        except AssertionError:  # a shorter message, and more bytes after it
            continue
        assert isinstance(message, Message)


@given(sent=any_of(messages.FromApplication), data=st.data())
def test_a_stream_that_ends_within_a_message_is_closed(sent: Message, data: Any) -> None:
    whole = encode(sent)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(Closed):
        asyncio.run(arrived(FROM_APPLICATION, whole[:cut]))


@pytest.mark.parametrize(
    ("fields", "body", "said"),
    [
        (b"", b"", "Invalid JSON"),
        (b"\x00\xff", b"", "Invalid JSON"),
        (b"[]", b"", "Input should be an object"),
        (b"{}", b"", "'type'"),
        (b'{"type":"no such"}', b"", "no such"),
        (b'{"type":"returned","failed":1}', b"", "returned.failed: Input should be a valid boolean"),
        (b'{"type":"returned"}', b"", "returned.failed: Field required"),
        (b'{"type":"returned","failed":true,"more":1}', b"", "returned.more"),
        (b'{"type":"returned","failed":true}', b"x", "has a body of 1 bytes, but takes none"),
        (b'{"type":"http.response.start","status":"200"}', b"", "status: Input should be a valid integer"),
        (b'{"type":"http.response.start","status":200,"headers":[["a"]]}', b"", "headers"),
        (b'{"type":"http.response.start","status":200,"headers":[["a",1]]}', b"", "headers"),
        ('{"type":"http.response.start","status":200,"headers":[["a","\u20ac"]]}'.encode(), b"", "headers"),
        (b'{"type":"http.request"}', b"", "http.request"),
    ],
)
def test_a_message_that_does_not_fit_is_refused_with_the_reason(fields: bytes, body: bytes, said: str) -> None:
    with pytest.raises(BadMessage) as refused:
        decode(FROM_APPLICATION, fields, body)
    assert said in str(refused.value)


def test_a_refusal_tells_no_header_or_body() -> None:
    with pytest.raises(BadMessage) as refused:
        decode(
            FROM_CLIENT, b'{"type":"http","door":0,"path":7,"headers":[["authorization","Bearer s3cret"],["x"]]}', b""
        )
    assert "s3cret" not in str(refused.value)


def test_lengths_that_no_message_has_are_refused_at_once() -> None:
    for lengths in ((2**31, 0), (2, 2**31)):
        with pytest.raises(BadMessage, match="longer than"):
            asyncio.run(arrived(CHANNEL, struct.pack("!II", *lengths) + b"{}"))


def test_text_that_has_no_bytes_is_refused_by_the_sender() -> None:
    with pytest.raises(BadMessage, match="SocketSend"):
        encode(message_of({"type": "websocket.send", "text": "\ud800"}))


@pytest.mark.parametrize("value", ["3", 3.0, None, HTTPStatus.OK.phrase])
def test_a_message_with_a_value_of_another_type_cannot_be_made(value: Any) -> None:
    with pytest.raises(ValidationError):
        messages.SlotCounts(taken=value, quarantined=0)


# -- ASGI


class Word(str):
    """Text of a type of its own."""


class Whole:
    """An integer that is none of Python's, as those of NumPy."""

    def __index__(self) -> int:
        return 207


def carried(event: Event, schema: TypeAdapter[Any]) -> Event:
    """The event as the other worker has it."""
    return event_of(asyncio.run(arrived(schema, encode(message_of(event)))))


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        (
            {"type": "http.response.start", "status": HTTPStatus.ACCEPTED, "headers": [[b"A", bytearray(b"\xff")]]},
            {"type": "http.response.start", "status": 202, "headers": [(b"A", b"\xff")]},
        ),
        (
            {"type": "http.response.start", "status": Whole(), "headers": ((b"a", memoryview(b"b")),)},
            {"type": "http.response.start", "status": 207, "headers": [(b"a", b"b")]},
        ),
        ({"type": "http.response.start", "status": 204}, {"type": "http.response.start", "status": 204, "headers": []}),
        ({"type": "http.response.body"}, {"type": "http.response.body", "body": b"", "more_body": False}),
        (
            {"type": "http.response.body", "body": memoryview(b"x" * 5_000_000), "more_body": 1},
            {"type": "http.response.body", "body": b"x" * 5_000_000, "more_body": True},
        ),
        (
            {"type": "websocket.accept", "subprotocol": None, "headers": None},
            {"type": "websocket.accept", "headers": []},
        ),
        (
            {"type": "websocket.accept", "subprotocol": Word("mcpenv")},
            {"type": "websocket.accept", "subprotocol": "mcpenv", "headers": []},
        ),
        ({"type": "websocket.send", "text": Word("é\x00")}, {"type": "websocket.send", "text": "é\x00"}),
        ({"type": "websocket.send", "text": "", "bytes": None}, {"type": "websocket.send", "text": ""}),
        ({"type": "websocket.send", "bytes": bytearray(b"\x00\xff")}, {"type": "websocket.send", "bytes": b"\x00\xff"}),
        ({"type": "websocket.send", "text": None, "bytes": b""}, {"type": "websocket.send", "bytes": b""}),
        (
            {"type": "websocket.close", "code": HTTPStatus.OK, "reason": None},
            {"type": "websocket.close", "code": 200, "reason": ""},
        ),
        ({"type": "websocket.close"}, {"type": "websocket.close", "code": 1000, "reason": ""}),
        (
            {"type": "websocket.http.response.start", "status": HTTPStatus.FORBIDDEN, "headers": []},
            {"type": "websocket.http.response.start", "status": 403, "headers": []},
        ),
        (
            {"type": "websocket.http.response.body", "body": b"no"},
            {"type": "websocket.http.response.body", "body": b"no", "more_body": False},
        ),
    ],
    ids=lambda event: event["type"],
)
def test_what_an_application_sends_arrives_as_plain_values(sent: Event, got: Event) -> None:
    event = carried(sent, FROM_APPLICATION)
    assert event == got
    assert [type(event[name]) for name in got] == [type(value) for value in got.values()]


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        ({"type": "http.request"}, {"type": "http.request", "body": b"", "more_body": False}),
        ({"type": "http.disconnect"}, {"type": "http.disconnect"}),
        ({"type": "websocket.connect"}, {"type": "websocket.connect"}),
        ({"type": "websocket.receive", "bytes": None, "text": "t"}, {"type": "websocket.receive", "text": "t"}),
        ({"type": "websocket.receive", "bytes": b"b", "text": None}, {"type": "websocket.receive", "bytes": b"b"}),
        (
            {"type": "websocket.disconnect", "code": 1001, "reason": None},
            {"type": "websocket.disconnect", "code": 1001, "reason": ""},
        ),
    ],
    ids=lambda event: event["type"],
)
def test_what_a_client_sends_arrives_as_plain_values(sent: Event, got: Event) -> None:
    assert carried(sent, FROM_CLIENT) == got


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"type": "http.response.start", "status": "200", "headers": []}, "status"),
        ({"type": "http.response.start", "headers": []}, "status"),
        ({"type": "http.response.start", "status": 200, "headers": [("a", "b")]}, "headers"),
        ({"type": "http.response.start", "status": 200, "headers": [(b"a",)]}, "headers"),
        ({"type": "http.response.body", "body": "text"}, "body"),
        ({"type": "http.response.body", "body": 3}, "body"),
        ({"type": "websocket.send"}, "either text or bytes"),
        ({"type": "websocket.send", "text": "t", "bytes": b"b"}, "either text or bytes"),
        ({"type": "websocket.send", "text": b"b"}, "text"),
        ({"type": "websocket.close", "code": 1000.5}, "code"),
        ({"type": "http.response.trailers", "headers": []}, "http.response.trailers"),
        ({"type": "http.response.pathsend", "path": "/x"}, "http.response.pathsend"),
    ],
)
def test_an_event_that_asgi_does_not_allow_or_a_tunnel_does_not_carry_is_refused(event: Event, said: str) -> None:
    with pytest.raises(BadMessage, match=said):
        message_of(event)


def test_a_scope_arrives_without_what_belongs_to_its_process() -> None:
    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": "ws",
        "path": "/ws/é",
        "raw_path": b"/ws/%C3%A9",
        "query_string": b"a=%20\xff",
        "root_path": "",
        "headers": [(b"x", b"\xe9"), (b"x", b"")],
        "client": ["127.0.0.1", 5],
        "server": ("/run/mcpenv.sock", None),
        "subprotocols": ("mcpenv",),
    }
    given = {
        **scope,
        "state": {"pool": object()},
        "app": object(),
        "extensions": {"websocket.http.response": {}, "http.response.trailers": {}},
    }
    request = asyncio.run(arrived(FROM_CLIENT, encode(request_of(given, door=1))))
    assert isinstance(request, OpenRequest) and request.door == 1
    assert scope_of(request) == {
        **scope,
        "client": ("127.0.0.1", 5),
        "subprotocols": ["mcpenv"],
        "extensions": {"websocket.http.response": {}},
    }


def test_a_message_for_the_other_direction_is_refused() -> None:
    for sent in (ResponseStart(status=200), ResponseBody(body=b"x")):
        with pytest.raises(BadMessage):
            asyncio.run(arrived(FROM_CLIENT, encode(sent)))
