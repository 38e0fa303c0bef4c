"""The supervisor: start the hub and the workers, pass signals on, and restart workers that died."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import functools
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

from mcpenv import tracing
from mcpenv.errors import StartupError
from mcpenv.server.config import MANY_SESSIONS
from mcpenv.server.extension import Workers
from mcpenv.server.http.file_limits import allow_many
from mcpenv.server.http.gc_tuning import tuned_gc
from mcpenv.server.uvicorn_server import at_ending_signals, log_end, loop_factory
from mcpenv_client.errors import McpenvError

from .hub import Hub, Seat
from .worker import Job, Worker

logger = logging.getLogger("mcpenv")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that end the server. A terminal, and some service managers, send them to all of its processes."""

UNWATCHED_S = 60.0
"""Seconds without a question of the hub after which a worker's process ends, whatever its code does. More than the time
after which the hub kills a worker: this is for workers whose hub was killed."""

STARTED_S = 30.0
"""Seconds in which the fork server must have forked a worker, its imports included. Then it is killed and replaced."""

SOON_S = 10.0
PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Seconds to wait before a worker is started anew if the one before it lived less than `SOON_S`: each time twice as
long."""

PR_SET_PDEATHSIG = 1

PRELOADED = (__name__, "mcpenv.cli.serving", f"{__package__}.fork_server")
"""The modules that the fork server imports, so that no worker does."""


class Supervised(Workers):
    """The workers of one server, behind one hub."""

    def serve(self, on_started: Callable[[], None]) -> None:
        """Serve with processes until a signal comes and all processes have shut down gracefully."""
        sessions = self.config.max_concurrent_envs
        allow_many(MANY_SESSIONS if sessions is None else sessions)

        async def main(hub: Hub, job: Job) -> None:
            processes = Processes(hub, job)
            with at_ending_signals(processes.received):
                running = asyncio.ensure_future(processes.run())
                starting = asyncio.ensure_future(hub.started.wait())
                await asyncio.wait({running, starting}, return_when=asyncio.FIRST_COMPLETED)
                starting.cancel()
                if hub.failure is not None:
                    processes.end(hurry=True)
                elif hub.started.is_set():
                    on_started()
                await running
            if hub.failure is not None:
                raise StartupError(hub.failure)

        self._run_hub(main)

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[None]:
        """Serve with workers in a thread of this process while the block runs. For tests."""
        started: Future[Callable[[], object]] = Future()

        async def main(hub: Hub, job: Job) -> None:
            loop = asyncio.get_running_loop()
            workers = [asyncio.ensure_future(Worker(job, await hub.add(number)).run()) for number in range(self.count)]
            await hub.started.wait()
            if hub.failure is None:
                started.set_result(functools.partial(loop.call_soon_threadsafe, hub.end))
            else:
                hub.end()
            await asyncio.gather(*workers)

        def run() -> None:
            try:
                self._run_hub(main)
            except BaseException as error:  # re-raised in the thread that waits for the start
                if not started.done():
                    started.set_exception(error)
                else:
                    logger.exception("the workers ended with an error")

        thread = threading.Thread(target=run, name="mcpenv-workers", daemon=True)
        thread.start()
        try:
            end = started.result()
            try:
                yield
            finally:
                end()
        finally:
            thread.join()

    def _run_hub(self, main: Callable[[Hub, Job], Awaitable[None]]) -> None:
        async def run(folder: Path) -> None:
            hub = Hub(folder, self.doors, self.config, self.count, anonymous=self.anonymous)
            async with hub.running():
                await main(hub, Job(folder, self.count, self.config, split=len(self.doors) > 1, load=self.load))

        # Only this user can enter the folder.
        folder = tempfile.TemporaryDirectory(prefix="mcpenv-")
        with folder as path, asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(run(Path(path)))


class Processes:
    """The processes of the workers. One that ends is replaced until the server ends.

    Python's fork server starts them: a process without threads that has imported mcpenv, but not the environment.
    """

    def __init__(self, hub: Hub, job: Job) -> None:
        self._hub = hub
        self._job = job
        self._ending = asyncio.Event()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))
        self._starting = ThreadPoolExecutor(job.count)
        self._descriptors: dict[str, int] = {}
        hub.kill = self._kill

    async def run(self) -> None:
        """Return when all processes have ended."""
        try:
            await asyncio.gather(*map(self._keep, range(self._job.count)))
        finally:
            _end_helpers()

    def received(self, number: signal.Signals) -> None:
        """Shut down gracefully; at a Ctrl-C that is not the first signal, immediately."""
        if not self._ending.is_set():
            log_end(number)
        self.end(hurry=number == signal.SIGINT)

    def end(self, *, hurry: bool) -> None:
        """Shut down gracefully.

        Args:
            hurry: do not wait for episodes; if the shutdown has begun, end it immediately.
        """
        if self._ending.is_set():
            if hurry:
                self._hub.end()
            return
        self._ending.set()
        self._hub.replace(hurry=hurry)

    async def _keep(self, number: int) -> None:
        """Start a worker each time that the one before has ended, after a pause if that one ended soon."""
        loop = asyncio.get_running_loop()
        pause_s = 0.0
        while not await self._ends_within(pause_s):
            began = loop.time()
            await self._be_worker(await self._hub.add(number))
            pause_s = 0.0 if loop.time() - began > SOON_S else min(max(2 * pause_s, PAUSE_S), LONGEST_PAUSE_S)

    async def _ends_within(self, seconds: float) -> bool:
        """Return True if the server's end begins meanwhile, or has begun."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        return self._ending.is_set()

    async def _be_worker(self, seat: Seat) -> None:
        """Start a worker, and return when it has ended or could not be started."""
        loop = asyncio.get_running_loop()
        if self._ending.is_set():
            seat.close()
            return
        process = self._context.Process(target=_serve, args=(self._job, seat))
        _ensure_fork_server()
        limit = loop.call_later(STARTED_S, _kill_fork_server)
        try:
            await loop.run_in_executor(self._starting, process.start)  # the first waits for the imports
        except (EOFError, ConnectionError) as error:
            why = f"the process that forks workers has ended, or did not start one in {STARTED_S:g} s"
            if not self._hub.started.is_set():
                raise StartupError(why) from error
            logger.warning("%s, and is replaced", why)
        else:
            limit.cancel()
            seat.close()
            await self._end_of(process, seat.tag)
        finally:
            limit.cancel()
            seat.close()
            self._hub.ended(seat)

    async def _end_of(self, process: BaseProcess, tag: str) -> None:
        """Return when a process has ended."""
        loop = asyncio.get_running_loop()
        assert process.pid is not None
        try:
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # not Linux, or it has ended
            await loop.run_in_executor(self._starting, process.join)
            return
        ended = loop.create_future()
        self._descriptors[tag] = descriptor
        loop.add_reader(descriptor, ended.set_result, None)
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)
            os.close(self._descriptors.pop(tag))

    def _kill(self, tag: str) -> None:
        if tag in self._descriptors:
            signal.pidfd_send_signal(self._descriptors[tag], signal.SIGKILL)
        else:  # it is not forked yet, as when the fork server is stopped
            _kill_fork_server()


