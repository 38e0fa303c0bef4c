"""The supervisor: starts the hub and the workers, and a worker that has died anew. uvicorn's own does the starting."""

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

from mcpenv_client.errors import McpenvError

from ..config import MANY_SESSIONS, ServerConfig
from ..errors import StartupError
from ..gc_tuning import tuned_gc
from ..http_server import loop_factory
from ..open_files import allow_many
from .hub import Hub
from .worker import Job, Served, Worker

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
    """Serve with so many processes until a signal comes and all have ended in order.

    Args:
        load: gives what is served; pickled, and called in each of the processes.
        doors: sockets that listen: one, or the agents' and the control plane's.
        anonymous: agents need no token.
        on_started: called once, in another thread, when all workers serve.

    Raises:
        StartupError: a worker did not start.
    """
    allow_many(MANY_SESSIONS if config.max_concurrent_envs is None else config.max_concurrent_envs)
    with _folder() as folder, _hub_in_thread(folder, doors, config, count, anonymous, on_started) as hub:
        job = Job(folder, count, config, split=len(doors) > 1)
        # What uvicorn says of processes is said here in this program's words.
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
    """uvicorn's supervisor; its signals end the server in order, a second one at once."""

    def __init__(self, config: uvicorn.Config, hub: HubThread) -> None:
        usual = {number: signal.getsignal(number) for number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH)}
        super().__init__(config, [])
        for number, handler in usual.items():
            signal.signal(number, handler)  # there are as many workers as were asked for
        self._hub = hub

    def handle_hup(self) -> None:
        """The terminal is gone, and with it whoever started the server."""
        self.handle_term()

    def keep_subprocess_alive(self) -> None:
        """Start a worker anew that has ended; one that is only slow is left alone.

        uvicorn asks each whether it lives, by a pipe that does not say when there is nobody at its end any more: a
        worker that loads for longer than a health check takes would be killed, and a dead one noticed late.
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
        """Wait until all have ended."""
        for process in self.processes:
            while process.exitcode is None:
                process.process.join(0.2)
                if self.signal_queue:
                    self.signal_queue.clear()
                    self._hub.end()


class WorkerProcess:
    """The application that uvicorn runs in a worker's process: nothing but a lifespan, in which a `Worker` runs."""

    def __init__(self, job: Job, load: Callable[[], Served]) -> None:
        self._job = job
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Live through the lifespan."""
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
        running.add_done_callback(lambda _: signal.raise_signal(signal.SIGTERM))  # told by the hub, or it is gone
        with tuned_gc():
            await send({"type": "lifespan.startup.complete"})
            await receive()
            if not running.done():
                worker.end()
            await running
        await send({"type": "lifespan.shutdown.complete"})


class HubThread:
    """A hub with a loop of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hub: Hub) -> None:
        self._loop = loop
        self._hub = hub

    @property
    def failure(self) -> str | None:
        """Why a worker could not start."""
        return self._hub.failure

    def end(self) -> None:
        """Have all workers end in order; a second time, at once. From any thread."""
        self._loop.call_soon_threadsafe(self._hub.end)


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
            telling = asyncio.ensure_future(_tell(hub, on_started))
            await over.wait()
            telling.cancel()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(main())
        except BaseException as error:  # handed to whoever waits for the hub
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


async def _tell(hub: Hub, on_started: Callable[[], None]) -> None:
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
    """Serve with workers that are threads of this process, until left: for tests.

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
                except BaseException as error:  # handed to whoever waits for the start
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
    """A folder that nobody else may enter, for the server's own sockets."""
    with tempfile.TemporaryDirectory(prefix="mcpenv-") as folder:
        yield Path(folder)
