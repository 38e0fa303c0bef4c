from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from environments import CounterEnvironment
from strict_python import STRICT_PYTHON

from mcpenv import CallToolAction, MCPEnvironment
from mcpenv.execution.concurrency import event_loop
from mcpenv.execution.concurrency.event_loop import BlockingRunner, without_loop


class Meeting(MCPEnvironment):
    """Tools that find out which loop and which task they run on."""

    def __init__(self) -> None:
        self.loops: list[Any] = []

        @self.tool
        async def here() -> str:
            """Say which task runs."""
            self.loops.append(asyncio.get_running_loop())
            await asyncio.sleep(0)
            task = asyncio.current_task()
            assert task is not None and task.get_loop() is asyncio.get_running_loop()
            async with asyncio.timeout(10), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
            return "here"

        @self.tool
        def own_loop() -> str:
            """Run a loop of the tool's own."""
            return asyncio.run(asyncio.sleep(0, "ran"))


def test_blocking_calls_of_one_environment_keep_to_one_loop() -> None:
    env = Meeting()
    for _ in range(3):
        env.call_tool("here")
    assert len(set(map(id, env.loops))) == 1


def test_blocking_calls_work_inside_a_running_loop_and_leave_it_as_it_was() -> None:
    env = Meeting()

    async def main() -> None:
        outer, task = asyncio.get_running_loop(), asyncio.current_task()
        env.reset()
        assert env.call_tool("here").text == "here"
        assert asyncio.get_running_loop() is outer and asyncio.current_task() is task
        async with asyncio.timeout(10):
            await asyncio.sleep(0)
        assert env.call_tool("own_loop").text == "ran"
        assert (await env.step_async(CallToolAction(tool_name="here"))).text == "here"
        assert env.loops[-1] is outer and env.loops[0] is not outer

    asyncio.run(main())
    assert env.call_tool("here").text == "here"
    assert env.loops[-1] is env.loops[0]


def test_sync_code_sees_no_event_loop_and_may_run_its_own() -> None:
    class Env(Meeting):
        def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
            asyncio.run(asyncio.sleep(0))

        def score(self, call: Any, outcome: Any) -> float:
            return asyncio.run(asyncio.sleep(0, 1.0))

        def close(self) -> None:
            asyncio.run(asyncio.sleep(0))

    env = Env()
    implicit, running = env.call_tool("own_loop"), env.call_tool("own_loop")
    assert (implicit.text, running.text) == ("ran", "ran") and running.reward == 1.0

    async def main() -> None:
        await env.reset_async()
        assert (await env.step_async(CallToolAction(tool_name="own_loop"))).text == "ran"
        await env.close_async()

    asyncio.run(main())


def test_a_coroutine_in_a_blocking_call_that_raises_leaves_the_loop_usable() -> None:
    runner = BlockingRunner()

    async def fail() -> None:
        raise LookupError

    async def fine() -> int:
        await asyncio.sleep(0)
        return 1

    for _ in range(2):
        with pytest.raises(LookupError):
            runner.run(fail())
        assert runner.run(fine()) == 1


def test_a_drive_inside_a_drive_uses_another_loop() -> None:
    runner = BlockingRunner()
    loops: list[Any] = []

    async def level(depth: int) -> int:
        own = asyncio.get_running_loop()
        loops.append(own)
        await asyncio.sleep(0)
        below = runner.run(level(depth - 1)) if depth else 0
        assert asyncio.get_running_loop() is own
        await asyncio.sleep(0)
        return below + 1

    assert runner.run(level(2)) == 3
    assert len(set(map(id, loops))) == 3


def test_context_variables_set_before_a_blocking_call_are_seen_in_it() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    env = MCPEnvironment()

    @env.tool
    async def read() -> str:
        """Read the variable."""
        return variable.get()

    env.reset()
    variable.set("set")
    assert env.call_tool("read").text == "set"


def test_without_loop_hides_the_running_loop_and_brings_it_back() -> None:
    async def main() -> None:
        outer = asyncio.get_running_loop()

        def inside() -> int:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            slept: int = without_loop(asyncio.run, asyncio.sleep(0, 5))
            return slept

        assert without_loop(inside) == 5
        assert asyncio.get_running_loop() is outer
        await asyncio.sleep(0)

    asyncio.run(main())


@pytest.mark.parametrize("tools", [("add",), ("add_sync",), ("add", "add_sync")], ids=lambda t: "+".join(t))
def test_eight_threads_on_one_environment_lose_no_step(tools: tuple[str, ...]) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    env = CounterEnvironment(target=10**9)
    env.reset()
    problems: list[BaseException] = []
    together = threading.Barrier(8)  # a thread that ends before another starts gives it its number

    def work(number: int) -> None:
        try:
            together.wait(30)
            for turn in range(50):
                observation = env.call_tool(tools[(number + turn) % len(tools)])
                assert observation.error is None
        except BaseException as error:  # noqa: BLE001 - shown below
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(before)
    assert problems == [] and env.count == 400 and env.step_count == 400
    assert env.trajectory is not None
    assert [step.call.step for step in env.trajectory.steps] == list(range(1, 401))
    assert [step.outcome.value for step in env.trajectory.steps] == list(range(1, 401))
    assert len(env.threads) > 1


