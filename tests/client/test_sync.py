"""The blocking clients: no thread for each of them, usable from any thread, interruptible, safe to fork around."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any

import pytest
from client_servers import (
    Echo,
    Patient,
    frames,
    free_port,
    in_loop,
    observation,
    refused,
    said,
    server_in_thread,
    until,
)
from strict_python import STRICT_PYTHON
from websockets.asyncio.server import ServerConnection

from mcpenv_client import (
    CallToolAction,
    ConnectionFailed,
    EnvClient,
    EpisodeDone,
    GenericEnvClient,
)
from mcpenv_client.portal import PORTAL, Portal

PROCESS_LIMIT_S = 60


def run_script(script: str, url: str, *python: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a Python of its own, a strict one unless another is named."""
    command = [*(python or STRICT_PYTHON), "-c", script, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_LIMIT_S, check=False)


def test_an_episode(url: str, echo: Echo) -> None:
    with EnvClient(url).sync() as env:
        assert env.reset(episode_id="mine").info == {"episode_id": "mine"}
        result = env.step(CallToolAction(tool_name="echo", arguments={"word": "a"}))
        assert (result.text, result.reward, result.done, result.error) == ("a", 1.0, False, None)
        assert env.call_tool("echo", {"word": "b"}).reward == 2.0
        assert [tool.name for tool in env.list_tools()] == ["echo"]
        assert env.state().step_count == 2
    assert echo.ended.wait(PROCESS_LIMIT_S)
    assert echo.frames == ["reset", "step", "step", "step", "state", "close"]


def test_every_method_of_the_client_is_there_and_blocks(url: str) -> None:
    client = EnvClient(url)
    sync = client.sync()
    coroutines = [name for name, _ in inspect.getmembers(EnvClient, inspect.iscoroutinefunction) if name[0] != "_"]
    assert {"connect", "close", "reset", "step", "call_tool", "list_tools", "state", "metadata", "schema"} <= {
        *coroutines
    }
    for name in coroutines:
        blocking = getattr(sync, name)
        assert not inspect.iscoroutinefunction(blocking)
        assert blocking.__doc__.startswith(getattr(client, name).__doc__)  # `close` says more
    assert sync.base_url == client.base_url
    with pytest.raises(AttributeError):
        sync.nothing
    sync.close()


class Longer(EnvClient[Any, Any, Any]):
    greeting = "hello"

    async def greet(self) -> str:
        return (await self.call_tool("echo", {"word": self.greeting})).text

    def shout(self) -> str:
        return self.greeting.upper()

    async def _hidden(self) -> int:
        return 1


def test_methods_that_a_subclass_adds_are_there_too(url: str) -> None:
    with Longer(url).sync() as env:
        assert (env.greet(), env.shout(), env.greeting, env._hidden()) == ("hello", "HELLO", "hello", 1)


def retried(method: Any) -> Any:
    """A decorator that does not look like a coroutine function."""
    return wraps(method)(lambda *args: method(*args))


class Many(EnvClient[Any, Any, Any]):
    @retried
    async def both(self) -> list[str]:
        results = await asyncio.gather(*(self.call_tool("echo", {"word": word}) for word in "ab"))
        return [result.text for result in results]


def test_a_method_of_a_subclass_may_use_asyncio(url: str) -> None:
    with Many(url).sync() as env:
        assert env.both() == ["a", "b"]


def test_one_client_is_one_session_in_both_forms(url: str, echo: Echo) -> None:
    client = EnvClient(url)
    with client.sync() as env:
        assert client.sync().reset().info == {"episode_id": "episode-1"}
        assert env.call_tool("echo", {"word": "a"}).reward == 1.0
        with pytest.raises(RuntimeError, match="two event loops"):
            asyncio.run(client.call_tool("echo", {"word": "b"}))
    assert echo.connections == 1


def test_errors_are_raised_in_the_caller(url: str) -> None:
    sync = EnvClient(f"http://127.0.0.1:{free_port()}").sync()
    with pytest.raises(ConnectionFailed):
        sync.reset()

    async def done(socket: ServerConnection) -> None:
        async for _ in frames(socket):
            await socket.send(refused("EPISODE_DONE", "over"))

    with server_in_thread(done) as address, EnvClient(address).sync() as env, pytest.raises(EpisodeDone, match="over"):
        env.call_tool("t")


