"""Signal handlers that run while a blocking client waits: some raise, some call the client, none is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from client_servers import LIMIT_S, Echo, Patient, server_in_thread, until
from strict_python import STRICT_PYTHON

from mcpenv_client import EnvClient, SessionLost


@contextlib.contextmanager
def handling(number: int, handler: Callable[..., object] | signal.Handlers) -> Iterator[None]:
    """Have a signal handled so for a while."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, before)


class Interrupted(BaseException):
    """What a signal's handler raises."""


# Python says so where a handler raises in a finalizer.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("named", [False, True])
def test_interrupts_at_any_moment_cost_at_most_the_session(named: bool) -> None:
    """The next call has the answer that belongs to it, or the session is lost; nothing hangs or runs twice."""
    moments = random.Random(named)
    armed = False

    def interrupt(*_: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    server = Patient()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with server_in_thread(server) as url:
            env = EnvClient(url, message_timeout_s=LIMIT_S).sync()
            answered = lost = interrupted = 0
            for turn in range(400):
                env.reset()
                began = time.monotonic()
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.00005, 0.003))
                    assert _echo(env, f"first-{turn}", named) == f"first-{turn}"
                except (Interrupted, SessionLost):
                    interrupted += 1
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
                for word in (f"second-{turn}", f"third-{turn}"):
                    try:
                        assert _echo(env, word, named) == word
                        answered += 1
                    except SessionLost as error:
                        assert "within" not in str(error)
                        lost += 1
                assert time.monotonic() - began < LIMIT_S / 2
            env.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 20
    assert answered > 100
    assert (lost > 10) is not named  # a call with a name loses nothing but its answer
    assert all(server.ran.count(word) == 1 for word in set(server.ran))


def _echo(env: Any, word: str, named: bool) -> str:
    text: str = env.call_tool("echo", {"word": word}, request_id=word if named else None).text
    return text


def test_a_handlers_own_timeout_is_the_callers() -> None:
    """The idiom of an alarm that raises."""

    def out_of_time(*_: Any) -> None:
        raise TimeoutError("the alarm's")

    server = Patient()
    before = signal.signal(signal.SIGALRM, out_of_time)
    try:
        with server_in_thread(server) as url, EnvClient(url, resume=True).sync() as env:
            env.reset()
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(TimeoutError, match="the alarm's"):
                env.call_tool("hold", {"word": "a"})
            assert env.call_tool("echo", {"word": "b"}).text == "b"
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_handler_may_use_the_client_that_is_interrupted() -> None:
    server = Patient()
    seen: list[Any] = []

    def look(*_: Any) -> None:
        seen.append(env.call_tool("echo", {"word": "within"}, request_id="within").text)
        server.release()

    before = signal.signal(signal.SIGALRM, look)
    try:
        with server_in_thread(server) as url, EnvClient(url).sync() as env:
            env.reset()
            threading.Thread(target=_signal_once, args=(server.held,)).start()
            assert env.call_tool("hold", {"word": "a"}, request_id="held").text == "held"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == ["within"]


def _signal_once(held: threading.Event, number: int = signal.SIGALRM) -> None:
    held.wait(LIMIT_S)
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def test_an_interrupt_while_it_waits_costs_a_named_call_nothing_but_its_answer() -> None:
    """Another thread's call under way on the same socket is answered all the same."""
    server = Patient()
    with server_in_thread(server) as url, EnvClient(url).sync() as env:
        env.reset()
        main, interrupted = threading.get_ident(), threading.Event()

        def interrupt() -> None:
            server.held.wait(LIMIT_S)
            signal.pthread_kill(main, signal.SIGUSR1)

        def raise_it(number: int, frame: Any) -> None:
            interrupted.set()
            raise RuntimeError("interrupted")

        before = signal.signal(signal.SIGUSR1, raise_it)
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            with pytest.raises(RuntimeError, match="interrupted"):
                env.call_tool("hold", {"word": "a"}, request_id="mine")
        finally:
            signal.signal(signal.SIGUSR1, before)
            thread.join(LIMIT_S)
        assert interrupted.is_set()
        server.release()  # an answer that nobody waits for
        assert env.call_tool("echo", {"word": "b"}).text == "b"


