"""The backend that plays in worker processes, and replaces dead or hanging workers."""

from __future__ import annotations

import asyncio
import functools
import itertools
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from .assignment import Share
from .backend import PoolError, all_of
from .clock import Clock
from .instances import Target, modules_of_makers
from .places import GRACE_S, Place, PlacesBackend, PlacesRollout
from .playing import TIMEOUT
from .process_worker import main
from .remote_errors import RemoteTraceback
from .worker import Answers, Failed

Reply = tuple[str | None, bytes]
"""The text of the error that a request raised, or None, and its pickled answer, or the traceback."""


class ProcessBackend(PlacesBackend):
    """Plays in worker processes, which a fork server creates after importing the environment.

    A dead worker is detected at once.

    Args:
        target: the environment; a class or function must be importable in another process.
        size: the total number of environments.
        workers: the number of processes; None: one for each core, at most ``size``.
        settings: settings of the target.
        memory_bytes: the address space of each worker; None: no limit.
        warm: as for `PlacesBackend`.
        start_timeout_s: seconds for a worker to load the target.
    """

    kind = "a worker process"
    batch = 1
    advice = 'Put it at the top of a module, or keep it here: step_all(), or backend="local"'

    def __init__(
        self,
        target: Target,
        size: int,
        *,
        workers: int | None = None,
        settings: Sequence[str] = (),
        memory_bytes: int | None = None,
        warm: int = 0,
        start_timeout_s: float = 120.0,
    ) -> None:
        super().__init__(size, warm)
        self._number = min(size, workers or len(os.sched_getaffinity(0)))
        self._context = multiprocessing.get_context("forkserver")
        preload = ["mcpenv_client.pool.process_worker", *modules_of_makers()]
        module = getattr(target, "__module__", None)
        if module not in (None, "__main__"):
            preload.append(module)
        self._context.set_forkserver_preload(preload)
        self._arguments = (target, tuple(settings), memory_bytes)
        self._start_timeout_s = start_timeout_s

    async def start(self) -> None:
        """Start the workers."""
        self.sendable(self._arguments, "the target", "Give a TARGET as text, or a class at the top of a module")
        for place in range(self._number):
            environments = self.environments_of(place, self._number)
            make = functools.partial(self._made, environments if self._warm else None)
            self._places.append(ProcessPlace(make, environments, self._start_timeout_s, self.clock))
        await all_of(place.revive() for place in self._places)

    def _made(self, at_once: int | None) -> tuple[BaseProcess, Connection]:
        mine, its = self._context.Pipe()
        process = self._context.Process(target=main, args=(its, *self._arguments, at_once), daemon=True)
        resource_tracker.ensure_running()  # later, it would unblock the signal
        # Ctrl-C in a terminal goes to the fork server too, which does not ignore it before it has imported its modules.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        its.close()
        return process, mine

    def pickled(self, given: Any) -> bytes:
        """Return what is sent to a process."""
        return pickle.dumps(given)


