"""Frames of one ``/ws`` socket: served in its task and its context, answered in order, until either side leaves."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

PATIENCE_S = 30

seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


class Looks(MCPEnvironment):
    """Tools that look at where they run, and wait in the middle or not."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    held, closed = threading.Event(), threading.Event()
    loading: asyncio.Task[str] | None = None

    def close(self) -> None:
        """Say so."""
        Looks.closed.set()

    def __init__(self) -> None:
        self.ran_in: list[Any] = []
        self.noted: list[int] = []

        @self.tool
        async def task(waits: bool) -> bool:
            """Whether the task is that of all calls before, from the beginning to the end."""
            here = asyncio.current_task()
            self.ran_in.append(here)
            if waits:
                await asyncio.sleep(0)
            return here is not None and all(each is asyncio.current_task() for each in self.ran_in)

        @self.tool
        async def keep(value: str, waits: bool) -> str:
            """Set a context variable, which is as it was set also after waiting; gives what it was before."""
            before = seen.get()
            token = seen.set(value)
            if waits:
                await asyncio.sleep(0)
            assert seen.get() == value
            if value == "reset":
                seen.reset(token)
            return before

        @self.tool
        async def limits(waits: bool) -> str:
            """Use what needs a task: a timeout, a group of tasks."""
            try:
                async with asyncio.timeout(0 if waits else 30), asyncio.TaskGroup() as group:
                    if waits:
                        group.create_task(asyncio.sleep(30))
            except TimeoutError:
                return "late"
            return "in time"

        @self.tool
        async def cancels_itself() -> str:
            """Cancel the running task, and mind when it comes."""
            running = asyncio.current_task()
            assert running is not None
            running.cancel()
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                running.uncancel()
            return "went on"

        @self.tool
        async def load() -> str:
            """Wait for what all sessions wait for; whoever comes first begins it."""
            if Looks.loading is None or Looks.loading.done():
                Looks.loading = asyncio.create_task(asyncio.sleep(0.001, "loaded"))
            return await Looks.loading

        @self.tool
        async def watched() -> str:
            """Wait for a task that another task waits for too."""
            job = asyncio.create_task(asyncio.sleep(0, "done"))

            async def watch() -> str:
                return f"seen {await job}"

            watching = asyncio.create_task(watch())
            await job
            return await watching

        @self.tool
        async def note(number: int) -> list[int]:
            """Note a number; gives all of them."""
            self.noted.append(number)
            return self.noted[:]

        @self.tool
        async def waits_for_a_child(waits: bool) -> str:
            """Give a child that does not let itself be cancelled the time that it takes."""

            async def child() -> str:
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    for _ in range(5):
                        await asyncio.sleep(0)
                return "saved"

            task = asyncio.create_task(child())
            if waits:
                await asyncio.sleep(0)
            else:
                asyncio.get_running_loop().call_soon(task.cancel)
            async with asyncio.timeout(0):
                return await task

        @self.tool
        async def holds() -> None:
            """Wait for ever."""
            Looks.held.set()
            await asyncio.Event().wait()

        @self.tool
        async def fails(waits: bool) -> str:
            """Fail."""
            if waits:
                await asyncio.sleep(0)
            raise ValueError("on purpose")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(Looks) as url:
        yield url.replace("http", "ws") + "/ws"


def frame(tool: str, request_id: str | None = None, **arguments: Any) -> str:
    data = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
    return json.dumps({"type": "step", "data": data, **({"request_id": request_id} if request_id else {})})


async def call(socket: ClientConnection, tool: str, **arguments: Any) -> Any:
    await socket.send(frame(tool, **arguments))
    return outcome(await socket.recv())


def outcome(text: str | bytes) -> Any:
    observation = json.loads(text)["data"]["observation"]
    return observation["error"]["message"] if observation["error"] else observation["result"]["data"]


def play(address: str, moves: Any) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(PATIENCE_S), connect(address) as socket:
            await socket.send('{"type": "reset"}')
            assert json.loads(await socket.recv())["type"] == "observation"
            return await moves(socket)

    return asyncio.run(main())