def test_256_clients_share_one_thread(url: str, echo: Echo) -> None:
    others = set(threading.enumerate())
    with EnvClient(url).sync() as first:
        first.reset()
        before = set(threading.enumerate())
        clients = [EnvClient(url).sync() for _ in range(256)]
        for index, env in enumerate(clients):
            env.reset()
            assert env.call_tool("echo", {"word": f"{index}"}).text == f"{index}"
        assert set(threading.enumerate()) <= before  # one of another test may end
        assert sum(thread.name == "mcpenv-client" for thread in before - others) <= 1
        for env in clients:
            env.close()
    assert echo.connections == 257


def test_many_threads_with_one_client_take_turns(url: str, echo: Echo) -> None:
    with EnvClient(url).sync() as env, ThreadPoolExecutor(16) as pool:
        env.reset()
        words = [f"w{index}" for index in range(200)]
        texts = list(pool.map(lambda word: env.call_tool("echo", {"word": word}).text, words))
    assert texts == words
    assert sorted(echo.echoed) == sorted(words)


@in_loop
async def test_it_works_inside_a_running_event_loop() -> None:
    with server_in_thread(Echo()) as url, EnvClient(url).sync() as env:  # as in a notebook
        assert env.reset().info == {"episode_id": "episode-1"}
        assert env.call_tool("echo", {"word": "x"}).text == "x"


def test_inside_a_coroutine_of_its_own_loop_it_says_what_to_do(url: str) -> None:
    class Inward(EnvClient[Any, Any, Any]):
        async def inward(self) -> None:
            self.sync().reset()

    with Inward(url).sync() as env, pytest.raises(RuntimeError, match="use the async client"):
        env.inward()


def test_the_generic_client_is_blocking_too(url: str) -> None:
    with GenericEnvClient(url).sync() as env:
        assert env.reset().observation == {}
        assert env.call_tool("echo", {"word": "x"}).observation["result"]["data"] == "x"
        assert env.state() == {"episode_id": "e", "step_count": 1}


def test_copying_does_not_loop_for_ever(url: str) -> None:
    assert copy.copy(EnvClient(url).sync()).base_url == url


CTRL_C = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs this in the background has it ignored
from mcpenv_client import EnvClient, SessionLost
env = EnvClient(sys.argv[1]).sync()
env.reset()
try:
    env.call_tool("wait")
except KeyboardInterrupt:
    print("interrupted", flush=True)
try:
    env.call_tool("again")
except SessionLost as lost:
    print("lost", flush=True)
env.reset()
env.close()
print("end", flush=True)
"""


@pytest.mark.smoke
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_interrupts_a_call_and_loses_the_session() -> None:
    asked, gone = threading.Event(), threading.Event()

    async def wait(socket: ServerConnection) -> None:
        async for text in frames(socket):
            if '"wait"' in text:
                asked.set()
                await socket.wait_closed()
                gone.set()
            else:
                await socket.send(observation())

    with server_in_thread(wait) as url:
        command = [*STRICT_PYTHON, "-c", CTRL_C, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert asked.wait(PROCESS_LIMIT_S)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=PROCESS_LIMIT_S)
            finally:
                process.kill()
        assert (out.split(), err, process.returncode) == (["interrupted", "lost", "end"], "", 0)
        assert gone.wait(PROCESS_LIMIT_S)  # the server sees that its step is wanted no more


def test_an_interrupt_at_any_point_leaves_no_call_running() -> None:
    code = Portal.call.__code__
    PORTAL.call(partial(asyncio.sleep, 0))
    running: dict[int, asyncio.Task[Any] | None] = {}

    async def call(index: int) -> None:
        running[index] = asyncio.current_task()
        try:
            await asyncio.Event().wait()
        finally:
            del running[index]

    def interrupt_at(point: int) -> Any:
        """A trace function that raises at a point in `Portal.call`, as a signal's handler may."""
        seen = 0

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal seen
            if frame.f_code is code:
                frame.f_trace_opcodes = True
                seen += event in ("line", "opcode")  # Python 3.12 has no opcodes here
                if event in ("line", "opcode") and seen == point:
                    raise KeyboardInterrupt
            return trace

        return trace

    def interrupted(point: int, ended: threading.Event) -> None:
        sys.settrace(interrupt_at(point))
        try:
            PORTAL.call(partial(call, point))
        except BaseException:  # noqa: BLE001 - whatever ended it
            ended.set()
        finally:
            sys.settrace(None)
        PORTAL.call(partial(asyncio.sleep, 0))

    point = 0
    while True:
        point += 1
        ended = threading.Event()
        thread = threading.Thread(target=interrupted, args=(point, ended), daemon=True)
        thread.start()
        # The first point that is past everything before the wait: that call waits, as it should.
        if not ended.wait(1.0):
            break
        thread.join(PROCESS_LIMIT_S)
    assert point > 4
    assert list(running) == [point]

    async def stop_it() -> None:
        task = running[point]
        assert task is not None
        task.cancel()

    PORTAL.call(stop_it)
    thread.join(PROCESS_LIMIT_S)
    assert not running