class ProcessPlace(Place):
    """One worker process, from the parent's side.

    Args:
        make: starts a process.
        environments: the number of its environments.
        start_timeout_s: seconds for it to load the target.
        clock: the clock of the deadlines.
    """

    def __init__(
        self,
        make: Callable[[], tuple[BaseProcess, Connection]],
        environments: int,
        start_timeout_s: float,
        clock: Clock,
    ) -> None:
        super().__init__(environments)
        self._clock = clock
        self._make = make
        self._start_timeout_s = start_timeout_s
        self._starting = asyncio.Lock()
        self._loaded = False
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Reply | None]] = {}
        self._begun: set[int] = set()

    @property
    def alive(self) -> bool:
        """True if its process is ready and has not been found dead."""
        return self._loaded

    async def revive(self) -> None:
        """Start its process, and wait until it is ready. Do nothing if it is."""
        async with self._starting:
            if self._loaded:
                return
            loop = asyncio.get_running_loop()
            self._begun.clear()
            try:
                made = loop.run_in_executor(None, self._make)
                try:
                    self._process, self._pipe = process, pipe = await asyncio.shield(made)
                except asyncio.CancelledError:
                    made.add_done_callback(_kill)
                    raise
                self._writer = ThreadPoolExecutor(1, thread_name_prefix="mcpenv-pool-writer")
                ready = self._answers[0] = loop.create_future()
                loop.add_reader(pipe.fileno(), self._readable)
                loop.add_reader(process.sentinel, self._gone)
                reply = await self._reply(0, ready, self._start_timeout_s)
                if reply is None:
                    raise PoolError(f"a worker ended before it was ready: {self.died}")
                if reply[0] is not None:
                    raise PoolError(reply[0])
            except BaseException:
                self.kill()
                raise
            self._loaded = True

    async def play(
        self, rollout: PlacesRollout, shares: Sequence[Share], limit_s: float
    ) -> list[Answers | Failed] | None:
        """Play shares."""
        if self._loaded and rollout.number not in self._begun:
            self._begun.add(rollout.number)
            self._send(0, "begin", rollout.number, rollout.sent)
        answers: list[Answers | Failed] | None = await self.ask("play", rollout.number, shares, limit_s=limit_s)
        return answers

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method of the worker without waiting for it."""
        if self._loaded:
            self._send(0, method, *arguments)

    async def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """Call a method of the worker. Cancelling ends the process: nothing else stops code that blocks."""
        if not self._loaded:
            return None
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._send(number, method, *arguments)
        reply = await self._reply(number, answer, limit_s)
        if reply is None:
            return None
        failure, answered = reply
        if failure is not None:
            raise PoolError(f"a worker process cannot do what was asked: {failure}") from RemoteTraceback(
                answered.decode()
            )
        return pickle.loads(answered)

    async def _reply(self, number: int, answer: asyncio.Future[Reply | None], limit_s: float) -> Reply | None:
        try:
            return await self._clock.limited(answer, self._clock.now() + limit_s)
        except asyncio.CancelledError:
            self.died = "its process was killed, because a call was cancelled"
            self.kill()
            raise
        except asyncio.TimeoutError:
            self.died = f"its process did not answer for {limit_s:g} s and was killed ({TIMEOUT})"
            self.kill()
            return None
        finally:
            self._answers.pop(number, None)

    def _send(self, number: int, method: str, *arguments: Any) -> None:
        """Send a request from a thread: a worker that does not read must not block the event loop.

        `_gone` handles the error of a broken pipe.
        """
        assert self._pipe is not None and self._writer is not None
        self._writer.submit(self._pipe.send_bytes, pickle.dumps((number, method, pickle.dumps(arguments))))

    def _readable(self) -> None:
        if not self._take():
            self._gone()

    def _take(self) -> bool:
        """Take one answer; return False if there is none any more."""
        assert self._pipe is not None
        try:
            number, *reply = self._pipe.recv()
        except (EOFError, OSError):
            return False
        future = self._answers.get(number)
        if future is not None and not future.done():
            future.set_result((reply[0], reply[1]))
        return True

    def _gone(self) -> None:
        """Take the last answers of the ended process, which may arrive after its end is noticed."""
        while self._pipe is not None and self._pipe.poll() and self._take():
            pass
        if self._process is not None:
            self._process.join(GRACE_S)
            self.died = f"its process ended with exit code {self._process.exitcode}"
        self._let_go()

    def kill(self) -> None:
        """Kill its process. It has no state that outlives an episode."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._let_go()

    def _let_go(self) -> None:
        loop = asyncio.get_running_loop()
        self._loaded = False
        if self._process is not None:
            loop.remove_reader(self._process.sentinel)
        if self._pipe is not None:
            loop.remove_reader(self._pipe.fileno())
        if self._writer is not None:
            self._writer.shutdown(cancel_futures=True)
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = self._writer = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)


def _kill(made: asyncio.Future[tuple[BaseProcess, Connection]]) -> None:
    if not made.cancelled() and made.exception() is None:
        process, pipe = made.result()
        process.kill()
        process.join()
        pipe.close()
