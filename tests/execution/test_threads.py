from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from environments import NotesEnvironment

from mcpenv import CallToolAction, MCPEnvironment, State, ToolCall, ToolOutcome
from mcpenv.execution.concurrency.event_loop import INLINE
from mcpenv.execution.concurrency.threads import Abandoned, OwnThread, Runner, Threads


@pytest.fixture(params=["inline", "threads", "own thread"])
def runner(request: pytest.FixtureRequest) -> Any:
    make: dict[str, Callable[[], Runner]] = {"inline": lambda: INLINE, "threads": Threads, "own thread": OwnThread}
    runner = make[request.param]()
    yield runner
    runner.close()


variable = contextvars.ContextVar("variable", default="unset")


def test_every_runner_gives_back_what_the_code_returns_and_raises(runner: Runner) -> None:
    def give(*args: int, **kwargs: int) -> Any:
        return args, kwargs

    def fail(error: BaseException) -> None:
        raise error

    async def main() -> None:
        assert await runner.run(give, 1, two=2) == ((1,), {"two": 2})
        for error in (ValueError("x"), SystemExit(1)):
            with pytest.raises(type(error)) as raised:
                await runner.run(fail, error)
            assert raised.value is error
        with pytest.raises(RuntimeError):  # a coroutine cannot raise it (PEP 479)
            await runner.run(fail, StopIteration())
        assert await runner.run(give) == ((), {})

    asyncio.run(main())


def test_every_runner_runs_in_the_context_of_its_caller(runner: Runner) -> None:
    async def main() -> None:
        variable.set("mine")
        assert await runner.run(variable.get) == "mine"

    asyncio.run(main())


def test_no_runner_shows_the_code_an_event_loop(runner: Runner) -> None:
    def look() -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    async def main() -> bool:
        return bool(await runner.run(look))

    assert not asyncio.run(main())


def test_in_process_code_runs_in_the_caller_s_thread() -> None:
    assert INLINE.inline and asyncio.run(INLINE.run(threading.get_ident)) == threading.get_ident()


def test_the_pool_runs_code_beside_the_loop_and_uses_idle_threads_again() -> None:
    pool = Threads()

    async def main() -> None:
        first = await pool.run(threading.get_ident)
        assert first != threading.get_ident()
        assert await pool.run(threading.get_ident) == first
        meeting = threading.Barrier(3)
        idents = await asyncio.gather(
            *(pool.run(lambda: (meeting.wait(10), threading.get_ident())[1]) for _ in range(3))
        )
        assert len(set(idents)) == 3

    asyncio.run(main())


def test_where_no_thread_can_be_had_code_is_refused_and_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, ran = Threads(), list[str]()

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", none_left)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await pool.run(ran.append, "refused")
        await asyncio.gather(*(pool.run(ran.append, name) for name in ("first", "second")))

    asyncio.run(main())
    assert sorted(ran) == ["first", "second"]


def test_an_own_thread_is_always_the_same_and_ends_when_it_is_closed() -> None:
    own = OwnThread()

    async def main() -> None:
        threads = [await own.run(threading.current_thread) for _ in range(3)]
        assert len(set(threads)) == 1 and threads[0].daemon
        own.close()
        threads[0].join(10)
        assert not threads[0].is_alive()

    asyncio.run(main())


@pytest.mark.parametrize("make", [Threads, OwnThread])
def test_a_cancelled_caller_leaves_code_that_cannot_be_stopped(make: Any) -> None:
    runner: Runner = make()

    async def main() -> None:
        begun, release, finished = threading.Event(), threading.Event(), threading.Event()

        def stuck() -> None:
            begun.set()
            release.wait(20)

        task = asyncio.create_task(runner.run(stuck))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(Abandoned) as abandoned:
            await task
        abandoned.value.when_finished(finished.set)
        assert not finished.is_set()
        release.set()
        assert await asyncio.to_thread(finished.wait, 10)
        again = threading.Event()
        abandoned.value.when_finished(again.set)
        assert again.is_set()
        assert await runner.run(lambda: "goes on") == "goes on"

    asyncio.run(main())
    runner.close()


def test_a_thread_whose_caller_s_loop_is_gone_ends_its_code_in_peace() -> None:
    pool = Threads()
    begun, release, finished = threading.Event(), threading.Event(), threading.Event()

    def stuck() -> None:
        begun.set()
        release.wait(20)

    async def main() -> None:
        task = asyncio.create_task(pool.run(stuck))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(Abandoned) as abandoned:
            await task
        abandoned.value.when_finished(finished.set)

    asyncio.run(main())
    release.set()
    assert finished.wait(10)
    assert asyncio.run(pool.run(lambda: "goes on")) == "goes on"