CTRL_C_NAMED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from mcpenv_client import EnvClient
env = EnvClient(sys.argv[1]).sync()
env.reset()
try:
    env.call_tool("hold", {"word": "a"}, request_id="mine")
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(env.call_tool("echo", {"word": "b"}).text, flush=True)
env.close()
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_costs_a_call_with_a_request_id_nothing_but_its_answer() -> None:
    server = Patient()
    with server_in_thread(server) as url:
        command = [*STRICT_PYTHON, "-c", CTRL_C_NAMED, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert server.held.wait(PROCESS_LIMIT_S)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=PROCESS_LIMIT_S)
            finally:
                process.kill()
    assert (out.split(), err, process.returncode) == (["interrupted", "b"], "", 0)
    assert server.ran == ["a", "b"]


FORK = """
import os, sys, threading
from mcpenv_client import EnvClient, SessionLost
url = sys.argv[1]
parent = EnvClient(url).sync()
parent.reset()
assert parent.call_tool("echo", {"word": "before"}).text == "before"
pid = os.fork()
if pid == 0:
    try:
        try:
            parent.call_tool("echo", {"word": "stolen"})
        except SessionLost as lost:
            assert "process" in str(lost), lost
        with EnvClient(url).sync() as own:
            own.reset()
            assert own.call_tool("echo", {"word": "child"}).text == "child"
        assert parent.reset().info == {"episode_id": "episode-3"}  # a new session, asked for
        parent.close()
        assert sum(thread.name == "mcpenv-client" for thread in threading.enumerate()) == 1
    except BaseException as error:
        print("child:", repr(error), flush=True)
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert parent.call_tool("echo", {"word": "after"}).text == "after"
parent.close()
print("end", flush=True)
"""


@pytest.mark.smoke
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_a_loop_of_its_own_and_leaves_the_parents_session_alone(url: str, echo: Echo) -> None:
    ran = run_script(FORK, url)
    # Python 3.12 warns of forking with threads, which is what is tried here.
    noise = [line for line in ran.stderr.splitlines() if "fork" not in line]
    assert (ran.stdout.split(), noise, ran.returncode) == (["end"], [], 0), ran.stdout + ran.stderr
    assert echo.echoed == ["before", "child", "after"]


FORK_OF_RESUMABLE = """
import os, sys
from mcpenv_client import EnvClient
parent = EnvClient(sys.argv[1], resume=True).sync()
parent.reset()
pid = os.fork()
if pid == 0:
    parent.reset()
    parent.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert parent.call_tool("echo", {"word": "after"}).text == "after"
parent.close()
print("end", flush=True)
"""


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_resume_the_session_of_its_parent() -> None:
    server, paths = Patient(), []

    async def noted(socket: ServerConnection) -> None:
        assert socket.request is not None
        paths.append(socket.request.path)
        await server(socket)

    with server_in_thread(noted) as url:
        ran = run_script(FORK_OF_RESUMABLE, url)
    assert (ran.stdout.split(), ran.returncode) == (["end"], 0), ran.stderr
    assert len(paths) == 2
    assert not any("resume=1" in path for path in paths)


CLOSED = """
import sys
from mcpenv_client import EnvClient
with EnvClient(sys.argv[1]).sync() as env:
    env.reset()
print("end")
"""

OPEN_AT_EXIT = """
import sys
from mcpenv_client import EnvClient
env = EnvClient(sys.argv[1]).sync()
env.reset()
print("end")
"""

DROPPED = """
import gc, sys, warnings
warnings.simplefilter("always")
from mcpenv_client import EnvClient
env = EnvClient(sys.argv[1]).sync()
env.reset()
del env
gc.collect()
with EnvClient(sys.argv[1]).sync() as other:
    while other.call_tool("echo", {"word": "closed?"}).reward < 1000 and other.state().step_count < 3:
        pass
print("end")
"""


