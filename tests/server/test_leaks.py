from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from environments import EVERYTHING_CALLS, CounterEnvironment, EverythingEnvironment, NotesEnvironment
from fastmcp import Client
from websockets.server import ServerProtocol

from mcpenv import CallToolAction, MCPEnvironment
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, ToolCall, ToolOutcome


def used(
    make: Callable[[], MCPEnvironment], use: Callable[[MCPEnvironment], Any], count: int
) -> list[weakref.ref[Any]]:
    """References to environments that were made, used and dropped."""
    references = []
    for _ in range(count):
        env = make()
        use(env)
        references.append(weakref.ref(env))
    del env
    return references


def alive(references: list[weakref.ref[Any]]) -> int:
    gc.collect()
    return sum(reference() is not None for reference in references)


def step_and_close(env: MCPEnvironment) -> None:
    env.reset()
    for tool in ("add", "add_sync", "nonsense"):
        env.call_tool(tool)
    env.close()


def step_only(env: MCPEnvironment) -> None:
    env.reset()
    env.call_tool("add")


def close_unused(env: MCPEnvironment) -> None:
    env.close()


def use_the_loop(env: MCPEnvironment) -> None:
    async def main() -> None:
        await env.reset_async()
        await env.step_async(CallToolAction(tool_name="add"))
        await env.close_async()

    asyncio.run(main())


def fail(env: MCPEnvironment) -> None:
    for _ in range(2):
        assert env.call_tool("add", {"by": "x"}).error is not None
    env.close()


@pytest.mark.parametrize("use", [step_and_close, step_only, close_unused, use_the_loop, fail])
def test_no_environment_outlives_its_use(use: Callable[[MCPEnvironment], Any]) -> None:
    assert alive(used(lambda: CounterEnvironment(100), use, 50)) == 0


def test_an_environment_with_every_kind_of_tool_is_freed() -> None:
    def use(env: MCPEnvironment) -> None:
        for name, arguments in EVERYTHING_CALLS.items():
            env.reset()
            assert env.call_tool(name, arguments).error is None
        env.close()

    assert alive(used(EverythingEnvironment, use, 10)) == 0


def test_an_environment_that_was_served_over_mcp_is_freed() -> None:
    def use(env: MCPEnvironment) -> None:
        async def main() -> None:
            async with Client(env.mcp) as client:
                await client.list_tools()
                await client.call_tool("add", {"by": 1})
            await env.close_async()

        asyncio.run(main())

    assert alive(used(lambda: CounterEnvironment(100), use, 5)) == 0