def test_all_calls_of_a_socket_run_in_one_task_whether_they_wait_or_not(address: str) -> None:
    async def moves(socket: ClientConnection) -> None:
        for waits in (False, True, False, False, True, True, False):
            assert await call(socket, "task", waits=waits) is True

    play(address, moves)


@pytest.mark.parametrize("waits", [False, True])
def test_context_variables_belong_to_the_socket(address: str, waits: bool) -> None:
    async def moves(socket: ClientConnection) -> list[str]:
        return [
            await call(socket, "keep", value=value, waits=waits if number % 2 else not waits)
            for number, value in enumerate(["a", "b", "reset", "c"])
        ]

    assert play(address, moves) == ["nothing", "a", "b", "b"]
    assert play(address, moves)[0] == "nothing"


def test_what_needs_a_task_has_one(address: str) -> None:
    async def moves(socket: ClientConnection) -> list[str]:
        return [await call(socket, "limits", waits=waits) for waits in (False, True, False, True)]

    assert play(address, moves) == ["in time", "late", "in time", "late"]


def test_a_tool_may_cancel_its_task_before_it_first_waits(address: str) -> None:
    async def moves(socket: ClientConnection) -> list[Any]:
        return [await call(socket, "cancels_itself"), await call(socket, "task", waits=True)]

    assert play(address, moves) == ["went on", True]


def test_failures_are_answers_and_the_socket_goes_on(address: str) -> None:
    async def moves(socket: ClientConnection) -> list[Any]:
        said = [await call(socket, "fails", waits=waits) for waits in (False, True)]
        await socket.send("no JSON")
        assert json.loads(await socket.recv())["data"]["code"] == "INVALID_JSON"
        return [*said, await call(socket, "task", waits=False)]

    first, second, last = play(address, moves)
    assert "on purpose" in first and "on purpose" in second and last is True


def test_frames_of_one_segment_are_answered_in_their_order(address: str) -> None:
    waits = [False, True, True, False, False, False, True, False] * 8

    async def moves(socket: ClientConnection) -> list[str | None]:
        # Written without a turn of the loop between them, so that many frames come at once.
        texts = [frame("limits", waits=late) for late in waits]
        await asyncio.gather(*(socket.send(text) for text in texts))
        return [outcome(await socket.recv()) for _ in texts]

    assert play(address, moves) == ["late" if late else "in time" for late in waits]


def test_a_client_that_leaves_in_the_middle_ends_its_session_only(address: str) -> None:
    async def moves(socket: ClientConnection) -> Any:
        async with connect(address) as other:
            await other.send('{"type": "reset"}')
            await other.recv()
            await other.send(frame("limits", waits=False))
            other.transport.abort()
        return await call(socket, "limits", waits=False)

    assert play(address, moves) == "in time"


def test_a_client_that_leaves_a_step_that_waits_and_does_not_come_again_has_its_instance_closed() -> None:
    """Who hears that it has left is not inside of the step, which could not close its own instance."""
    headers = {"Mcpenv-Session-Id": "s" * 32, "Mcpenv-Session-Token": "t" * 32}

    async def main(address: str) -> None:
        async with connect(address, additional_headers=headers) as socket:
            await socket.send('{"type": "reset"}')
            await socket.recv()
            await call(socket, "limits", waits=False)
            Looks.held.clear()
            await socket.send(frame("holds"))
            await asyncio.to_thread(Looks.held.wait, PATIENCE_S)
            Looks.closed.clear()
            socket.transport.abort()

    with serving(Looks, ServerConfig(resume_grace_s=0.1)) as url:
        asyncio.run(asyncio.wait_for(main(url.replace("http", "ws") + "/ws"), PATIENCE_S))
        assert Looks.closed.wait(PATIENCE_S)


def test_a_close_frame_ends_the_socket(address: str) -> None:
    async def moves(socket: ClientConnection) -> int | None:
        await socket.send('{"type": "close"}')
        await socket.wait_closed()
        return socket.close_code

    assert play(address, moves) == 1000


