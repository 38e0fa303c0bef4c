"""The supervisor: start the hub and the workers, and restart workers that died, with uvicorn's own supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from mcpenv.errors import StartupError
from mcpenv.server.config import MANY_SESSIONS, ServerConfig
from mcpenv.server.http.file_limits import allow_many
from mcpenv.server.http.gc_tuning import tuned_gc
from mcpenv.server.serve import Served
from mcpenv.server.trace_export import flush_traces
from mcpenv.server.uvicorn_server import loop_factory
from mcpenv_client.errors import McpenvError

from .hub import Hub
from .worker import Job, Worker

logger = logging.getLogger("mcpenv")


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
        on_started: called once, in another thread, when all workers serve.

    Raises:
        StartupError: a worker did not start.
    """
    allow_many(MANY_SESSIONS if config.max_concurrent_envs is None else config.max_concurrent_envs)
    with _folder() as folder, _hub_in_thread(folder, doors, config, count, anonymous, on_started) as hub:
        job = Job(folder, count, config, split=len(doors) > 1)
        # Silence uvicorn's messages about processes; mcpenv logs its own.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        settings = uvicorn.Config(
            WorkerProcess(job, load),
            workers=count,
            lifespan="on",
            log_config=None,
            access_log=False,
        )
        Processes(settings, hub).run()
        if hub.failure is not None:
            raise StartupError(hub.failure)


class Processes(Multiprocess):
    """The supervisor of uvicorn, extended: a signal shuts down gracefully, a second one immediately."""

    def __init__(self, config: uvicorn.Config, hub: HubThread) -> None:
        usual = {number: signal.getsignal(number) for number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH)}
        super().__init__(config, [])
        for number, handler in usual.items():
            signal.signal(number, handler)  # uvicorn would change the number of workers
        self._hub = hub

    def handle_int(self) -> None:
        """Shut down without waiting for episodes."""
        self._hub.hurry()
        super().handle_int()

    def handle_hup(self) -> None:
        """Shut down when the terminal is closed."""
        self.handle_term()

    def keep_subprocess_alive(self) -> None:
        """Restart workers that have ended, but not slow ones.

        uvicorn's own check pings a worker over a pipe that does not report a closed end. It would kill a worker that
        takes longer to load than the check's timeout, and detect a dead one late.
        """
        for index, process in enumerate(self.processes):
            if process.process.is_alive():
                continue
            process.join()
            if self._hub.failure is not None:
                self.should_exit.set()
                return
            self.processes[index] = Process(self.config, self.sockets)
            self.processes[index].start()

    def join_all(self) -> None:
        """Wait until all processes have ended. A further signal ends them immediately."""
        for process in self.processes:
            while process.exitcode is None:
                process.process.join(0.2)
                if self.signal_queue:
                    self.signal_queue.clear()
                    self._hub.end()


class WorkerProcess:
    """The application that uvicorn runs in a worker process: only a lifespan, in which a `Worker` runs."""

    def __init__(self, job: Job, load: Callable[[], Served]) -> None:
        self._job = job
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the worker for the duration of the lifespan."""
        assert scope["type"] == "lifespan"
        await receive()
        worker = Worker(self._job, self._load)
        started = asyncio.Event()
        running = asyncio.ensure_future(worker.run(started.set))
        starting = asyncio.ensure_future(started.wait())
        await asyncio.wait({running, starting}, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        if running.done():
            if (error := running.exception()) is not None and not isinstance(error, McpenvError):
                logger.error("a worker could not start", exc_info=error)
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        # The hub has ended it, or the hub is gone.
        running.add_done_callback(lambda _: signal.raise_signal(signal.SIGTERM))
        with tuned_gc():
            await send({"type": "lifespan.startup.complete"})
            await receive()
            if not running.done():
                worker.end(episodes=True)
            await running
            await asyncio.to_thread(flush_traces)  # uvicorn ends the process by the signal, without Python's exit
        await send({"type": "lifespan.shutdown.complete"})


class HubThread:
    """The hub in a thread with its own event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hub: Hub) -> None:
        self._loop = loop
        self._hub = hub

    @property
    def failure(self) -> str | None:
        """The reason why a worker could not start; None if none failed."""
        return self._hub.failure

    def end(self) -> None:
        """Ask all workers to shut down gracefully; called a second time, immediately. Thread-safe."""
        self._loop.call_soon_threadsafe(self._hub.end)

    def hurry(self) -> None:
        """Ask all workers not to wait for episodes when they shut down. Thread-safe."""
        self._loop.call_soon_threadsafe(self._hub.hurry)


@contextlib.contextmanager
def _hub_in_thread(
    folder: Path,
    doors: Sequence[socket.socket],
    config: ServerConfig,
    count: int,
    anonymous: bool,
    on_started: Callable[[], None],
) -> Iterator[HubThread]:
    made: Future[tuple[HubThread, asyncio.Event]] = Future()

    async def main() -> None:
        hub, over = Hub(folder, doors, config, count, anonymous=anonymous), asyncio.Event()
        async with hub.running():
            made.set_result((HubThread(asyncio.get_running_loop(), hub), over))
            reporting = asyncio.ensure_future(_report_start(hub, on_started))
            await over.wait()
            reporting.cancel()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(main())
        except BaseException as error:  # re-raised in the thread that waits for the hub
            if not made.done():
                made.set_exception(error)
            else:
                logger.exception("the hub of the server's workers ended with an error")

    thread = threading.Thread(target=run, name="mcpenv-hub", daemon=True)
    thread.start()
    hub, over = made.result()
    try:
        yield hub
    finally:
        hub._loop.call_soon_threadsafe(over.set)
        thread.join()


async def _report_start(hub: Hub, on_started: Callable[[], None]) -> None:
    await hub.started.wait()
    if hub.failure is None:
        on_started()


@contextlib.contextmanager
def serving_in_threads(
    load: Callable[[], Served],
    config: ServerConfig,
    count: int,
    doors: Sequence[socket.socket],
    *,
    anonymous: bool,
) -> Iterator[None]:
    """Serve with workers that are threads of this process while the block runs. For tests.

    Raises:
        StartupError: a worker did not start.
    """
    started: Future[None] = Future()
    with _folder() as folder:
        threads: list[threading.Thread] = []
        with _hub_in_thread(folder, doors, config, count, anonymous, lambda: started.set_result(None)) as hub:

            def run() -> None:
                try:
                    with asyncio.Runner(loop_factory=loop_factory()) as runner:
                        job = Job(folder, count, config, split=len(doors) > 1)
                        runner.run(Worker(job, load).run(lambda: None))
                except BaseException as error:  # re-raised in the thread that waits for the start
                    if not started.done():
                        started.set_exception(error)
                    else:
                        logger.exception("a worker ended with an error")

            for number in range(count):
                threads.append(threading.Thread(target=run, name=f"mcpenv-worker-{number}", daemon=True))
                threads[-1].start()
            try:
                started.result()
                yield
            finally:
                hub.end()
                for thread in threads:
                    thread.join()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Yield a temporary folder for the server's sockets that only this user can enter."""
    with tempfile.TemporaryDirectory(prefix="mcpenv-") as folder:
        yield Path(folder)
