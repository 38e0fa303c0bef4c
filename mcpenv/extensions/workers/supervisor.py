"""The supervisor: start the hub and the workers, pass signals on, and restart workers that died."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import multiprocessing
import signal
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from mcpenv import tracing
from mcpenv.errors import StartupError
from mcpenv.server.config import MANY_SESSIONS, ServerConfig
from mcpenv.server.http.file_limits import allow_many
from mcpenv.server.http.gc_tuning import tuned_gc
from mcpenv.server.serve import Served
from mcpenv.server.uvicorn_server import loop_factory
from mcpenv_client.errors import McpenvError

from .hub import Hub, Seat
from .worker import Job, Worker

logger = logging.getLogger("mcpenv")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that end the server. A terminal, and some service managers, send them to all of its processes."""

PRELOADED = (__name__, "mcpenv.cli.run")
"""The modules that the fork server imports, so that no worker does."""


def serve_in_processes(
    load: Callable[[], Served],
    config: ServerConfig,
    count: int,
    doors: Sequence[socket.socket],
    *,
    anonymous: bool,
    on_started: Callable[[], None],
) -> None:
    """Serve with ``count`` processes until a signal comes and all processes have shut down gracefully.

    Args:
        load: returns what to serve. It is pickled, and called in each process.
        doors: the listening sockets: one, or the agents' and the control plane's.
        anonymous: True if agents need no token.
        on_started: called once, when all workers serve.

    Raises:
        StartupError: a worker did not start.
    """
    allow_many(MANY_SESSIONS if config.max_concurrent_envs is None else config.max_concurrent_envs)

    async def main(hub: Hub, job: Job) -> None:
        processes = Processes(hub, job)
        with processes.at_signals():
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

    _run_hub(load, config, count, doors, anonymous, main)


@contextlib.contextmanager
def serving_in_thread(
    load: Callable[[], Served],
    config: ServerConfig,
    count: int,
    doors: Sequence[socket.socket],
    *,
    anonymous: bool,
) -> Iterator[None]:
    """Serve with workers in a thread of this process while the block runs. For tests.

    Raises:
        StartupError: a worker did not start.
    """
    started: Future[Callable[[], object]] = Future()

    async def main(hub: Hub, job: Job) -> None:
        loop = asyncio.get_running_loop()
        workers = [asyncio.ensure_future(Worker(job, await hub.add(number)).run()) for number in range(count)]
        await hub.started.wait()
        if hub.failure is None:
            started.set_result(functools.partial(loop.call_soon_threadsafe, hub.end))
        else:
            hub.end()
        await asyncio.gather(*workers)

    def run() -> None:
        try:
            _run_hub(load, config, count, doors, anonymous, main)
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


def _run_hub(
    load: Callable[[], Served],
    config: ServerConfig,
    count: int,
    doors: Sequence[socket.socket],
    anonymous: bool,
    main: Callable[[Hub, Job], Awaitable[None]],
) -> None:
    async def run(folder: Path) -> None:
        hub = Hub(folder, doors, config, count, anonymous=anonymous)
        async with hub.running():
            await main(hub, Job(folder, count, config, split=len(doors) > 1, load=load))

    # Only this user can enter the folder.
    with tempfile.TemporaryDirectory(prefix="mcpenv-") as folder, asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run(Path(folder)))


class Processes:
    """The processes of the workers. One that ends is replaced until the server ends.

    Python's fork server starts them: a process without threads that has imported mcpenv, but not the environment.
    """

    def __init__(self, hub: Hub, job: Job) -> None:
        self._hub = hub
        self._job = job
        self._ending = False
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))
        self._waiting = ThreadPoolExecutor(job.count)

    async def run(self) -> None:
        """Return when all processes have ended."""
        await asyncio.gather(*map(self._keep, range(self._job.count)))

    @contextlib.contextmanager
    def at_signals(self) -> Iterator[None]:
        """Handle signals while the block runs."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, functools.partial(self.end, hurry=number == signal.SIGINT))
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def end(self, *, hurry: bool) -> None:
        """Shut down gracefully; called a second time, immediately.

        Args:
            hurry: do not wait for episodes.
        """
        if self._ending:
            self._hub.end()
            return
        self._ending = True
        self._hub.replace(hurry=hurry)

    async def _keep(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        while not self._ending:
            seat = await self._hub.add(number)
            if self._ending:
                seat.close()
                return
            process = self._context.Process(target=_serve, args=(self._job, seat))
            _ensure_fork_server()
            await loop.run_in_executor(self._waiting, process.start)  # the first waits for the imports
            seat.close()
            await loop.run_in_executor(self._waiting, process.join)
            self._hub.ended(seat)


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


def _serve(job: Job, seat: Seat) -> None:
    """Be the process of a worker."""

    async def main() -> None:
        worker = Worker(job, seat)
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, worker.replace)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        await worker.run(tuned_gc())

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        try:
            runner.run(main())
        except McpenvError:
            return  # the hub has been told
        except Exception:
            logger.exception("a worker failed")
    tracing.flush()
