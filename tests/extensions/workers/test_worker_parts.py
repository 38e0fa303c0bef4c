"""The parts of a server of several workers: whose a request is, calls between processes, requests that are carried."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from mcpenv.extensions.workers import worker_id
from mcpenv.extensions.workers.forwarding import Forwarding, Peers
from mcpenv.extensions.workers.framing import BadMessage, encode
from mcpenv.extensions.workers.messages import (
    CountEpisodes,
    Done,
    EpisodeCounts,
    FindSession,
    FreeSlot,
    HasSession,
    Hello,
    ListSessions,
    Location,
    Place,
    Quarantined,
    Returned,
    Sessions,
    SpendRequest,
    TakeSlot,
    Verdict,
    WorkerTag,
)
from mcpenv.extensions.workers.routing import Kind, belonging_of
from mcpenv.extensions.workers.rpc import Channel, Handlers
from mcpenv.extensions.workers.tunnel import Gone, Tunnels, TunnelServer
from mcpenv.server.config import ServerConfig
from mcpenv_client import CapacityReached, ExecutionError, SessionLost

OWN = "1.3"
ID = f"{OWN}.GWPKGVC5Jz9TDjNvjMkSMZD-pnW8rGkz"


def run(main: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await main

    return asyncio.run(bounded())


# -- belonging


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
    belongs = belonging_of(sent)
    assert (belongs.kind, belongs.value) == (kind, value)


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
    def refuse(_: SpendRequest) -> Done:
        raise CapacityReached("full", retry_after_s=5.0)

    async def later(asked: FindSession) -> Location:
        await asyncio.sleep(0)
        return Location(tag=asked.session_id)

    def fail(_: ListSessions) -> Sessions:
        raise ZeroDivisionError

    async def fail_later(_: CountEpisodes) -> EpisodeCounts:
        raise ZeroDivisionError

    async def main() -> None:
        heard: list[int] = []
        handlers: Handlers = {
            SpendRequest: refuse,
            FindSession: later,
            ListSessions: fail,
            CountEpisodes: fail_later,
            Quarantined: lambda notice: heard.append(notice.change),
            HasSession: lambda _: Verdict(yes=heard == [0, 1, 2]),
        }
        async with channels(handlers) as (one, _):
            assert (await one.call(FindSession(session_id="x"), Location)).tag == "x"
            with pytest.raises(CapacityReached) as refused:
                await one.call(SpendRequest(agent="a"), Done)
            assert refused.value.retry_after_s == 5.0
            with pytest.raises(ExecutionError, match="internal error"):
                await one.call(ListSessions(), Sessions)
            with pytest.raises(ExecutionError, match="internal error"):
                await one.call(CountEpisodes(), EpisodeCounts)
            for number in range(3):
                one.tell(Quarantined(change=number))
            assert (await one.call(HasSession(session_id="x"), Verdict)).yes

    run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "a call of type ListSessions between the processes of the server failed",
        "a call of type CountEpisodes between the processes of the server failed",
    ]


def test_a_message_that_nobody_handles_or_whose_handler_fails_is_logged_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: Quarantined) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with channels({Quarantined: fail, Hello: lambda _: WorkerTag(tag="1.1"), Place: lambda _: Done()}) as (
            one,
            _,
        ):
            one.tell(Quarantined(change=1))
            one.tell(FreeSlot())
            for asked in (ListSessions(), Place()):  # one without a handler, one with another answer than it has
                with pytest.raises(ExecutionError, match="internal error"):
                    await one.call(asked, WorkerTag)
            assert (await one.call(Hello(), WorkerTag)).tag == "1.1"

    run(main())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    for number, name in enumerate(("Quarantined", "FreeSlot", "ListSessions", "Place")):
        assert name in said[number]


def test_what_is_no_message_ends_the_channel_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def never(_: Hello) -> None:
            asked.set()
            await asyncio.Event().wait()

        async with channels({Hello: never}) as (one, other):
            calling = asyncio.ensure_future(one.call(Hello(), WorkerTag))
            await asked.wait()
            one._writer.write(encode(Returned(failed=True)))  # a message, but not one of a channel
            with pytest.raises(SessionLost):
                await calling
            assert other.closed

    run(main())
    (record,) = caplog.records
    assert "returned" in record.getMessage()


def test_what_was_done_for_a_caller_that_has_gone_is_undone() -> None:
    async def main() -> None:
        asked, go_on, stopped, undone = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def slow(_: Hello) -> WorkerTag:
            asked.set()
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                stopped.set()
                raise
            return WorkerTag(tag="done")

        async def stubborn(_: TakeSlot) -> Done:
            asked.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return Done()

        async with channels({Hello: slow, TakeSlot: stubborn}) as (one, _):
            calling = asyncio.ensure_future(one.call(Hello(), WorkerTag))
            await asked.wait()
            calling.cancel()
            await stopped.wait()
            asked.clear()
            taking = asyncio.ensure_future(one.call(TakeSlot(orchestrated=True), Done, undo=undone.set))
            await asked.wait()
            taking.cancel()
            await undone.wait()

    run(main())


def test_calls_to_an_end_that_goes_are_lost_at_once() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def never(_: Hello) -> None:
            asked.set()
            await asyncio.Event().wait()

        async with channels({Hello: never}) as (one, other):
            calling = asyncio.ensure_future(one.call(Hello(), WorkerTag))
            await asked.wait()
            other.close()
            with pytest.raises(SessionLost):
                await calling
            with pytest.raises(SessionLost):
                await one.call(Hello(), WorkerTag)

    run(main())


# -- tunnels

HTTP: Scope = {"type": "http", "path": "/x", "headers": [(b"a", b"b")], "client": ("10.0.0.1", 5), "state": object()}


@asynccontextmanager
async def tunnels(app: Any, folder: Path) -> AsyncIterator[Tunnels]:
    server, near = TunnelServer([app]), Tunnels(folder / "1.1.sock")
    async with server.running(folder / "1.1.sock"):
        try:
            yield near
        finally:
            near.close()


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


def test_a_request_is_carried_as_it_is_and_one_tunnel_carries_many(tmp_path: Path) -> None:
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
                await near.carry(0, HTTP, client.receive, client.send)
                assert client.heard[0]["headers"] == [(b"c", b"d")]
                assert [message["body"] for message in client.heard[1:]] == parts
            assert len(near._idle) == 1
        assert scopes[0] == {key: value for key, value in HTTP.items() if key != "state"}

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
            await near.carry(0, scope, client.receive, client.send)
            assert client.heard == [
                {"type": "websocket.accept", "subprotocol": "mcpenv", "headers": [(b"x", b"\xff")]},
                {"type": "websocket.send", "text": big},
                {"type": "websocket.send", "bytes": b"\x00\xff"},
                {"type": "websocket.send", "text": ""},
                {"type": "websocket.close", "code": 3002, "reason": ""},
            ]

    run(main())


def test_an_application_that_did_not_read_all_leaves_the_tunnel_fit_for_the_next(tmp_path: Path) -> None:
    async def hasty(scope: Scope, receive: Receive, send: Send) -> None:
        waiting = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        waiting.cancel()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def main() -> None:
        async with tunnels(hasty, tmp_path) as near:
            for _ in range(20):
                client = Client(*({"type": "http.request", "body": b"x" * 1000, "more_body": True} for _ in range(12)))
                await near.carry(0, HTTP, client.receive, client.send)
                assert [message["type"] for message in client.heard] == ["http.response.start", "http.response.body"]

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
            carrying = asyncio.ensure_future(near.carry(0, HTTP, client.receive, client.send))
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
            carrying = asyncio.ensure_future(near.carry(0, scope, client.receive, client.send))
            await began.wait()
            carrying.cancel()
            await left.wait()

    run(main())


@pytest.mark.parametrize("began", [False, True])
def test_a_worker_that_is_gone_is_noticed_and_how_far_it_came(tmp_path: Path, began: bool) -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def never(scope: Scope, receive: Receive, send: Send) -> None:
            if began:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            asked.set()
            await asyncio.Event().wait()

        server, near = TunnelServer([never]), Tunnels(tmp_path / "1.1.sock")
        client = Client()
        async with server.running(tmp_path / "1.1.sock"):
            carrying = asyncio.ensure_future(near.carry(0, HTTP, client.receive, client.send))
            await asked.wait()
        with pytest.raises(Gone) as gone:
            await carrying
        assert gone.value.began is began
        with pytest.raises(Gone):
            await near.carry(0, HTTP, client.receive, client.send)

    run(main())


def test_an_application_that_fails_fails_the_request_and_not_the_tunnel(tmp_path: Path) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with tunnels(fails, tmp_path) as near:
            for _ in range(2):
                client = Client()
                with pytest.raises(RuntimeError, match="failed to answer"):
                    await near.carry(0, HTTP, client.receive, client.send)

    run(main())


def test_an_event_of_a_client_that_cannot_be_carried_fails_the_request_at_once(tmp_path: Path) -> None:
    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.disconnect"

    async def main() -> None:
        async with tunnels(waits, tmp_path) as near:
            client = Client({"type": "http.request", "body": "text"})
            with pytest.raises(BadMessage, match="body"):
                await near.carry(0, HTTP, client.receive, client.send)

    run(main())


def test_an_event_of_an_application_that_cannot_be_carried_fails_the_request_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def odd(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": "200", "headers": []})

    async def main() -> None:
        async with tunnels(odd, tmp_path) as near:
            for _ in range(2):
                client = Client()
                with pytest.raises(RuntimeError, match="failed to answer"):
                    await near.carry(0, HTTP, client.receive, client.send)
                assert client.heard == []
            assert len(near._idle) == 0

    run(main())
    assert "BadMessage" in caplog.text and "status" in caplog.text


def test_what_is_no_message_ends_the_tunnel_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with tunnels(None, tmp_path):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "1.1.sock")
            writer.write(encode(Returned(failed=True)))
            assert await reader.read() == b""
            writer.close()

    run(main())
    (record,) = caplog.records
    assert "returned" in record.getMessage()


@pytest.mark.parametrize("answer", [encode(Returned(failed=True))[:8] + b"?" * 100, encode(Hello())])
def test_a_request_that_is_answered_with_what_is_no_answer_is_refused_and_logged(
    answer: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def own(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it belongs to another worker")

    async def misanswer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(answer)

    async def main() -> None:
        server = await asyncio.start_unix_server(misanswer, tmp_path / "1.1.sock")
        peers = Peers(tmp_path, "0.1", 2)
        peers.learn(["0.1", "1.1"])
        async with server, channels({}) as (channel, _):
            forwarding = Forwarding(0, own, peers, channel, ServerConfig(), None)
            client = Client({"type": "http.request", "body": b"", "more_body": False})
            scope = {**HTTP, "path": f"/episodes/1.1.{'x' * 32}/mcp", "method": "GET", "query_string": b""}
            await forwarding(scope, client.receive, client.send)
            start, body = client.heard
            assert start["status"] == 500
            assert b"internal error between the server's workers" in body["body"]
            scope = {**HTTP, "type": "websocket", "path": "/ws", "query_string": b"session_id=1.1." + b"x" * 32}
            client = Client({"type": "websocket.connect"})
            await forwarding(scope, client.receive, client.send)
            assert [message["type"] for message in client.heard] == [
                "websocket.accept",
                "websocket.send",
                "websocket.close",
            ]
            peers.close()

    run(main())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all("could not be forwarded to worker 1.1" in each for each in said)