def test_an_environment_made_in_a_thread_that_ended_goes_on_elsewhere() -> None:
    made: list[Meeting] = []

    def make() -> None:
        env = Meeting()
        assert env.call_tool("here").text == "here"
        made.append(env)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    (env,) = made
    assert env.call_tool("here").text == "here"
    env.close()


def test_environments_that_one_thread_made_do_not_wait_for_each_other_in_threads_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Tests whose parameters are exceptions keep many environments, which may have all the loops.
    monkeypatch.setattr(event_loop, "_LOOPS", event_loop._Loops())
    meeting = threading.Barrier(4)

    class Meeter(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            async def meet() -> str:
                """Wait for all the others."""
                with ThreadPoolExecutor() as threads:
                    await asyncio.get_running_loop().run_in_executor(threads, meeting.wait, 10)
                return "met"

    envs = [Meeter() for _ in range(4)]
    for env in envs:
        env.reset()
    texts: list[str] = []
    threads = [threading.Thread(target=lambda env=env: texts.append(env.call_tool("meet").text)) for env in envs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for env in envs:
        env.close()  # gives the loop back to where it is from
    assert texts == ["met"] * 4


def test_many_environments_do_with_a_bounded_number_of_loops() -> None:
    envs = [Meeting() for _ in range(150)]
    for env in envs:
        env.call_tool("here")
    assert len({id(env.loops[0]) for env in envs}) <= 70
    assert envs[0].call_tool("here").text == envs[-1].call_tool("here").text == "here"


SCRIPT = """
    import asyncio, gc, sys, threading
    sys.path.insert(0, {tests!r})
    from environments import EVERYTHING_CALLS, CounterEnvironment, EverythingEnvironment, NotesEnvironment
    from fastmcp import FastMCP
    from mcpenv import CallToolAction, MCPEnvironment

    server = FastMCP("handed in")

    @server.tool
    def hello() -> str:
        "Say hello."
        return "hello"

    class Handed(MCPEnvironment):
        def __init__(self):
            super().__init__(server)

    def use(closes):
        env = EverythingEnvironment()
        for name, arguments in EVERYTHING_CALLS.items():
            env.reset()
            assert env.call_tool(name, arguments).error is None, name
        notes, handed = NotesEnvironment(), Handed()
        assert notes.call_tool("write", {{"text": "note"}}).reward == 1.0
        assert handed.call_tool("hello").text == "hello"
        timed = env.reset() and env.call_tool("plain", {{"text": "x"}}, timeout_s=20)
        assert timed.text == "x"
        notes.close()
        if closes:
            env.close()
            handed.close()

    async def main():
        use(closes=True)
        env = CounterEnvironment()
        await env.reset_async()
        assert (await env.step_async(CallToolAction(tool_name="add_sync"))).reward == 1.0
        await env.close_async()

    for closes in (True, False):
        use(closes)
        thread = threading.Thread(target=use, args=(closes,))
        thread.start()
        thread.join()
    asyncio.run(main())
    gc.collect()
    ours = [thread.name for thread in threading.enumerate() if thread.name != "mcpenv-worker"]
    assert ours == ["MainThread"], ours
    print("clean")
"""


@pytest.mark.smoke
def test_a_script_ends_without_warnings_or_threads_of_ours(request: pytest.FixtureRequest) -> None:
    script = textwrap.dedent(SCRIPT).format(tests=str(request.path.parents[1]))
    command = [*STRICT_PYTHON, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("clean\n", "", 0)


class Barrier(MCPEnvironment):
    """An environment with a tool that returns when the tools of all environments run."""

    def __init__(self, barrier: threading.Barrier) -> None:
        @self.tool
        def meet() -> str:
            """Wait for the others."""
            barrier.wait(60)
            return "met"

        @self.tool
        async def loop() -> int:
            """Return the identity of the running loop."""
            return id(asyncio.get_running_loop())


def test_environments_of_many_threads_never_wait_for_each_other() -> None:
    many = 100  # more than have a loop of their own
    barrier = threading.Barrier(many)

    def play(_: int) -> tuple[str, int, int]:
        env = Barrier(barrier)
        env.reset()
        met = env.call_tool("meet").text
        loops = [int(env.call_tool("loop").text) for _ in range(2)]
        barrier.wait(60)  # all are alive at the same time
        env.close()
        return met, loops[0], loops[1]

    with ThreadPoolExecutor(many) as pool:
        played = list(pool.map(play, range(many)))
    assert {met for met, _, _ in played} == {"met"}
    assert all(first == second for _, first, second in played)
    assert len({first for _, first, _ in played}) == many


def test_freeing_a_runner_runs_no_python_code_in_which_ctrl_c_would_be_dropped() -> None:
    async def nothing() -> None:
        pass

    called: list[str] = []
    runners = [BlockingRunner() for _ in range(3)]
    for runner in runners:
        runner.run(nothing())
    loop = runners[-1].loop
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    runners.clear()
    del runner
    sys.setprofile(None)
    assert called == []
    again = [BlockingRunner() for _ in range(3)]
    for runner in again:
        runner.run(nothing())
    assert any(runner.loop is loop for runner in again)  # it was freed for others
