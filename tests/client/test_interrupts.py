"""Signal handlers that run while a blocking client waits: some raise, some call the client, none is replaced."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client_servers import LIMIT_S, Echo, Patient, server_in_thread, until

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
    """The exception that a signal's handler raises."""


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
                    signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.00005, 0.0008))
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
    assert interrupted > 5  # on a fast or a loaded machine few alarms come in the middle
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