def test_what_comes_in_fragments_or_is_no_text_keeps_its_place(address: str) -> None:
    async def moves(socket: ClientConnection) -> list[Any]:
        said = []
        for number in range(0, 20, 2):
            text = frame("note", number=number)
            # Not awaited one after the other, so that both come at once.
            await asyncio.gather(socket.send([text[:9], text[9:]]), socket.send(frame("note", number=number + 1)))
            said += [outcome(await socket.recv()), outcome(await socket.recv())]
        await asyncio.gather(socket.send(b"binary"), socket.send(frame("note", number=20)))
        refused = json.loads(await socket.recv())
        assert refused["type"] == "error"
        return [*said, outcome(await socket.recv())]

    assert play(address, moves) == [list(range(number + 1)) for number in range(21)]


def test_a_reset_in_fragments_is_before_the_step_behind_it(address: str) -> None:
    async def moves(socket: ClientConnection) -> list[Any]:
        await call(socket, "note", number=1)
        await asyncio.gather(socket.send(['{"type": ', '"reset"}']), socket.send(frame("note", number=2)))
        assert json.loads(await socket.recv())["data"]["info"]["episode_id"]
        assert json.loads(await socket.recv())["data"]["info"]["return"] is None
        await socket.send('{"type": "trajectory"}')
        return [step["call"]["step"] for step in json.loads(await socket.recv())["data"]["steps"]]

    assert play(address, moves) == [1]


@pytest.mark.parametrize("waits", [False, True])
def test_a_cancelled_wait_waits_for_what_it_waits_for(address: str, waits: bool) -> None:
    async def moves(socket: ClientConnection) -> Any:
        return await call(socket, "waits_for_a_child", waits=waits)

    assert play(address, moves) == "saved"


def test_what_a_step_waits_for_others_may_wait_for_too(address: str) -> None:
    async def moves(socket: ClientConnection) -> Any:
        return [await call(socket, "watched") for _ in range(5)]

    async def together() -> list[Any]:
        async def one() -> list[Any]:
            async with connect(address) as socket:
                await socket.send('{"type": "reset"}')
                await socket.recv()
                return [await call(socket, "load") for _ in range(20)]

        async with asyncio.timeout(PATIENCE_S):
            return [each for many in await asyncio.gather(*(one() for _ in range(8))) for each in many]

    assert play(address, moves) == ["seen done"] * 5
    assert asyncio.run(together()) == ["loaded"] * 160


@pytest.mark.slow
def test_frames_behind_the_one_at_which_a_session_is_taken_over_are_not_begun() -> None:
    """What was not answered has not happened: the client sends it again on its next socket."""
    rounds = 20

    async def main(address: str) -> list[tuple[int, int]]:
        counted = []
        for number in range(rounds):
            headers = {"Mcpenv-Session-Id": f"{number:032d}", "Mcpenv-Session-Token": "t" * 32}
            async with connect(address, additional_headers=headers) as first:
                await first.send('{"type": "reset"}')
                await first.recv()
                sending = asyncio.ensure_future(_flood(first))
                async with connect(address, additional_headers=headers) as second:
                    answered = await sending
                    await second.send('{"type": "state"}')
                    counted.append((answered, json.loads(await second.recv())["data"]["step_count"]))
        return counted

    with serving(Looks) as url:
        counted = asyncio.run(asyncio.wait_for(main(url.replace("http", "ws") + "/ws"), PATIENCE_S))
    assert len(counted) == rounds
    # The last one may be under way when the socket is lost, and its answer with it.
    assert all(taken - answered <= 1 for answered, taken in counted), counted


async def _flood(socket: ClientConnection) -> int:
    """Send steps for as long as the socket is there; how many were answered."""
    answered = 0

    async def send() -> None:
        for _ in range(3000):
            await socket.send(frame("limits", waits=False))

    sending = asyncio.ensure_future(send())
    try:
        async for _ in socket:
            answered += 1
    except ConnectionClosed:
        pass
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    return answered


@pytest.mark.parametrize("short", [b"\x81\x00", b"\x81\x01a", b"\x89\x02hi"])
def test_a_frame_without_a_mask_is_refused_however_short_it_is(address: str, short: bytes) -> None:
    async def main() -> bytes:
        where = urlsplit(address)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(
            b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(short)
        try:
            return await reader.readexactly(4)
        finally:
            writer.close()

    # A close frame with code 1002, and no ping before it.
    head = asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert (head[0], int.from_bytes(head[2:], "big")) == (0x88, 1002)