CLOSED_BY_A_HANDLER = """
import signal, sys
from mcpenv_client import EnvClient, SessionLost
env = EnvClient(sys.argv[1]).sync()
env.reset()
signal.signal(signal.SIGTERM, lambda *_: env.close())
try:
    env.call_tool("hold", {"word": "x"})
except SessionLost as lost:
    print("lost", flush=True)
"""


def test_a_signals_handler_may_close_the_client_that_its_thread_waits_at() -> None:
    server = Patient()
    with server_in_thread(server) as url:
        command = [*STRICT_PYTHON, "-c", CLOSED_BY_A_HANDLER, url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert server.held.wait(LIMIT_S)
                process.send_signal(signal.SIGTERM)
                out, err = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
        assert (out.split(), err, process.returncode) == (["lost"], "", 0)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals of POSIX")
def test_a_handler_may_close_it_at_any_moment_of_a_step(url: str) -> None:
    moments = random.Random(7)
    clients: list[Any] = []
    before = signal.signal(signal.SIGALRM, lambda *_: clients[-1].close())
    try:
        for _ in range(100):
            clients.append(EnvClient(url).sync())
            clients[-1].reset()
            began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.00002, 0.001))
            with pytest.raises(SessionLost, match="closed"):
                for turn in itertools.count():
                    assert clients[-1].call_tool("echo", {"word": f"{turn}"}).text == f"{turn}"
            assert time.monotonic() - began < LIMIT_S / 3  # nobody waits for the one that it interrupts
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_interrupt_ends_the_attempt_to_connect() -> None:
    class Late(Exception):
        """The alarm's."""

    def out_of_time(*_: Any) -> None:
        raise Late

    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes connections, and says nothing
        env = EnvClient(f"http://127.0.0.1:{listening.getsockname()[1]}", connect_timeout_s=3_600).sync()
        before = signal.signal(signal.SIGALRM, out_of_time)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Late):
                env.reset()
        finally:
            signal.signal(signal.SIGALRM, before)
        env.close()  # which waits for the attempt


def test_an_interrupted_call_leaves_nothing_that_holds_its_client() -> None:
    server = Patient()
    with handling(signal.SIGALRM, _raise_interrupted), server_in_thread(server) as url:
        env = EnvClient(url).sync()
        env.reset()
        threading.Thread(target=_signal_once, args=(server.held,)).start()
        with pytest.raises(Interrupted):
            env.call_tool("hold", {"word": "a"}, request_id="mine")
        client = weakref.ref(env._client)
        env.close()
        del env
        until(lambda: gc.collect() >= 0 and client() is None)


def _raise_interrupted(*_: Any) -> None:
    raise Interrupted


# -- handlers that stand where they stood


def test_a_call_leaves_handlers_as_they_were(url: str) -> None:
    def own(*_: Any) -> None:
        """Never called."""

    seen = []

    class Looking(EnvClient[Any, Any, Any]):
        def _parse_result(self, payload: dict[str, Any]) -> Any:
            seen.append(handlers())
            return super()._parse_result(payload)

    def handlers() -> list[Any]:
        return [signal.getsignal(number) for number in sorted(signal.valid_signals())]

    def wakeup_fd() -> int:
        fd = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(fd)
        return fd

    with handling(signal.SIGUSR1, own), handling(signal.SIGUSR2, signal.SIG_IGN), Looking(url).sync() as env:
        before, fd = handlers(), wakeup_fd()
        assert own in before
        env.call_tool("echo", {"word": "a"})
        seen.append(handlers())
        with pytest.raises(SessionLost):
            env.call_tool("echo", {"word": "b"}, timeout_s=-30)  # no time to wait at all
        seen.append(handlers())
        assert wakeup_fd() == fd
    assert len(seen) == 3  # the first during the call
    assert all(after == before for after in seen)


