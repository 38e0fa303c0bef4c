"""Rounds: what came on many sockets in one turn of the event loop is read in a row, then all answers are written."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from test_websocket_protocol import CLOSE, HANDSHAKE, PONG, TEXT, Line, frame
from uvicorn import Config
from uvicorn.server import ServerState

from mcpenv.rounds import ALONE, FULL, LONG_S, LOOK_EVERY, TURN_S, WARY, Rounds
from mcpenv.websocket_protocol import MAX_UNREAD_TEXT, MAX_UNWRITTEN, WebSocketProtocol


class Socket:
    """Says in a log what is asked of it."""

    wary = 0

    def __init__(self, name: str, rounds: Rounds, log: list[str], read: Callable[[], None] = lambda: None) -> None:
        self.loop = asyncio.get_running_loop()
        self._name, self._rounds, self._log, self.works = name, rounds, log, read

    def read_on(self) -> None:
        self._log.append(f"read {self._name}")
        self.works()
        if self._rounds.gathers:
            self._rounds.owing.append(self)

    def write_out(self) -> None:
        self._log.append(f"write {self._name}")

    def broke(self, error: Exception) -> None:
        self._log.append(f"broke {self._name}: {error}")


def _work(seconds: float = 2 * LONG_S) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


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
async def test_a_full_round_waits_for_no_more() -> None:
    log: list[str] = []
    rounds = Rounds()
    for number in range(FULL + 1):
        assert rounds.take(Socket(f"{number}", rounds, log))
    whole = [f"read {number}" for number in range(FULL)] + [f"write {number}" for number in range(FULL)]
    assert log == whole, "the event loop may have thousands of sockets to read before it comes to the end of its turn"
    await asyncio.sleep(0)
    assert log == [*whole, f"read {FULL}"], "what comes after it is the next round"
    assert rounds.take(Socket("later", rounds, log))
    await asyncio.sleep(0)
    assert log[-1] == "read later"


@_in_a_loop
async def test_what_else_is_to_run_waits_for_no_more_rounds_than_fit_into_a_while() -> None:
    log: list[str] = []
    rounds = Rounds()
    long = Socket("long", rounds, log, lambda: _work(TURN_S))
    for socket in [long, *(Socket("other", rounds, log) for _ in range(3 * FULL))]:
        assert rounds.take(socket)
    assert log.count("read other") == FULL - 1, "of those that came with it; the others' round comes after"
    await asyncio.sleep(0)
    assert log.count("read other") == log.count("write other") == 3 * FULL
    for _ in range(FULL):
        assert rounds.take(Socket("next turn", rounds, log))
    assert log[-1] == "write next turn", "the next turn of the event loop has a while of its own"


@_in_a_loop
async def test_no_round_begins_within_another() -> None:
    log: list[str] = []
    rounds = Rounds()

    def many_come() -> None:
        for _ in range(2 * FULL):
            assert rounds.take(Socket("inner", rounds, log))

    for socket in (Socket("a", rounds, log, many_come), Socket("b", rounds, log)):
        assert rounds.take(socket)
    await asyncio.sleep(0)
    assert log[:3] == ["read a", "read b", "read inner"], "in the order in which they came, each once"
    assert log.count("read inner") == log.count("write inner") == 2 * FULL


@_in_a_loop
async def test_one_alone_is_not_kept_waiting_for_others_that_do_not_come() -> None:
    log: list[str] = []
    rounds = Rounds()
    one, other = Socket("a", rounds, log), Socket("b", rounds, log)
    for _ in range(ALONE):
        assert rounds.take(one)
        await asyncio.sleep(0)
    assert log == ["read a"] * ALONE, "nothing waits for the end of a round of one"
    for _ in range(3):
        looked = 0
        for _ in range(10 * LOOK_EVERY):
            looked += rounds.take(one)
            await asyncio.sleep(0)
        assert 10 <= looked < 5 * LOOK_EVERY, "now and then it looks whether others come"
    while not rounds.take(one):
        pass
    assert rounds.take(other)
    log.clear()
    await asyncio.sleep(0)
    assert log == ["read a", "read b", "write a", "write b"]
    assert rounds.take(one), "they do: there are rounds again"
    await asyncio.sleep(0)


@_in_a_loop
async def test_sockets_that_come_in_the_same_order_each_time_find_each_other() -> None:
    for begun in range(4):
        log: list[str] = []
        rounds = Rounds()
        sockets = [Socket(name, rounds, log) for name in "ab"]
        for number in range(ALONE + begun):
            rounds.take(sockets[number % 2])
            await asyncio.sleep(0)
        while "write a" not in log:
            assert len(log) < 100 * LOOK_EVERY
            for socket in sockets:
                if not rounds.take(socket):
                    socket.read_on()
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


@_in_a_loop
async def test_one_that_cannot_be_written_takes_no_answer_from_the_others() -> None:
    class Gone(Socket):
        def write_out(self) -> None:
            raise OSError("gone")

    log: list[str] = []
    rounds = Rounds()
    for socket in (Gone("a", rounds, log), Socket("b", rounds, log)):
        rounds.take(socket)
    await asyncio.sleep(0)
    assert log == ["read a", "read b", "broke a: gone", "write b"]


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

    slow = Socket("slow", rounds, log, _work)
    sockets = [Socket("a", rounds, log), slow, Socket("c", rounds, log)]

    async def play() -> list[str]:
        log.clear()
        for socket in sockets:
            rounds.take(socket)
        await asyncio.sleep(0)
        return [*log]

    at_once_after_it = ["read a", "read slow", "write a", "write slow", "read c", "write c"]
    assert await play() == at_once_after_it
    assert (await play())[:3] == ["read a", "write a", "read slow"], "and before it, once it is known to take long"
    slow.works = lambda: None
    for _ in range(WARY):
        assert (await play())[:3] == ["read a", "write a", "read slow"], "also if it does not each time"
    assert (await play())[:3] == ["read a", "read slow", "read c"]


class Lines:
    """WebSocket connections of one server, each of which answers a text with it, in the place where it comes."""

    def __init__(self) -> None:
        self.protocol = WebSocketProtocol.of_one_server()
        self.state = ServerState()

    def answer(self, inbox: Any, text: str) -> None:
        if text == "slow":
            _work()
        if text == "wrong":
            raise ValueError(text)
        inbox.send_at_once(text * 2)

    async def open(self) -> tuple[WebSocketProtocol, Line]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            inbox = receive.__self__.inbox
            await receive()
            await send({"type": "websocket.accept"})
            inbox.listener = lambda text: self.answer(inbox, text)
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


@_in_a_loop
async def test_answers_do_not_wait_for_the_next_frame_of_the_same_socket_that_takes_long() -> None:
    lines = Lines()
    (one, line), (other, other_line) = await lines.open(), await lines.open()
    other.data_received(frame(TEXT, b"b"))
    one.data_received(frame(TEXT, b"slow") * 3)
    await asyncio.sleep(0)
    assert [len(each) for each in line.written] == [10, 10, 10], "each by itself"
    assert other_line.written == [b"\x81\x02bb"]
    await lines.close(one, other)


@_in_a_loop
async def test_what_was_answered_is_sent_before_a_socket_that_breaks_is_given_up() -> None:
    lines = Lines()
    (one, line), (other, _) = await lines.open(), await lines.open()
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
    one.data_received(frame(TEXT, b"a") + frame(TEXT, b"wrong"))
    other.data_received(frame(TEXT, b"b"))
    await asyncio.sleep(0)
    assert line.written == [b"\x81\x02aa"] and line.closing
    assert isinstance(said[0]["exception"], ValueError)
    await lines.close(one, other)


@_in_a_loop
async def test_a_pong_that_waits_for_its_round_came_in_time() -> None:
    lines = Lines()
    (one, line), (other, _) = await lines.open(), await lines.open()
    one.ping_interval = one.ping_timeout = 1000.0
    one.send_keepalive_ping()
    assert one.pending_ping_payload is not None
    other.data_received(frame(TEXT, b"b"))
    one.data_received(frame(PONG, one.pending_ping_payload))
    one.keepalive_timeout()
    assert not line.closing and one.ping_timer is not None
    one.keepalive_timeout()
    assert line.closing, "nothing came this time"
    await lines.close(one, other)
