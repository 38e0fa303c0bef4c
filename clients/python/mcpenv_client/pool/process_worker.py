"""The worker process of a pool: a `Worker` that answers what comes through its pipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection

from .backend import PoolError
from .instances import Target, instances_of
from .remote_errors import text_of
from .threads import MainThread
from .worker import Worker


def main(
    pipe: Connection, target: Target, settings: Sequence[str], memory_bytes: int | None, at_once: int | None
) -> None:
    """Answer requests until the pipe ends. The first answer has the number 0, when the target is loaded.

    A request is a number, the name of a method of `Worker`, and its pickled arguments. Its answer has the same number,
    the error's text if the method raised, and what the method returned, or the error's traceback.

    Args:
        pipe: requests in, answers out, as bytes.
        target: the environment.
        settings: settings of the target.
        memory_bytes: the maximum address space of this process; None: no limit.
        at_once: as for `Worker`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends its workers
    if memory_bytes is not None:
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    try:
        instances = instances_of(target, settings)
    except PoolError as error:
        pipe.send((0, str(error), b""))
        return
    main_thread = MainThread()
    worker = Worker(instances, f"process {os.getpid()}", at_once, main_thread, pickle.dumps)
    threading.Thread(target=_serve, args=(pipe, worker, main_thread), name="mcpenv-pool", daemon=True).start()
    main_thread.run()
    worker.close()


def _serve(pipe: Connection, worker: Worker, main_thread: MainThread) -> None:
    try:
        asyncio.run(_answer_all(pipe, worker))
    except (EOFError, ConnectionResetError, BrokenPipeError):
        pass  # the parent has exited
    finally:
        main_thread.shutdown()


async def _answer_all(pipe: Connection, worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    tasks: set[asyncio.Task[None]] = set()

    async def answer(number: int, method: str, arguments: bytes) -> None:
        failure, answered = None, b""
        try:
            answered = await getattr(worker, method)(*pickle.loads(arguments))
        except Exception as error:  # noqa: BLE001 - raised in the parent
            failure, answered = f"{type(error).__name__}: {error}", text_of(error).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent has exited
            pipe.send((number, failure, answered))

    def readable() -> None:
        try:
            number, method, arguments = pipe.recv()
        except (EOFError, OSError) as error:
            loop.remove_reader(pipe.fileno())
            ended.set_exception(error)
            return
        if method in ("begin", "forget", "pause"):
            getattr(worker, method)(*pickle.loads(arguments))
            return
        task = loop.create_task(answer(number, method, arguments))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    pipe.send((0, None, b""))
    loop.add_reader(pipe.fileno(), readable)
    try:
        await ended
    finally:
        await worker.close_sessions()