def _ensure_fork_server() -> None:
    """Start the fork server, unless it runs, with all of `SIGNALS` blocked.

    It ends with this process. Its forks unblock the signals when they can handle them, so that none is lost.
    """
    resource_tracker.ensure_running()  # here, because it unblocks signals
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _kill_fork_server() -> None:
    """Kill the fork server, so that nobody waits for it if it is stopped. `_ensure_fork_server` starts another."""
    _signal_helper(forkserver, signal.SIGKILL)


def _end_helpers() -> None:
    """Let the interpreter end, which waits for the fork server and the resource tracker, also if they are stopped."""
    _kill_fork_server()
    _signal_helper(resource_tracker, signal.SIGCONT)


def _signal_helper(module: ModuleType, number: signal.Signals) -> None:
    """Send a signal to the children of this process that run ``main`` of a module of multiprocessing. Linux only."""
    for child in _children():
        with contextlib.suppress(OSError):  # it has ended
            descriptor = os.pidfd_open(child)
            try:
                if f"from {module.__name__} import main".encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def _children() -> Iterator[int]:
    """Return the processes that this process has started. Linux only: none elsewhere."""
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            yield from map(int, file.read_text(encoding="ascii").split())


def _continue_without_parent() -> None:
    """Have this process continue when its parent ends, if it is stopped then, so that it ends too. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def _serve(job: Job, seat: Seat) -> None:
    """Be the process of a worker."""
    _continue_without_parent()

    async def main() -> None:
        # A thread of C code, which runs also if Python's cannot.
        end_later = functools.partial(faulthandler.dump_traceback_later, UNWATCHED_S, exit=True, file=2)
        worker = Worker(job, seat, end_later, faulthandler.cancel_dump_traceback_later)
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, worker.replace)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        await worker.run(tuned_gc(forked=True))

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            runner.run(main())
        except McpenvError:
            return  # the hub has been told
        except Exception:
            logger.exception("a worker failed")
    tracing.flush()