@pytest.mark.process
def test_a_program_that_closes_its_clients_leaves_nothing_open(url: str) -> None:
    ran = run_script(CLOSED, url)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("end\n", "", 0)


@pytest.mark.smoke
def test_a_program_that_closes_nothing_ends_all_the_same(url: str) -> None:
    ran = run_script(OPEN_AT_EXIT, url, sys.executable)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("end\n", "", 0)
    assert "was not closed" in run_script(OPEN_AT_EXIT, url).stderr


IN_USE_AT_EXIT = """
import atexit, sys, threading
from mcpenv_client import EnvClient
class Kept:
    def __init__(self): self.env = EnvClient(sys.argv[1]).sync()
    def __del__(self): self.env.close()
kept = Kept()
kept.itself = kept
kept.env.reset()
atexit.register(lambda: print(kept.env.call_tool("echo", {"word": "x"}).text, flush=True))
def entered():
    with EnvClient(sys.argv[1]).sync() as env:
        env.reset()
        yield
        yield
generator = entered()
next(generator)
other = EnvClient(sys.argv[1]).sync()
other.reset()
threading.Thread(target=other.call_tool, args=("hold", {"word": "y"}), daemon=True).start()
while not sys.stdin.readline():
    pass
print("end", flush=True)
"""


@pytest.mark.process
def test_a_program_ends_whatever_it_still_has_in_use() -> None:
    server = Patient()
    with server_in_thread(server) as url:
        command = [sys.executable, "-c", IN_USE_AT_EXIT, url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert server.held.wait(PROCESS_LIMIT_S)
                out, err = process.communicate("go on\n", timeout=PROCESS_LIMIT_S)
            finally:
                process.kill()
    assert (out.split(), err, process.returncode) == (["end", "x"], "", 0)


LOST_IN_FINALIZER = """
import sys
from mcpenv_client import EnvClient
class Kept:
    def __init__(self): self.env = EnvClient(sys.argv[1]).sync()
    def __del__(self):
        try:
            self.env.reset()
        except RuntimeError as error:
            sys.stdout.write(str(error))
kept = Kept()
kept.env.reset()
"""


@pytest.mark.process
def test_a_call_as_the_interpreter_shuts_down_is_an_error(url: str) -> None:
    ran = run_script(LOST_IN_FINALIZER, url, sys.executable)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "shutting down" in ran.stdout


def test_a_dropped_client_is_freed_without_the_collector(url: str, echo: Echo) -> None:
    gc.disable()
    try:
        env = EnvClient(url).sync()
        env.reset()
        env.call_tool("echo", {"word": "a"})
        gone = weakref.ref(env._client)  # the warning refers to the connection
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            del env
            until(lambda: gone() is None)  # the thread of the loop may still be leaving the last call
        assert [str(each.message).endswith("was not closed") for each in said] == [True]
    finally:
        gc.enable()
    assert echo.ended.wait(PROCESS_LIMIT_S)


@pytest.mark.process
def test_a_dropped_client_is_named_and_its_session_ends(url: str, echo: Echo) -> None:
    ran = run_script(DROPPED, url, sys.executable)
    assert (ran.stdout, ran.returncode) == ("end\n", 0)
    assert "was not closed" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert echo.closed == echo.connections == 2


def roll_out(env: Any, words: list[str]) -> list[tuple[str, Any, bool]]:
    """The rollout of the design: the same on an environment and on a blocking client."""
    env.reset()
    seen = []
    for word in words:
        result = env.step(CallToolAction(tool_name="echo", arguments={"word": word}))
        seen.append((result.text, result.reward, result.done))
        assert result.error is None
        assert isinstance(result.info, dict)
        if result.done:
            break
    return seen


def test_one_rollout_function_runs_on_a_blocking_client() -> None:
    async def ending(socket: ServerConnection) -> None:
        async for text in frames(socket):
            last, step = '"last"' in text, '"step"' in text
            await socket.send(said("last" if last else "first", done=last, reward=1.0) if step else observation())

    with server_in_thread(ending) as url, EnvClient(url).sync() as env:
        assert roll_out(env, ["first", "last", "never"]) == [("first", 1.0, False), ("last", 1.0, True)]
