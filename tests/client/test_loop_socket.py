"""The WebSocket of the async client: messages that come before, while and after somebody waits, in any form."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from client_servers import LIMIT_S, Patient, in_loop, named, observation, said, server, until_goodbye
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode

from mcpenv_client import EnvClient, SessionLost
from mcpenv_client.loop_socket import LoopSocket
from mcpenv_client.wire import FrameType


@asynccontextmanager
async def talking(handler: Callable[[ServerConnection], Awaitable[None]], **options: Any) -> AsyncIterator[LoopSocket]:
    async with server(handler) as url:
        address = url.replace("http", "ws")
        socket = await connect(address, compression=None, create_connection=LoopSocket, **options)
        assert isinstance(socket, LoopSocket)
        try:
            yield socket
        finally:
            await socket.close()


async def hear(socket: LoopSocket) -> str | bytes:
    """The next message, as `Connection` asks for it."""
    message = socket.taken()
    if message is None:
        arrival = socket.arrival()
        if arrival is not None:
            await arrival
            message = socket.taken()
    return await socket.receive() if message is None else message


async def say(socket: LoopSocket, text: str) -> None:
    sending = socket.say(text)
    if sending is not None:
        await sending


async def in_many_forms(socket: ServerConnection) -> None:
    """At each word, three messages: in another form each time."""
    async for word in socket:
        assert isinstance(word, str)
        if word == "whole":
            for index in range(3):
                await socket.send(f"{index}")
        elif word == "at once":
            socket.transport.write(b"".join(bytes([0x81, 1]) + b"%d" % index for index in range(3)))
        elif word == "byte by byte":
            for byte in b"".join(bytes([0x81, 1]) + b"%d" % index for index in range(3)):
                socket.transport.write(bytes([byte]))
                await asyncio.sleep(0)
        elif word == "in fragments":
            for index in range(3):
                await socket.send([f"{index}"[:1], "", ""])
        elif word == "with pings between":
            for index in range(3):
                await socket.ping()
                await socket.send(f"{index}")
        else:
            for index in range(3):
                await socket.send(f"{index}".encode())


FORMS = ["whole", "at once", "byte by byte", "in fragments", "with pings between", "bytes"]


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("form", FORMS)
@in_loop
async def test_messages_in_any_form_come_in_their_order(form: str, waits: bool) -> None:
    async with talking(in_many_forms) as socket:
        for following in (form, "whole", form, "in fragments", form):
            expected: list[str | bytes] = [b"0", b"1", b"2"] if following == "bytes" else ["0", "1", "2"]
            if waits:
                first = asyncio.ensure_future(hear(socket))
                await asyncio.sleep(0)
                await say(socket, following)
                heard = [await first]
            else:
                await say(socket, following)
                await (await socket.ping())  # the answer to it comes after them
                heard = [await hear(socket)]
            heard += [await hear(socket), await hear(socket)]
            assert heard == expected


@pytest.mark.parametrize("moment", range(5))
@in_loop
async def test_a_message_that_comes_as_its_reader_is_cancelled_is_the_next_ones(moment: int) -> None:
    async with talking(in_many_forms) as socket:
        for _ in range(20):
            first = asyncio.ensure_future(hear(socket))
            await asyncio.sleep(0)
            await say(socket, "whole")
            arrival = socket._waiter
            assert arrival is not None
            came = asyncio.Event()
            arrival.add_done_callback(lambda _, came=came: came.set())  # type: ignore[misc]
            if moment == 0:
                first.cancel()
            else:
                await came.wait()
                for _ in range(moment - 1):
                    await asyncio.sleep(0)
                first.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await first
            heard = [] if first.cancelled() else [first.result()]
            while len(heard) < 3:
                heard.append(await hear(socket))
            assert heard == ["0", "1", "2"]


@in_loop
async def test_what_is_no_text_ends_the_connection() -> None:
    async def badly(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send("good")
        socket.transport.write(bytes([0x81, 2, 0xC3, 0x28]))
        with contextlib.suppress(ConnectionClosed):
            await socket.recv()

    async with talking(badly) as socket:
        await say(socket, "begin")
        assert await hear(socket) == "good"
        with pytest.raises(ConnectionClosed, match="1007"):
            await hear(socket)
        with pytest.raises(ConnectionClosed):
            await say(socket, "more")


@in_loop
async def test_what_was_said_before_the_end_is_heard_then_the_end() -> None:
    async def leaving(socket: ServerConnection) -> None:
        await socket.recv()
        for index in range(3):
            await socket.send(f"{index}")

    async with talking(leaving) as socket:
        await say(socket, "begin")
        await socket.wait_closed()
        assert [await hear(socket) for _ in range(3)] == ["0", "1", "2"]
        with pytest.raises(ConnectionClosed):
            await hear(socket)


@in_loop
async def test_a_server_that_does_not_read_is_waited_for_when_it_is_written_to() -> None:
    reads = asyncio.Event()

    async def slowly(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await reads.wait()
        socket.transport.resume_reading()
        size = 0
        for _ in range(64):
            size += len(await socket.recv())
        await socket.send(f"{size}")

    async with talking(slowly, write_limit=1 << 16) as socket:
        text = "x" * (1 << 19)
        sent = [socket.say(text) for _ in range(64)]
        waited_for = [asyncio.ensure_future(each) for each in sent if each is not None]
        assert waited_for
        await asyncio.sleep(0)
        assert not waited_for[-1].done()
        reads.set()
        await asyncio.gather(*waited_for)
        assert await hear(socket) == f"{64 << 19}"


@in_loop
async def test_the_end_ends_the_wait_of_who_writes() -> None:
    async def mute(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await leaves.wait()
        socket.transport.abort()

    leaves = asyncio.Event()
    async with talking(mute, write_limit=1 << 16) as socket:
        sent = [socket.say("x" * (1 << 20)) for _ in range(32)]
        waited_for = [asyncio.ensure_future(each) for each in sent if each is not None]
        assert waited_for
        await asyncio.sleep(0)
        leaves.set()
        for each in waited_for:
            with pytest.raises(ConnectionClosed):
                await each


@in_loop
async def test_calls_with_names_are_answered_whatever_becomes_of_the_one_that_reads() -> None:
    """The first reads for all; cancelled, in any moment, it takes nobody's answer with it."""
    patient = Patient()
    async with server(patient) as url, EnvClient(url, message_timeout_s=LIMIT_S) as env:
        await env.reset()
        for turn in range(60):
            reading = asyncio.ensure_future(env.call_tool("hold", {"word": "x"}, request_id=f"held-{turn}"))
            await asyncio.sleep(0)
            others = [
                asyncio.ensure_future(env.call_tool("echo", {"word": f"{turn}-{i}"}, request_id=f"{turn}-{i}"))
                for i in range(5)
            ]
            for _ in range(turn % 12):
                await asyncio.sleep(0)
            reading.cancel()
            assert [(await other).text for other in others] == [f"{turn}-{i}" for i in range(5)]
        assert (await env.call_tool("echo", {"word": "last"})).text == "last"


