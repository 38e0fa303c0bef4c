"""Frames of one ``/ws`` socket: served in its task and its context, answered in order, until either side leaves."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from mcpenv import MCPEnvironment
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
            """Return True if the same task ran all calls before, from the first line to the last."""
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


@pytest.mark.parametrize("waits", [False, True])
def test_context_variables_belong_to_the_socket(address: str, waits: bool) -> None:
    async def moves(socket: ClientConnection) -> list[str]:
        return [
            await call(socket, "keep", value=value, waits=waits if number % 2 else not waits)
            for number, value in enumerate(["a", "b", "reset", "c"])
        ]

    assert play(address, moves) == ["nothing", "a", "b", "b"]
    assert play(address, moves)[0] == "nothing"


def test_a_tool_may_cancel_its_task_before_it_first_waits(address: str) -> None:
    async def moves(socket: ClientConnection) -> list[Any]:
        return [await call(socket, "cancels_itself"), await call(socket, "task", waits=True)]

    assert play(address, moves) == ["went on", True]


@pytest.mark.slow
def test_frames_behind_the_one_at_which_a_session_is_taken_over_are_not_begun() -> None:
    """Drop what was not answered: the client sends it again on its next socket."""
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
