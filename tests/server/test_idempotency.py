"""A request that is run in its caller's task is run once, and answered to all who ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from websockets.sync.client import connect

from mcpenv import MCPEnvironment
from mcpenv.server.serve import serving
from mcpenv.server.sessions.idempotency import Answer, IdempotencyCache
from mcpenv_client.errors import OperationCancelled


class Counter(MCPEnvironment):
    """A counter."""

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        def add() -> int:
            """Count."""
            self.count += 1
            return self.count


async def _never() -> Answer:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_run_in_the_callers_task_is_answered_once_to_all_who_ask() -> None:
    async def main() -> None:
        replies, runs = IdempotencyCache(), 0
        go, task = asyncio.Event(), asyncio.current_task()
        assert task is not None

        async def run() -> Answer:
            nonlocal runs
            runs += 1
            await go.wait()
            return Answer("done")

        others = [asyncio.ensure_future(replies.once("r", b"x", run)) for _ in range(2)]
        first = asyncio.ensure_future(_here(replies, "r", run))
        await asyncio.sleep(0)
        assert replies.running("r") is not None
        others[0].cancel()
        go.set()
        assert (await first).text == (await others[1]).text == "done"
        assert (await _here(replies, "r", run)).text == "done"
        assert runs == 1

    asyncio.run(main())


async def _here(replies: IdempotencyCache, request_id: str, run: Any) -> Answer:
    task = asyncio.current_task()
    assert task is not None
    return await replies.once_here(request_id, b"x", run, task, lambda: Answer("cancelled"))


def test_a_run_that_is_cancelled_by_its_id_has_that_answer_and_the_task_goes_on() -> None:
    async def main() -> None:
        replies = IdempotencyCache()

        async def conversation() -> list[str]:
            said = [(await _here(replies, "r", _never)).text]
            await asyncio.sleep(0)  # nothing is left of the cancelling
            return [*said, (await _here(replies, "r", _never)).text]

        task = asyncio.ensure_future(conversation())
        await asyncio.sleep(0)
        running = replies.running("r")
        assert running is not None and running.cancel()
        assert await task == ["cancelled", "cancelled"]
        assert task.cancelling() == 0

    asyncio.run(main())


def test_two_cancels_are_as_one_and_leave_nothing_even_if_the_run_minds_neither() -> None:
    async def stubborn() -> Answer:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return Answer("done")

    async def main(run: Any, said: str, between: int) -> None:
        replies = IdempotencyCache()
        task = asyncio.ensure_future(_here(replies, "r", run))
        await asyncio.sleep(0)
        running = replies.running("r")
        assert running is not None and running.cancel()
        for _ in range(between):
            await asyncio.sleep(0)
        assert running.cancel()
        assert (await task).text == said
        assert task.cancelling() == 0

    asyncio.run(main(_never, "cancelled", 0))
    asyncio.run(main(stubborn, "done", 3))


def test_a_run_whose_task_is_cancelled_by_others_is_no_answer() -> None:
    async def main() -> None:
        replies = IdempotencyCache()
        task = asyncio.ensure_future(_here(replies, "r", _never))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(replies.once("r", b"x", _never))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(OperationCancelled):
            await waiting
        assert replies.running("r") is None

    asyncio.run(main())


def test_a_frame_sent_again_is_known_by_its_text_without_its_trace_context() -> None:
    step = '{"type": "step", "data": {"type": "call_tool", "tool_name": "add", "arguments": {}}, "request_id": "r"'
    with serving(Counter) as url, connect(url.replace("http", "ws") + "/ws") as socket:

        def answer(frame: str) -> Any:
            socket.send(frame)
            return json.loads(socket.recv(30))

        assert answer('{"type": "reset"}')["type"] == "observation"
        first = answer(step + ', "traceparent": "00-1", "tracestate": "a=\\"1\\""}')
        assert first["data"]["observation"]["result"]["data"] == 1
        assert answer(step + ', "traceparent": "00-2"}') == first == answer(step + "}")
        assert answer(step + " }")["data"]["code"] == "VALIDATION_ERROR"


def test_a_trace_context_among_blanks_is_found_in_linear_time() -> None:
    frame = '{"type": "reset", "request_id": "r", "traceparent": "00-1"' + " " * 1_000_000 + "}"
    with serving(Counter) as url, connect(url.replace("http", "ws") + "/ws") as socket:
        socket.send(frame)
        assert json.loads(socket.recv(20))["type"] == "observation"  # quadratic: 190 s for 200,000 blanks
