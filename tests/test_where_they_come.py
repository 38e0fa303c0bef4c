"""Steps that ``/ws`` begins where their frames come are as all others: in the socket's task, in its context."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from mcpenv import MCPEnvironment
from mcpenv.serve import serving

PATIENCE_S = 30

seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


class Looks(MCPEnvironment):
    """Tools that look at where they run, and wait in the middle or not."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.tasks: list[Any] = []

        @self.tool
        async def task(waits: bool) -> bool:
            """Whether the task is that of all calls before, from the beginning to the end."""
            here = asyncio.current_task()
            self.tasks.append(here)
            if waits:
                await asyncio.sleep(0)
            return here is not None and all(each is asyncio.current_task() for each in self.tasks)

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


def test_close_is_heard_where_it_comes(address: str) -> None:
    async def moves(socket: ClientConnection) -> int | None:
        await socket.send('{"type": "close"}')
        await socket.wait_closed()
        return socket.close_code

    assert play(address, moves) == 1000
