"""The parts of a server of several workers: routing of requests, calls between processes, and tunnels."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from mcpenv.extensions.workers import hub as hub_module
from mcpenv.extensions.workers import worker_id
from mcpenv.extensions.workers.channel import Channel, FrameReader, Handlers, frame
from mcpenv.extensions.workers.hub import Hub
from mcpenv.extensions.workers.routing import Kind, destination_of_head
from mcpenv.extensions.workers.tunnel import Gone, TunnelServer, carry
from mcpenv.server.config import ServerConfig
from mcpenv.server.metrics.counters import RESETS, Counters
from mcpenv_client import CapacityReached, ExecutionError, SessionLost

OWN = "1.3"
ID = f"{OWN}.GWPKGVC5Jz9TDjNvjMkSMZD-pnW8rGkz"


def run(main: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await main

    return asyncio.run(bounded())


# -- routing


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join([line + " HTTP/1.1", "Host: x", *fields, "", ""]).encode()


@pytest.mark.parametrize(
    ("sent", "kind", "value"),
    [
        (head(f"POST /episodes/{ID}/mcp"), Kind.WORKER, OWN),
        (head(f"POST /episodes/{ID}/mcp/"), Kind.WORKER, OWN),
        (head("POST /episodes/guessed/mcp"), Kind.ANYBODY, ""),
        (head("POST /episodes/1.3/mcp"), Kind.ANYBODY, ""),
        (head("POST /mcp", f"Mcp-Session-Id: {OWN}.abc"), Kind.WORKER, OWN),
        (head("GET /mcp", f"MCP-SESSION-ID:{OWN}.abc  "), Kind.WORKER, OWN),
        (head("DELETE /mcp/", f"mcp-session-id: {OWN}.abc"), Kind.WORKER, OWN),
        (head("POST /mcp", f"Mcp-Session-Id: {OWN}.abc", "Mcp-Session-Id: 0.1.abc"), Kind.ANYBODY, ""),
        (head("POST /mcp", "MCP-Protocol-Version: 2026-07-28", f"Mcp-Session-Id: {OWN}.abc"), Kind.SERVICE, ""),
        (head("POST /mcp", "Accept: application/json, text/event-stream"), Kind.OPENS, ""),
        (head("POST /mcp"), Kind.BODY, ""),
        (head("GET /mcp"), Kind.ANYBODY, ""),
        (head("GET /ws"), Kind.OPENS, ""),
        (head(f"GET /ws?session_id={ID}"), Kind.WORKER, OWN),
        (head("GET /ws?session_id="), Kind.ANYBODY, ""),
        (head("GET /ws?resume=1", "mcpenv-session-id: session-number-0001"), Kind.CHOSEN, "session-number-0001"),
        (head("GET /ws", "mcpenv-session-id: short"), Kind.OPENS, ""),
        (head("POST /reset"), Kind.BODY, ""),
        (head("POST /step"), Kind.BODY, ""),
        (head("POST /end"), Kind.BODY, ""),
        (head(f"GET /state?session_id={ID}"), Kind.WORKER, OWN),
        (head("GET /state"), Kind.PLACED, ""),
        (head("POST /sessions"), Kind.PLACED, ""),
        (head("POST /console/api/sessions"), Kind.PLACED, ""),
        (head("GET /sessions"), Kind.ANYBODY, ""),
        (head(f"DELETE /sessions/{ID}"), Kind.WORKER, OWN),
        (head("DELETE /sessions/service"), Kind.NAMED, "service"),
        (head(f"GET /sessions/{ID}/events?after=a.1"), Kind.WORKER, OWN),
        (head("GET /sessions/session-number-0001/trajectory"), Kind.NAMED, "session-number-0001"),
        (head("GET /sessions/session-number-0001/events"), Kind.NAMED, "session-number-0001"),
        (head("GET /sessions/session-number-0001/steps/3/content/0"), Kind.NAMED, "session-number-0001"),
        (head("GET /health"), Kind.ANYBODY, ""),
        (head(f"GET /episodes/{ID}/mcp")[:-2], Kind.ANYBODY, ""),
        (f"GET /episodes/{ID}/mcp\r\n\r\n".encode(), Kind.ANYBODY, ""),
        (b"\x16\x03\x01\x02\x00", Kind.ANYBODY, ""),
        (b"\r\n\r\n", Kind.ANYBODY, ""),
    ],
)
def test_the_head_of_a_request_says_whose_it_is(sent: bytes, kind: Kind, value: str) -> None:
    belongs = destination_of_head(sent)
    assert (belongs.kind, belongs.value) == (kind, value)


@pytest.mark.parametrize("field", [b"a" * 16_000, b"X: x" + b" " * 16_000 + b"y"])
def test_the_head_of_an_attacker_is_read_in_linear_time(field: bytes) -> None:
    sent = b"GET /ws HTTP/1.1\r\n%s\r\nMcpenv-Session-Id:  session-number-0001 \r\n\r\n" % field
    began = time.monotonic()
    for _ in range(20):
        assert destination_of_head(sent).value == "session-number-0001"
    assert time.monotonic() - began < 5  # quadratic: up to 7 s for each


def test_an_id_says_whose_it_is_and_cannot_be_guessed() -> None:
    several = {worker_id.new_id(OWN) for _ in range(100)}
    assert len(several) == 100
    for each in several:
        worker, rest = worker_id.split(each)
        assert worker == OWN
        assert len(rest) == 22  # 128 bits, six in a character
    assert worker_id.number_of(OWN) == 1
    assert worker_id.tag_of(1, 3) == OWN


@pytest.mark.parametrize("chosen", ["session-number-0001", "0-1-abcdefghijklmnop", "service", "mcp:abc", "1.2", "a.1"])
def test_what_a_client_chose_is_no_workers(chosen: str) -> None:
    assert worker_id.split(chosen) == (None, chosen)


# -- frames

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(values=st.lists(VALUES, max_size=3), cut=st.integers(0))
def test_values_arrive_as_they_were_sent_though_their_reader_is_cancelled(values: list[Any], cut: int) -> None:
    async def main() -> None:
        stream = asyncio.StreamReader()
        frames, data, got = FrameReader(stream), b"".join(map(frame, values)), []
        for part in (data[: cut % (len(data) + 1)], data[cut % (len(data) + 1) :]):
            stream.feed_data(part)
            while True:
                reading = asyncio.ensure_future(frames.next())
                for _ in range(3):
                    await asyncio.sleep(0)
                if not reading.done():
                    reading.cancel()
                    await asyncio.wait([reading])
                    break
                got.append(reading.result())
        assert got == values
        stream.feed_eof()
        with pytest.raises(EOFError):
            await frames.next()

    run(main())


def test_a_stream_that_ends_within_a_frame_has_ended() -> None:
    async def main() -> None:
        for length in (2, 10):
            stream = asyncio.StreamReader()
            stream.feed_data(frame("text")[:length])
            stream.feed_eof()
            with pytest.raises(EOFError):
                await FrameReader(stream).next()

    run(main())


def test_the_body_of_an_event_is_sent_as_it_is() -> None:
    for body in (b"", b"\x00\xff" * 1000):
        data = frame({"type": "http.request", "body": memoryview(body)})
        assert body in data and len(data) < len(body) + 100


def test_a_value_without_a_json_form_is_refused_by_the_sender() -> None:
    with pytest.raises(TypeError):
        frame({"status": object()})


# -- channels


@asynccontextmanager
async def channels(there: Handlers) -> AsyncIterator[tuple[Channel, Channel]]:
    """Both ends of one; only the second answers."""
    ends = socket.socketpair()
    one, other = [
        Channel(*await asyncio.open_unix_connection(sock=end), handlers)
        for end, handlers in zip(ends, ({}, there), strict=True)
    ]
    serving = [asyncio.ensure_future(end.serve()) for end in (one, other)]
    try:
        yield one, other
    finally:
        one.close()
        other.close()
        await asyncio.gather(*serving)


def test_a_call_gives_what_the_other_end_returns_or_raises(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> None:
        raise CapacityReached("full", retry_after_s=5.0)

    async def later(value: str) -> str:
        await asyncio.sleep(0)
        return value

    def fail() -> None:
        raise ZeroDivisionError

    async def fail_later() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        heard: list[int] = []
        handlers: Handlers = {
            "refuse": refuse,
            "later": later,
            "fail": fail,
            "fail_later": fail_later,
            "note": heard.append,
            "noted": lambda: heard,
            "odd": object,
        }
        async with channels(handlers) as (one, _):
            assert await one.call("later", "x") == "x"
            with pytest.raises(CapacityReached) as refused:
                await one.call("refuse")
            assert refused.value.retry_after_s == 5.0
            for name in ("fail", "fail_later", "unknown", "odd"):
                with pytest.raises(ExecutionError, match="internal error"):
                    await one.call(name)
            one.tell("fail")
            for number in range(3):
                one.tell("note", number)
            assert await one.call("noted") == [0, 1, 2]

    run(main())
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"the call of {name!r} between the processes of the server failed"
        for name in ("fail", "fail_later", "unknown", "odd", "fail")
    ]


def test_a_function_is_cancelled_with_its_caller_or_undone() -> None:
    async def main() -> None:
        asked, stopped, undone = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async def stubborn() -> None:
            asked.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

        async with channels({"slow": slow, "stubborn": stubborn}) as (one, _):
            for name, done in (("slow", stopped), ("stubborn", undone)):
                asked.clear()
                calling = asyncio.ensure_future(one.call(name, undo=undone.set))
                await asked.wait()
                calling.cancel()
                await done.wait()
                assert undone.is_set() is (done is undone)

    run(main())


def test_calls_to_an_end_that_goes_are_lost_at_once() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def never() -> None:
            asked.set()
            await asyncio.Event().wait()

        async with channels({"never": never}) as (one, other):
            calling = asyncio.ensure_future(one.call("never"))
            await asked.wait()
            other.close()
            with pytest.raises(SessionLost):
                await calling
            with pytest.raises(SessionLost):
                await one.call("never")

    run(main())


def test_a_worker_that_does_not_answer_is_left_out_of_answers_about_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "ASK_S", 0.1)

    async def never() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        hub = Hub(tmp_path, [], ServerConfig(), 3, anonymous=True)
        others: list[Handlers] = [
            {},
            {"sessions": lambda: ["a"], "metrics": lambda: {"steps": 1}},
            {"sessions": never, "metrics": never},
        ]
        ends: list[Channel] = []
        async with hub.running(), contextlib.AsyncExitStack() as stack:
            for number, handlers in enumerate(others):
                seat = await hub.add(number)
                stack.callback(seat.connections.close)
                one = Channel(
                    *await asyncio.open_unix_connection(sock=seat.channel), {"counts": lambda *_: None, **handlers}
                )
                serving = asyncio.ensure_future(one.serve())
                stack.push_async_callback(asyncio.wait, [serving])
                stack.callback(one.close)
                one.tell("ready", 1, 0)
                ends.append(one)
            await hub.started.wait()
            counters = Counters(tmp_path / "2.1.counts")
            counters.numbers[RESETS] = 5
            assert await ends[0].call("others", "sessions") == [["a"], None]
            samples = await ends[0].call("metrics")
            assert {"steps": 1} in samples
            resets = 'mcpenv_resets_total{result="ok"}'
            assert [each[resets] for each in samples if resets in each] == [5]

    run(main())


def test_a_worker_whose_process_has_ended_is_gone_though_a_fork_has_its_sockets(tmp_path: Path) -> None:
    async def main() -> None:
        hub = Hub(tmp_path, [], ServerConfig(), 2, anonymous=True)
        async with hub.running():
            seat = await hub.add(0)
            seat.channel.sendall(frame(["call", None, "failed", ["no such luck"]]))
            hub.ended(seat)
            await hub.started.wait()
            assert hub.failure == "no such luck"  # what it sent before is read
            seat.connections.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(seat.connections, 1) == b""
            seat.close()

    run(main())


# -- tunnels

HTTP: Scope = {
    "type": "http",
    "path": "/x",
    "headers": [(b"a", b"b")],
    "client": ("10.0.0.1", 5),
    "state": object(),
    "extensions": {"websocket.http.response": {}, "http.response.trailers": {}},
}


@asynccontextmanager
async def tunnels(app: Any, folder: Path) -> AsyncIterator[Path]:
    path = folder / "1.1.sock"
    async with TunnelServer([app]).running(path):
        yield path


class Client:
    """Somebody whose messages are given, and who then is silent or leaves."""

    def __init__(self, *messages: Message, leaves: bool = False) -> None:
        self._messages = list(messages)
        self._leaves = asyncio.Event()
        if leaves:
            self._leaves.set()
        self.heard: list[Message] = []

    async def receive(self) -> Message:
        if self._messages:
            return self._messages.pop(0)
        await self._leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.heard.append(message)

    def leave(self) -> None:
        self._leaves.set()


def test_a_request_is_carried_as_it_is(tmp_path: Path) -> None:
    scopes: list[Scope] = []

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": [[b"c", bytearray(b"d")]]})
        more = True
        while more:
            message = await receive()
            more = message["more_body"]
            await send({"type": "http.response.body", "body": message["body"], "more_body": more})

    async def main() -> None:
        async with tunnels(echo, tmp_path) as near:
            for _ in range(3):
                parts = [b"x" * 200_000, b"", b"end"]
                client = Client(
                    *({"type": "http.request", "body": part, "more_body": part != b"end"} for part in parts)
                )
                await carry(near, 0, HTTP, client.receive, client.send)
                assert client.heard[0]["headers"] == [(b"c", b"d")]
                assert [message["body"] for message in client.heard[1:]] == parts
        carried = {key: value for key, value in HTTP.items() if key != "state"}
        assert scopes[0] == {**carried, "extensions": {"websocket.http.response": {}}}

    run(main())


def test_a_socket_is_carried_with_both_kinds_of_frames(tmp_path: Path) -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["subprotocols"] == ["mcpenv"]
        assert (await receive()) == {"type": "websocket.connect"}
        await send({"type": "websocket.accept", "subprotocol": "mcpenv", "headers": [(b"x", b"\xff")]})
        while (message := await receive())["type"] == "websocket.receive":
            await send({**message, "type": "websocket.send"})
        assert message == {"type": "websocket.disconnect", "code": 3001, "reason": "enough"}
        await send({"type": "websocket.close", "code": 3002, "reason": None})

    async def main() -> None:
        async with tunnels(echo, tmp_path) as near:
            big = "\u00e9\U0001f600" * 100_000
            client = Client(
                {"type": "websocket.connect"},
                {"type": "websocket.receive", "text": big, "bytes": None},
                {"type": "websocket.receive", "text": None, "bytes": b"\x00\xff"},
                {"type": "websocket.receive", "text": ""},
                {"type": "websocket.disconnect", "code": 3001, "reason": "enough"},
            )
            scope = {**HTTP, "type": "websocket", "subprotocols": ["mcpenv"]}
            await carry(near, 0, scope, client.receive, client.send)
            assert client.heard == [
                {"type": "websocket.accept", "subprotocol": "mcpenv", "headers": [(b"x", b"\xff")]},
                {"type": "websocket.send", "text": big, "bytes": None},
                {"type": "websocket.send", "text": None, "bytes": b"\x00\xff"},
                {"type": "websocket.send", "text": ""},
                {"type": "websocket.close", "code": 3002, "reason": None},
            ]

    run(main())


def test_an_application_need_not_read_all(tmp_path: Path) -> None:
    async def hasty(scope: Scope, receive: Receive, send: Send) -> None:
        waiting = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        waiting.cancel()
        assert (await receive())["body"] == b"x" * 1000
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    async def main() -> None:
        async with tunnels(hasty, tmp_path) as near:
            client = Client(*({"type": "http.request", "body": b"x" * 1000, "more_body": True} for _ in range(2000)))
            await carry(near, 0, HTTP, client.receive, client.send)
            assert [message["type"] for message in client.heard] == ["http.response.start", "http.response.body"]

    run(main())


def test_a_client_that_does_not_read_stops_the_application(tmp_path: Path) -> None:
    async def main() -> None:
        sent, reads = 0, asyncio.Event()

        async def floods(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal sent
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(1000):
                await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
                sent += 1

        class Slow(Client):
            async def send(self, message: Message) -> None:
                await reads.wait()

        async with tunnels(floods, tmp_path) as near:
            client = Slow()
            carrying = asyncio.ensure_future(carry(near, 0, HTTP, client.receive, client.send))
            before = -1
            while sent != before:
                before = sent
                await asyncio.wait([carrying], timeout=0.2)
            assert 0 < sent < 100
            reads.set()
            await carrying
            assert sent == 1000

    run(main())


def test_a_client_that_leaves_is_seen_to_leave(tmp_path: Path) -> None:
    async def main() -> None:
        began = asyncio.Event()

        async def waits(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            began.set()
            assert (await receive())["type"] == "http.disconnect"
            assert (await receive())["type"] == "http.disconnect"

        async with tunnels(waits, tmp_path) as near:
            client = Client({"type": "http.request", "body": b"", "more_body": False})
            carrying = asyncio.ensure_future(carry(near, 0, HTTP, client.receive, client.send))
            await began.wait()
            client.leave()
            await carrying

    run(main())


def test_a_carrier_that_is_cancelled_is_to_the_application_a_client_that_left(tmp_path: Path) -> None:
    async def main() -> None:
        began, left = asyncio.Event(), asyncio.Event()

        async def waits(scope: Scope, receive: Receive, send: Send) -> None:
            began.set()
            assert (await receive()) == {"type": "websocket.disconnect", "code": 1006, "reason": ""}
            left.set()

        async with tunnels(waits, tmp_path) as near:
            client = Client()
            scope = {**HTTP, "type": "websocket"}
            carrying = asyncio.ensure_future(carry(near, 0, scope, client.receive, client.send))
            await began.wait()
            carrying.cancel()
            await left.wait()

    run(main())


@pytest.mark.parametrize("began", [False, True])
def test_a_worker_that_is_gone_is_noticed(tmp_path: Path, began: bool) -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def never(scope: Scope, receive: Receive, send: Send) -> None:
            if began:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            asked.set()
            await asyncio.Event().wait()

        client = Client()
        async with tunnels(never, tmp_path) as near:
            carrying = asyncio.ensure_future(carry(near, 0, HTTP, client.receive, client.send))
            await asked.wait()
        with pytest.raises(Gone):
            await carrying
        assert len(client.heard) == began
        with pytest.raises(Gone):
            await carry(near, 0, HTTP, client.receive, client.send)

    run(main())


def test_an_application_that_fails_fails_the_request_and_not_the_tunnel(tmp_path: Path) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with tunnels(fails, tmp_path) as near:
            for _ in range(2):
                client = Client()
                with pytest.raises(RuntimeError, match="failed to answer"):
                    await carry(near, 0, HTTP, client.receive, client.send)

    run(main())


def test_an_event_that_cannot_be_carried_fails_the_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def odd(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/answer":
            await send({"type": "http.response.start", "status": object()})
        assert (await receive())["type"] == "http.disconnect"

    async def main() -> None:
        async with tunnels(odd, tmp_path) as near:
            with pytest.raises(RuntimeError, match="failed to answer"):
                await carry(near, 0, {**HTTP, "path": "/answer"}, Client().receive, Client().send)
            assert "a request that came from another worker failed" in caplog.text
            with pytest.raises(TypeError):
                await carry(near, 0, HTTP, Client({"type": "http.request", "body": object()}).receive, Client().send)

    run(main())


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        (
            {"type": "http.response.start", "status": HTTPStatus.ACCEPTED, "headers": [[b"A", bytearray(b"\xff")]]},
            {"type": "http.response.start", "status": 202, "headers": [(b"A", b"\xff")]},
        ),
        (
            {"type": "http.response.body", "body": memoryview(b"x" * 5_000_000), "more_body": True},
            {"type": "http.response.body", "body": b"x" * 5_000_000, "more_body": True},
        ),
        ({"type": "websocket.accept", "headers": None}, {"type": "websocket.accept", "headers": None}),
        ({"type": "websocket.send", "bytes": bytearray(b"\x00\xff")}, {"type": "websocket.send", "bytes": b"\x00\xff"}),
    ],
    ids=lambda event: event["type"],
)
def test_what_an_application_sends_arrives_as_plain_values(tmp_path: Path, sent: Message, got: Message) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(sent)

    async def main() -> None:
        async with tunnels(app, tmp_path) as near:
            client = Client()
            await carry(near, 0, HTTP, client.receive, client.send)
            assert client.heard == [got]

    run(main())
