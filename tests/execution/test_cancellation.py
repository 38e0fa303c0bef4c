from __future__ import annotations

import asyncio
import contextlib

import pytest

from mcpenv.execution.concurrency.cancellation import AgentCall, Deadline, InFlight
from mcpenv_client import SessionLost


async def settle() -> None:
    """Let every task that can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def call(in_flight: InFlight) -> None:
    with in_flight.call():
        await asyncio.Event().wait()


def test_stop_ends_calls_in_flight_with_session_lost_and_refuses_further_ones() -> None:
    async def main() -> None:
        in_flight = InFlight()
        calls = [asyncio.create_task(call(in_flight)) for _ in range(2)]
        await settle()
        assert len(in_flight) == 2
        in_flight.stop()
        for each in calls:
            with pytest.raises(SessionLost):
                await each
            assert each.cancelling() == 0
        assert len(in_flight) == 0
        with pytest.raises(SessionLost):
            await call(in_flight)

    asyncio.run(main())


@pytest.mark.parametrize("first", ["stop", "cancel"])
def test_a_cancellation_by_somebody_else_is_not_swallowed_by_stop(first: str) -> None:
    async def main() -> None:
        in_flight = InFlight()
        task = asyncio.create_task(call(in_flight))
        await settle()
        for do in (in_flight.stop, task.cancel) if first == "stop" else (task.cancel, in_flight.stop):
            do()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())


def test_a_call_that_catches_its_cancellation_does_not_cancel_what_follows() -> None:
    async def main() -> None:
        in_flight = InFlight()

        async def stubborn() -> str:
            with in_flight.call():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            await asyncio.sleep(0)
            return "went on"

        task = asyncio.create_task(stubborn())
        await settle()
        in_flight.stop()
        assert await task == "went on"

    asyncio.run(main())


def test_a_deadline_inside_a_call_is_told_apart_from_stop() -> None:
    async def main() -> None:
        in_flight = InFlight()
        with in_flight.call():
            with pytest.raises(TimeoutError), Deadline(0.001):
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        assert not in_flight.stopped

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
        in_flight, free = InFlight(), asyncio.Event()

        async def other() -> None:
            with in_flight.call():
                await free.wait()

        async def last() -> None:
            with in_flight.call():
                await in_flight.alone()

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