@in_loop
async def test_an_answer_in_fragments_is_an_answer() -> None:
    async def pieces(socket: ServerConnection) -> None:
        async for frame in until_goodbye(socket):
            text = named(said("a") if frame.type is FrameType.STEP else observation(), frame.request_id)
            await socket.send([text[:10], text[10:20], text[20:]])

    async with server(pieces) as url, EnvClient(url) as env:
        await env.reset()
        assert [(await env.call_tool("echo")).text for _ in range(3)] == ["a"] * 3
        both = await asyncio.gather(*(env.call_tool("echo", request_id=f"{i}") for i in range(2)))
        assert [result.text for result in both] == ["a", "a"]


@in_loop
async def test_a_refusal_that_came_before_it_was_asked_is_the_answer() -> None:
    async def full(socket: ServerConnection) -> None:
        await socket.send('{"type":"error","data":{"message":"full","code":"CAPACITY_REACHED"}}')

    async with server(full) as url:
        env = EnvClient(url)
        await env.connect()
        assert env._connection is not None
        await asyncio.wait_for(env._connection._socket.wait_closed(), LIMIT_S)  # type: ignore[attr-defined]
        connection = env._connection
        with pytest.raises(Exception, match="full"):
            await connection.exchange('{"type":"state"}', "state")
        with pytest.raises(SessionLost):
            await connection.exchange('{"type":"state"}', "state")


def test_what_it_takes_of_the_package_is_there() -> None:
    """Not all of it is documented: a version without it is to fail here."""
    for name in ("process_event", "connection_lost", "send_data", "drain", "send", "recv", "wait_closed", "close_exc"):
        assert name in dir(ClientConnection), name
    frame = WebSocketFrame(Opcode.TEXT, b"x")
    assert (frame.opcode, bytes(frame.data), frame.fin) == (Opcode.TEXT, b"x", True)
