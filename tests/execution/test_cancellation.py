from __future__ import annotations

import asyncio
import contextlib

import pytest

from mcpenv.execution.concurrency.lock import Lock
from mcpenv.execution.execution import AgentCall
from mcpenv.execution.user_code import Deadline
from mcpenv_client import SessionLost


async def settle() -> None:
    """Let every task that can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def call(lock: Lock) -> None:
    with await lock.hold(shared=True):
        await asyncio.Event().wait()


def test_stop_ends_the_operations_that_hold_the_lock_with_session_lost_and_refuses_further_ones() -> None:
    async def main() -> None:
        lock = Lock()
        calls = [asyncio.create_task(call(lock)) for _ in range(2)]
        await settle()
        assert lock.holders == 2
        lock.stop()
        for each in calls:
            with pytest.raises(SessionLost):
                await each
            assert each.cancelling() == 0
        assert lock.holders == 0
        with pytest.raises(SessionLost):
            await call(lock)

    asyncio.run(main())


@pytest.mark.parametrize("first", ["stop", "cancel"])
def test_a_cancellation_by_somebody_else_is_not_swallowed_by_stop(first: str) -> None:
    async def main() -> None:
        lock = Lock()
        task = asyncio.create_task(call(lock))
        await settle()
        for do in (lock.stop, task.cancel) if first == "stop" else (task.cancel, lock.stop):
            do()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())


def test_a_call_that_catches_its_cancellation_does_not_cancel_what_follows() -> None:
    async def main() -> None:
        lock = Lock()

        async def stubborn() -> str:
            with await lock.hold(shared=True):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            await asyncio.sleep(0)
            return "went on"

        task = asyncio.create_task(stubborn())
        await settle()
        lock.stop()
        assert await task == "went on"

    asyncio.run(main())


def test_a_deadline_inside_a_call_is_told_apart_from_stop() -> None:
    async def main() -> None:
        lock = Lock()
        with await lock.hold(shared=True):
            with pytest.raises(TimeoutError), Deadline(0.001):
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        assert not lock.stopped

    asyncio.run(main())


def test_of_two_deadlines_the_one_that_passed_raises() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError), Deadline(0.001), Deadline(60):
            await asyncio.Event().wait()
        with Deadline(60):
            with pytest.raises(TimeoutError), Deadline(0.001):
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        with Deadline(0), Deadline(None):
            pass  # nothing waits: there is nothing to cancel
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_deadline_recognizes_subclasses_of_cancelled_error_and_lets_other_cancellations_pass() -> None:
    class Sub(asyncio.CancelledError):
        pass

    async def late() -> None:
        with Deadline(0.001):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise Sub from None

    async def cancelled() -> None:
        with Deadline(60):
            await asyncio.Event().wait()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await late()
        task = asyncio.create_task(cancelled())
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_alone_returns_when_the_other_calls_have_ended() -> None:
    async def main() -> None:
        lock, free = Lock(), asyncio.Event()

        async def other() -> None:
            with await lock.hold(shared=True):
                await free.wait()

        async def last() -> None:
            with await lock.hold(shared=True):
                await lock.alone()

        others = [asyncio.create_task(other()) for _ in range(2)]
        await settle()
        waiting = asyncio.create_task(last())
        await settle()
        assert not waiting.done()
        free.set()
        await asyncio.wait_for(waiting, 5)
        await asyncio.gather(*others)

    asyncio.run(main())


@pytest.mark.parametrize("stoppable", [True, False], ids=["async tool", "sync tool, or scoring"])
def test_a_client_that_leaves_cancels_its_call_only_if_that_can_be_stopped(stoppable: bool) -> None:
    async def main() -> None:
        scored, go_on = asyncio.Event(), asyncio.Event()
        call = AgentCall()

        async def step() -> None:
            call.stoppable = stoppable
            await go_on.wait()
            scored.set()

        task = asyncio.create_task(call.result(step()))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await settle()
        assert scored.is_set() != stoppable

    asyncio.run(main())