def test_failures_and_records_hold_no_environment(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "mcpenv")  # what pytest captures holds the traceback

    class Broken(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            def crash() -> str:
                """Crash."""
                raise LookupError(self)

            @self.tool
            def keep() -> Any:
                """Give the environment itself away."""
                return {"self": str(self)}

        def score(self, call: Any, outcome: Any) -> float:
            self.last = outcome
            return 1.0

    def use(env: MCPEnvironment) -> None:
        env.reset()
        env.call_tool("crash")
        env.call_tool("keep")
        env.close()

    assert alive(used(Broken, use, 20)) == 0


def test_an_environment_in_a_thread_of_its_own_leaves_none_behind() -> None:
    def use(env: MCPEnvironment) -> None:
        env.reset()
        env.call_tool("write", {"text": "x"}, timeout_s=20)
        env.close()

    before = set(threading.enumerate())
    assert alive(used(NotesEnvironment, use, 20)) == 0
    assert not set(threading.enumerate()) - before


def test_threads_that_step_environments_leave_no_loop_behind() -> None:
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    def work() -> None:
        env = CounterEnvironment(100)
        step_only(env)
        env.close()

    for _ in range(10):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    gc.collect()
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= files + 3  # one loop of the main thread may be new


MEMORY = """
    import asyncio, gc, os, resource, sys, threading
    sys.path.insert(0, {tests!r})
    from environments import CounterEnvironment

    def resident():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    made = 0

    def open_and_close(count):
        global made
        for _ in range(count):
            env = CounterEnvironment(100)
            env.reset()
            env.call_tool("add")
            env.call_tool("add_sync")
            env.close()
            made += 1

    open_and_close(1_000)
    early, threads, files = resident(), threading.active_count(), len(os.listdir("/proc/self/fd"))
    open_and_close(9_000)
    late = resident()
    alive = sum(isinstance(thing, CounterEnvironment) for thing in gc.get_objects())
    same = (threads, files) == (threading.active_count(), len(os.listdir("/proc/self/fd")))
    print(made, early, late, alive, same)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads resident memory from /proc")
def test_ten_thousand_environments_leave_memory_threads_and_files_as_they_were() -> None:
    script = textwrap.dedent(MEMORY).format(tests=os.path.dirname(os.path.dirname(__file__)))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    made, early, late, alive, same = done.stdout.split()
    assert (made, alive, same) == ("10000", "0", "True")
    assert abs(int(late) - int(early)) <= 0.02 * int(early), f"{early} bytes after 1,000, {late} after 10,000"


class Referred(CounterEnvironment):
    """Weak references to all instances."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    made: weakref.WeakSet[Referred] = weakref.WeakSet()

    def __init__(self) -> None:
        super().__init__(100)
        self.made.add(self)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_instances_of_sessions_are_freed_at_their_end_without_the_collector() -> None:
    with serving(Referred) as url:
        there = len(Referred.made)  # what the server makes to look at
        for _ in range(3):
            with EnvClient(url).sync() as env:
                env.reset()
                env.call_tool("add")
                env.call_tool("add_sync")
                assert len(Referred.made) > there
        until_freed = time.monotonic() + 30
        while len(Referred.made) > there:
            assert time.monotonic() < until_freed, gc.get_referrers(*Referred.made)


class Together(MCPEnvironment):
    """Tools that run together: one that cannot be stopped, one that goes on."""

    def __init__(self) -> None:
        self.left, self.go_on, self.closed = threading.Event(), asyncio.Event(), threading.Event()

        @self.tool(concurrent=True, timeout_s=0.05)
        def stuck() -> int:
            """Pass the deadline."""
            assert self.left.wait(30)
            return 1

        @self.tool(concurrent=True)
        async def slow() -> int:
            """Go on for longer."""
            await self.go_on.wait()
            return 2

    async def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return 1.0

    def close(self) -> None:
        self.closed.set()


def test_a_tool_beside_one_that_could_not_be_stopped_keeps_its_result_when_the_instance_is_closed() -> None:
    async def main() -> None:
        env = Together()
        await env.reset_async()
        stuck = asyncio.create_task(env.step_async(CallToolAction(tool_name="stuck")))
        slow = asyncio.create_task(env.step_async(CallToolAction(tool_name="slow")))
        assert (await stuck).truncated
        await env.close_async()
        env.left.set()
        assert await asyncio.to_thread(env.closed.wait, 30)
        env.go_on.set()
        done: Any = await slow
        assert done.result is not None and done.result.data == 2
        assert env.trajectory is not None and env.trajectory.steps[-1].fault is None

    asyncio.run(main())


def test_a_connection_that_has_ended_is_freed_without_the_collector() -> None:
    def left() -> int:
        return sum(issubclass(type(each), ServerProtocol) for each in gc.get_objects())

    with serving(NotesEnvironment) as url:
        gc.collect()
        before = left()
        gc.disable()
        try:
            for _ in range(20):
                with EnvClient(url).sync() as env:
                    env.reset()
            limit = time.monotonic() + 30
            while left() > before + 1:  # the server's end of the last one may be yet to come
                assert time.monotonic() < limit, f"{left()} connections are left"
                time.sleep(0.01)
        finally:
            gc.enable()