def test_an_idle_thread_holds_nothing_of_its_last_code() -> None:
    class Thing:
        pass

    pool = Threads()

    async def main() -> weakref.ref[Thing]:
        thing = Thing()
        await pool.run(lambda: thing)
        return weakref.ref(thing)

    reference = asyncio.run(main())
    for _ in range(200):
        gc.collect()
        if reference() is None:
            break
        threading.Event().wait(0.01)
    assert reference() is None


def test_a_deadline_in_process_runs_the_sync_tool_in_a_worker() -> None:
    env = MCPEnvironment()

    @env.tool
    def where() -> int:
        """Say which thread runs."""
        return threading.get_ident()

    env.reset()
    here, there = env.call_tool("where"), env.call_tool("where", timeout_s=20)
    assert here.text == str(threading.get_ident()) and there.error is None and there.text != here.text


def test_a_thread_affine_environment_never_hops_in_process() -> None:
    env = NotesEnvironment()
    env.reset()
    assert env.call_tool("write", {"text": "a"}, timeout_s=20).reward == 1.0
    assert env.call_tool("read").text == '["a"]'
    assert env.state.notes == 1
    env.close()


class Everywhere(MCPEnvironment):
    """Notes in which thread each piece of its code runs."""

    def __init__(self) -> None:
        self.threads = {"constructor": threading.get_ident()}

        @self.tool
        def tool() -> str:
            """A sync tool."""
            self.note("tool")
            return "done"

        @self.tool
        async def later() -> str:
            """An async tool."""
            self.note("later")
            return "done"

    def note(self, name: str) -> None:
        self.threads[name] = threading.get_ident()

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Any:
        self.note("reset")

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        self.note(f"score of {call.name}")
        return 1.0

    @property
    def state(self) -> State:
        self.note("state")
        return State()

    def close(self) -> None:
        self.note("close")


@pytest.mark.parametrize("affine", [False, True])
def test_invariant_6_on_a_server_sync_code_runs_beside_the_event_loop(affine: bool) -> None:
    async def main() -> dict[str, int]:
        runner: Runner = OwnThread() if affine else Threads()
        env: Everywhere = await runner.run(Everywhere)
        execution = env._execution
        execution.user_code.runner = runner
        await execution.reset()
        for tool in ("tool", "later"):
            assert (await env.step_async(CallToolAction(tool_name=tool))).reward == 1.0
        await execution.read_state()
        await execution.close()
        runner.close()
        return env.threads

    threads = asyncio.run(main())
    here = threading.get_ident()
    assert threads.pop("later") == threads.pop("score of later") == here
    assert here not in threads.values()
    assert threads["tool"] == threads["score of tool"]
    assert len(set(threads.values())) == 1 or not affine


class OneThread(Everywhere):
    THREAD_AFFINE = True


def test_a_thread_affine_score_of_an_async_tool_or_of_a_refused_call_runs_in_its_thread() -> None:
    async def main() -> dict[str, int]:
        thread = OwnThread()
        env: OneThread = await thread.run(OneThread)
        env._execution.user_code.runner = thread
        await env._execution.reset()
        for tool in ("later", "no_such_tool"):
            await env.step_async(CallToolAction(tool_name=tool))
        await env._execution.close()
        thread.close()
        return env.threads

    threads = asyncio.run(main())
    assert threads["score of later"] == threads["score of no_such_tool"] == threads["reset"] != threading.get_ident()


def test_invariant_6_a_stuck_sync_tool_delays_no_other_environment() -> None:
    release, order = threading.Event(), []

    class Slow(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            def slow() -> str:
                """Be slow."""
                release.wait(20)
                order.append("slow")
                return ""

            @self.tool
            def quick() -> str:
                """Be quick."""
                order.append("quick")
                return ""

    async def main() -> None:
        pool = Threads()
        envs = [Slow(), Slow()]
        for env in envs:
            env._execution.user_code.runner = pool
        slow = asyncio.create_task(envs[0].step_async(CallToolAction(tool_name="slow")))
        same = asyncio.create_task(envs[0].step_async(CallToolAction(tool_name="quick")))
        await envs[1].step_async(CallToolAction(tool_name="quick"))
        assert order == ["quick"]
        release.set()
        await asyncio.gather(slow, same)

    asyncio.run(main())
    assert order == ["quick", "slow", "quick"]


def test_openenv_s_name_for_thread_affine_is_understood() -> None:
    class Env(MCPEnvironment):
        REQUIRES_SINGLE_THREAD_EXECUTOR = True

    class Derived(Env):
        pass

    assert Env.THREAD_AFFINE and Derived.THREAD_AFFINE and not MCPEnvironment.THREAD_AFFINE