def test_signals_without_end_disturb_no_call(url: str) -> None:
    """Each is seen: as often as the same program sees it that only waits, more or less."""
    came = []
    with handling(signal.SIGALRM, lambda *_: came.append(threading.current_thread())), EnvClient(url).sync() as env:
        env.reset()
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
        for turn in range(1_000):
            assert env.call_tool("echo", {"word": f"{turn}"}).text == f"{turn}"
    assert len(came) > 100
    assert set(came) == {threading.main_thread()}


def test_a_handler_runs_while_the_call_waits_not_after() -> None:
    """And as often as its signal came, on the thread on which it always runs."""
    server = Patient()
    came: list[str] = []

    def look(*_: Any) -> None:
        came.append(threading.current_thread().name)
        if len(came) == 3:
            server.release()

    def signal_three_times() -> None:
        server.held.wait(LIMIT_S)
        for count in range(3):
            os.kill(os.getpid(), signal.SIGUSR1)
            until(lambda: len(came) > count)  # noqa: B023 - waited for within the loop

    with handling(signal.SIGUSR1, look), server_in_thread(server) as url, EnvClient(url).sync() as env:
        env.reset()
        with ThreadPoolExecutor(1) as pool:
            signals = pool.submit(signal_three_times)
            assert env.call_tool("hold", {"word": "a"}).text == "held"
            signals.result(LIMIT_S)
        assert env.call_tool("echo", {"word": "b"}).text == "b"
    assert came == [threading.main_thread().name] * 3


def test_an_event_loops_own_signal_handler_is_called_once_for_a_signal_during_a_call() -> None:
    """Such a handler is told by a byte that Python writes when the signal comes, whenever handlers run."""
    server = Patient()
    called: list[int] = []

    async def main(url: str) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, called.append, 1)
        with EnvClient(url).sync() as env:  # blocks the loop, as it says
            env.reset()
            threading.Thread(target=_signal_once, args=(server.held, signal.SIGUSR1)).start()
            threading.Timer(0.2, server.release).start()
            assert env.call_tool("hold", {"word": "a"}).text == "held"
        for _ in range(10):
            await asyncio.sleep(0)
        loop.remove_signal_handler(signal.SIGUSR1)

    with server_in_thread(server) as url:
        asyncio.run(main(url))
    assert called == [1]


def test_a_finalizer_in_the_thread_of_the_loop_may_close_a_client(url: str, echo: Echo) -> None:
    """The collector runs finalizers in any thread."""

    class Owner:
        def __init__(self) -> None:
            self.env = EnvClient(url).sync()
            self.env.reset()
            self.itself = self

        def __del__(self) -> None:
            closed_in.append(threading.current_thread().name)
            self.env.close()

    class Collecting(EnvClient[Any, Any, Any]):
        def _parse_result(self, payload: dict[str, Any]) -> Any:
            gc.collect()
            return super()._parse_result(payload)

    closed_in: list[str] = []
    gc.collect()
    gc.disable()
    try:
        with Collecting(url).sync() as env:
            Owner()
            env.call_tool("echo", {"word": "a"})
    finally:
        gc.enable()
    assert closed_in == ["mcpenv-client"]
    until(lambda: echo.closed == 2)


FORKED = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from mcpenv_client import EnvClient
env = EnvClient(sys.argv[1]).sync()
env.reset()
child = None
def fork():
    global child
    sys.stdin.readline()
    child = os.fork()
    if child:
        return
    try:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        with EnvClient(sys.argv[1]).sync() as env:
            os._exit(7 if env.call_tool("echo", {"word": "child"}).text == "child" else 8)
    finally:
        os._exit(9)
thread = threading.Thread(target=fork)
thread.start()
print(env.call_tool("hold", {"word": "x"}).text, flush=True)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
env.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_by_another_thread_holds_nothing_back() -> None:
    server = Patient()
    with server_in_thread(server) as url:
        command = [sys.executable, "-W", "ignore", "-c", FORKED, url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert server.held.wait(LIMIT_S)
                assert process.stdin is not None
                process.stdin.write("fork\n")
                process.stdin.flush()
                until(lambda: "child" in server.ran)
                server.release()
                out, err = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
    assert (out.split(), err, process.returncode) == (["held", "7"], "", 0)
