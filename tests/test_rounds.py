"""Rounds: what came on many sockets in one turn of the event loop is read in a row, then all answers are written."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from test_websocket_protocol import CLOSE, HANDSHAKE, TEXT, Line, frame
from uvicorn import Config
from uvicorn.server import ServerState

from mcpenv.rounds import ALONE, LONG_S, LOOK_EVERY, Rounds
from mcpenv.websocket_protocol import MAX_UNREAD_TEXT, MAX_UNWRITTEN, WebSocketProtocol


class Socket:
    """Says in a log what is asked of it."""

    took_long = False

    def __init__(self, name: str, rounds: Rounds, log: list[str], read: Callable[[], None] = lambda: None) -> None:
        self.loop = asyncio.get_running_loop()
        self._name, self._rounds, self._log, self._read = name, rounds, log, read

    def read_on(self) -> None:
        self._log.append(f"read {self._name}")
        self._read()
        if self._rounds.gathers:
            self._rounds.owing.append(self)

    def write_out(self) -> None:
        self._log.append(f"write {self._name}")

    def broke(self, error: Exception) -> None:
        self._log.append(f"broke {self._name}: {error}")


def _raise(error: BaseException) -> None:
    raise error


def _in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


@_in_a_loop
async def test_all_are_read_before_any_is_written() -> None:
    log: list[str] = []
    rounds = Rounds()
    for name in "abc":
        assert rounds.take(Socket(name, rounds, log))
    assert log == []
    await asyncio.sleep(0)
    assert log == ["read a", "read b", "read c", "write a", "write b", "write c"]
    assert not rounds.gathers


@_in_a_loop
async def test_one_alone_is_not_kept_waiting_for_others_that_do_not_come() -> None:
    log: list[str] = []
    rounds = Rounds()
    one, other = Socket("a", rounds, log), Socket("b", rounds, log)
    for _ in range(ALONE):
        assert rounds.take(one)
        await asyncio.sleep(0)
    assert log == ["read a"] * ALONE, "nothing waits for the end of a round of one"
    assert not any(rounds.take(one) for _ in range(LOOK_EVERY - 1))
    assert rounds.take(one) and rounds.take(other), "now and then it looks whether others come"
    await asyncio.sleep(0)
    assert log[ALONE:] == ["read a", "read b", "write a", "write b"]
    assert rounds.take(one), "they do: there are rounds again"
    await asyncio.sleep(0)


@_in_a_loop
async def test_one_that_raises_takes_nothing_from_the_others() -> None:
    log: list[str] = []
    rounds = Rounds()
    for socket in (
        Socket("a", rounds, log),
        Socket("b", rounds, log, lambda: _raise(ValueError("no"))),
        Socket("c", rounds, log),
    ):
        rounds.take(socket)
    await asyncio.sleep(0)
    assert log == ["read a", "read b", "broke b: no", "read c", "write a", "write c"]


def test_what_ends_the_event_loop_ends_no_round() -> None:
    log: list[str] = []

    async def interrupted() -> None:
        rounds = Rounds()
        for socket in (
            Socket("a", rounds, log),
            Socket("b", rounds, log, lambda: _raise(KeyboardInterrupt())),
            Socket("c", rounds, log),
        ):
            rounds.take(socket)
        try:
            await asyncio.sleep(10)
        finally:
            log.append("the loop ends")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    assert log == ["read a", "read b", "write a", "read c", "the loop ends"]


@_in_a_loop
async def test_answers_do_not_wait_for_a_socket_that_takes_long() -> None:
    log: list[str] = []
    rounds = Rounds()

    def work() -> None:
        until = time.perf_counter() + 2 * LONG_S
        while time.perf_counter() < until:
            pass

    sockets = [Socket("a", rounds, log), Socket("slow", rounds, log, work), Socket("c", rounds, log)]
    for _ in range(2):
        for socket in sockets:
            rounds.take(socket)
        await asyncio.sleep(0)
    assert log[:6] == ["read a", "read slow", "write a", "write slow", "read c", "write c"], "at once after it"
    assert log[6:9] == ["read a", "write a", "read slow"], "and before it, once it is known to take long"


class Lines:
    """WebSocket connections of one server, each of which answers a text with it, in the place where it comes."""

    def __init__(self) -> None:
        self.protocol = WebSocketProtocol.of_one_server()
        self.state = ServerState()

    async def open(self) -> tuple[WebSocketProtocol, Line]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            inbox = receive.__self__.inbox
            await receive()
            await send({"type": "websocket.accept"})
            inbox.listener = lambda text: inbox.send_at_once(text * 2)
            await inbox.wait()

        config = Config(app, ws_per_message_deflate=False, ws_ping_interval=None, log_level="critical")
        config.load()
        protocol, line = self.protocol(config, self.state, {}, asyncio.get_running_loop()), Line()
        protocol.connection_made(line)
        protocol.data_received(HANDSHAKE)
        while not line.written:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        line.written.clear()
        return protocol, line

    async def close(self, *protocols: WebSocketProtocol) -> None:
        for protocol in protocols:
            protocol.connection_lost(None)
        await asyncio.gather(*self.state.tasks)


@_in_a_loop
async def test_frames_of_a_round_are_answered_in_one_write_each() -> None:
    lines = Lines()
    (one, line), (other, other_line) = await lines.open(), await lines.open()
    one.data_received(frame(TEXT, b"a"))
    other.data_received(frame(TEXT, b"b"))
    one.data_received(frame(TEXT, b"c")[:3])
    one.data_received(frame(TEXT, b"c")[3:])
    assert line.written == other_line.written == []
    await asyncio.sleep(0)
    assert line.written == [b"\x81\x02aa\x81\x02cc"]
    assert other_line.written == [b"\x81\x02bb"]
    await lines.close(one, other)


@_in_a_loop
async def test_an_answer_comes_before_the_goodbye_to_what_was_said_after_it() -> None:
    lines = Lines()
    (one, line), (other, _) = await lines.open(), await lines.open()
    one.data_received(frame(TEXT, b"a") + frame(CLOSE, b"\x03\xe8"))
    other.data_received(frame(TEXT, b"b"))
    await asyncio.sleep(0)
    assert b"".join(line.written) == b"\x81\x02aa\x88\x02\x03\xe8" and line.closing
    await lines.close(one, other)


@_in_a_loop
async def test_what_came_is_read_before_the_end_is_heard() -> None:
    lines = Lines()
    (one, line), (other, _) = await lines.open(), await lines.open()
    one.data_received(frame(TEXT, b"a"))
    other.data_received(frame(TEXT, b"b"))
    one.eof_received()
    assert line.written == [b"\x81\x02aa"]
    await asyncio.sleep(0)
    assert line.written == [b"\x81\x02aa"], "once"
    await lines.close(one, other)


@_in_a_loop
async def test_long_answers_do_not_pile_up_in_a_round() -> None:
    lines = Lines()
    (one, line), (other, _) = await lines.open(), await lines.open()
    long = frame(TEXT, b"x" * (MAX_UNWRITTEN // 2))
    other.data_received(frame(TEXT, b"b"))
    one.data_received(long + long + frame(TEXT, b"a"))
    await asyncio.sleep(0)
    assert [len(each) > MAX_UNWRITTEN for each in line.written] == [True, True, False]
    await lines.close(one, other)


@_in_a_loop
async def test_who_sends_much_in_one_turn_is_read_before_the_round() -> None:
    lines = Lines()
    (one, line), (other, other_line) = await lines.open(), await lines.open()
    other.data_received(frame(TEXT, b"b"))
    for _ in range(3):
        one.data_received(frame(TEXT, b"x" * (MAX_UNREAD_TEXT // 2)))
    assert len(line.written) >= 2 and other_line.written == []
    await asyncio.sleep(0)
    assert len(b"".join(line.written)) > 3 * MAX_UNREAD_TEXT and other_line.written == [b"\x81\x02bb"]
    await lines.close(one, other)
