from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from mcpenv import CallToolAction, MCPEnvironment
from mcpenv.execution.concurrency.lock import Lock, lent
from mcpenv_client.errors import OperationCancelled


async def settle() -> None:
    """Let every task that can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_free_lock_is_acquired_at_once_and_only_once() -> None:
    lock = Lock()
    assert not lock.locked and lock.try_acquire() and lock.locked
    assert not lock.try_acquire() and not lock.try_acquire(shared=True)
    lock.release()
    assert not lock.locked and lock.try_acquire(shared=True)


def test_shared_holders_run_together_and_exclusive_ones_alone() -> None:
    lock = Lock()
    assert lock.try_acquire(shared=True) and lock.try_acquire(shared=True)
    assert not lock.try_acquire()
    lock.release(shared=True)
    assert not lock.try_acquire()
    lock.release(shared=True)
    assert lock.try_acquire()


def test_the_lock_is_granted_in_order_of_arrival() -> None:
    async def main() -> list[int]:
        lock, order = Lock(), []
        await lock.acquire()

        async def wait(number: int) -> None:
            await lock.acquire()
            order.append(number)
            await asyncio.sleep(0)
            lock.release()

        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(wait(number)))
            await settle()
        assert not lock.try_acquire()
        lock.release()
        assert not lock.try_acquire()  # the queue goes first
        await asyncio.gather(*tasks)
        assert not lock.locked
        return order

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_a_shared_waiter_does_not_overtake_an_exclusive_one_that_waits() -> None:
    async def main() -> list[str]:
        lock, order = Lock(), []
        await lock.acquire(shared=True)

        async def wait(name: str, shared: bool) -> None:
            await lock.acquire(shared=shared)
            order.append(name)
            lock.release(shared=shared)

        exclusive = asyncio.create_task(wait("exclusive", False))
        await settle()
        shared = asyncio.create_task(wait("shared", True))
        await settle()
        assert order == [] and not lock.try_acquire(shared=True)
        lock.release(shared=True)
        await asyncio.gather(exclusive, shared)
        return order

    assert asyncio.run(main()) == ["exclusive", "shared"]


@pytest.mark.parametrize("granted", [False, True], ids=["waiting", "granted already"])
def test_a_cancelled_waiter_gives_its_place_back(granted: bool) -> None:
    async def main() -> None:
        lock = Lock()
        await lock.acquire()
        cancelled = asyncio.create_task(lock.acquire())
        await settle()
        other = asyncio.create_task(lock.acquire())
        await settle()
        if granted:
            lock.release()  # to the first, whose task does not know yet
            cancelled.cancel()
        else:
            cancelled.cancel()
            await settle()
            lock.release()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await asyncio.wait_for(other, 5)
        lock.release()
        assert not lock.locked

    asyncio.run(main())


def test_cancelling_an_exclusive_waiter_lets_shared_ones_behind_it_in() -> None:
    async def main() -> None:
        lock = Lock()
        await lock.acquire(shared=True)
        exclusive = asyncio.create_task(lock.acquire())
        await settle()
        shared = asyncio.create_task(lock.acquire(shared=True))
        await settle()
        exclusive.cancel()
        await asyncio.wait_for(shared, 5)
        lock.release(shared=True)
        lock.release(shared=True)
        assert not lock.locked

    asyncio.run(main())


def test_the_lock_is_passed_on_between_threads_and_their_loops() -> None:
    lock, order = Lock(), []
    first_has_it, second_waits = threading.Event(), threading.Event()

    async def first() -> None:
        await lock.acquire()
        first_has_it.set()
        assert second_waits.wait(10)
        order.append("first")
        lock.release()

    async def second() -> None:
        waiting = asyncio.create_task(lock.acquire())
        await settle()
        second_waits.set()
        await asyncio.wait_for(waiting, 10)
        order.append("second")
        lock.release()

    def run(body: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await body()

        asyncio.run(main())

    one = threading.Thread(target=run, args=(first,))
    one.start()
    assert first_has_it.wait(10)
    other = threading.Thread(target=run, args=(second,))
    other.start()
    one.join(10)
    other.join(10)
    assert order == ["first", "second"] and not lock.locked


def test_a_waiter_whose_loop_has_closed_is_passed_over() -> None:
    lock = Lock()
    assert lock.try_acquire()
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        await lock.acquire()

    task = loop.create_task(wait())
    loop.run_until_complete(settle())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    lock.release()
    assert not lock.locked and lock.try_acquire()


def test_steps_of_one_environment_take_turns_and_concurrent_ones_run_together() -> None:
    class Env(MCPEnvironment):
        def __init__(self) -> None:
            self.inside, self.most = 0, 0
            self.all_in = asyncio.Event()

            async def count() -> int:
                """Count who is inside."""
                self.inside += 1
                self.most = max(self.most, self.inside)
                await settle()
                self.inside -= 1
                return self.most

            self.tool(count, name="alone", description="One at a time.")
            self.tool(count, name="together", description="Together.", concurrent=True)
            self.tool(count, name="reading", description="Together.", annotations={"readOnlyHint": True})

    async def most(tool: str) -> int:
        env = Env()
        await env.reset_async()
        await asyncio.gather(*(env.step_async(CallToolAction(tool_name=tool)) for _ in range(4)))
        assert env.step_count == 4
        return env.most

    assert [asyncio.run(most(tool)) for tool in ("alone", "together", "reading")] == [1, 4, 4]


def test_a_lent_lock_is_used_without_waiting_and_stays_held() -> None:
    async def main() -> None:
        lock = Lock()
        await lock.acquire()
        waiting = asyncio.create_task(lock.acquire())
        await settle()
        token = lent.set(lock)
        with await lock.hold(limit=1):
            assert lock.holders == 1
        lent.reset(token)
        await settle()
        assert not waiting.done()
        lock.release()
        await waiting

    asyncio.run(main())


def test_cancelling_ends_the_holder_with_a_reason_and_later_operations_run() -> None:
    async def main() -> None:
        lock = Lock()

        async def work() -> None:
            with await lock.hold():
                await asyncio.Event().wait()

        running, waiting = (asyncio.create_task(work()) for _ in range(2))
        assert not lock.cancel()
        await settle()
        assert lock.cancel()
        with pytest.raises(OperationCancelled):
            await running
        await settle()
        assert lock.locked and not waiting.done()
        waiting.cancel()
        await asyncio.wait({waiting})

    asyncio.run(main())
