"""The backend that plays in worker processes, and replaces dead or hanging workers."""

from __future__ import annotations

import asyncio
import functools
import itertools
import multiprocessing
import os
import pickle
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from mcpenv_client.types.records import StepResult

from .assignment import Limits, Played, Share
from .backend import CLOSED, LOST, PoolError, all_of, in_shares, lost_result, refuse_unused_warm
from .episode import Outcome, Policy, is_async
from .instances import Target
from .playing import TIMEOUT, changed, played_of
from .worker import Answers, Begin, End, Failed, Reset, Step, main

GRACE_S = 5.0
"""Seconds after an episode's time limit for a worker to report the timeout itself."""

QUEUED = 16
"""Queued episodes of a worker that plays one after the other, so that it never waits for the next."""


class ProcessBackend:
    """Plays in worker processes, which a fork server creates after importing the environment.

    A dead worker is detected at once and replaced. A worker that exceeds an episode's time limit is killed and
    replaced. Its episodes that had not begun go to another worker. If several episodes were running, each is begun
    again in a worker without other episodes. Only the one that ends its worker is lost: it has the status `LOST`.

    Args:
        target: the environment; a class or function must be importable in another process.
        size: the total number of environments.
        workers: the number of processes; None: one for each core, at most ``size``.
        settings: settings of the target.
        memory_bytes: the address space of each worker; None: no limit.
        warm: the number of environments in addition to ``size`` to reset ahead of need, for async policies; the same
            number in each worker.
        start_timeout_s: seconds for a worker to load the target.
    """

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
        self.size = size
        number = min(size, workers or len(os.sched_getaffinity(0)))
        self._context = multiprocessing.get_context("forkserver")
        preload = ["mcpenv", "mcpenv.extensions.in_process", "mcpenv_client.pool.worker"]
        module = getattr(target, "__module__", None)
        if module not in (None, "__main__"):
            preload.append(module)
        self._context.set_forkserver_preload(preload)
        self._at_once = max(1, size // number)
        self._warm = -(-warm // number)
        self._arguments = (target, tuple(settings), memory_bytes, self._at_once if warm else None)
        self._start_timeout_s = start_timeout_s
        # Environment `i` is in worker `i % number`, so that all workers have equal numbers.
        self._workers = [_Worker(self) for _ in range(number)]
        self._begin: Begin | None = None
        self._depth = QUEUED
        self._moved: dict[asyncio.Task[None], asyncio.Future[list[Outcome]]] = {}

    @property
    def at_once(self) -> int:
        """The number of episodes that its workers can hold."""
        return len(self._workers) * self._depth

    async def start(self) -> None:
        """Start the workers."""
        try:
            pickle.dumps(self._arguments)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise PoolError(
                f"the target cannot be sent to a process ({error}); give a TARGET as text, or a class at the top of a "
                "module"
            ) from error
        await all_of(worker.start() for worker in self._workers)

    async def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.stop()
        for answer in list(self._moved.values()):
            if not answer.done():
                answer.set_exception(PoolError(CLOSED))

    async def begin(self, policy: Policy, limits: Limits) -> None:
        """Send the policy to the workers."""
        refuse_unused_warm(self._warm, policy, "a worker process")
        begin = Begin(policy, limits)
        try:
            pickle.dumps(begin)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise PoolError(
                f"the policy cannot be sent to a process ({error}). Put it at the top of a module, or keep it here: "
                'step_all(), or backend="local"'
            ) from error
        self._depth = self._at_once + self._warm if is_async(policy) else QUEUED
        for worker in self._workers:
            worker.finish_rollout()
        self._begin = begin
        await all_of(worker.start() for worker in self._workers if not worker.alive)
        for worker in self._workers:
            worker.begin_rollout(begin, self._depth if is_async(policy) else 1)

    async def play(self, share: Share) -> list[Outcome]:
        """Play one share in the least loaded worker."""
        while True:
            worker = min(self._workers, key=lambda each: (each.alone.locked(), each.load))
            if not worker.alone.locked():
                break
            async with worker.alone:
                continue
        return await self._play(worker, share)

    async def play_alone(self, share: Share) -> list[Outcome]:
        """Play one share in a worker without other shares."""
        worker = min(self._workers, key=lambda each: (each.alone.locked(), each.load))
        async with worker.alone:
            await worker.idle.wait()
            return await self._play(worker, share)

    async def _play(self, worker: _Worker, share: Share) -> list[Outcome]:
        if not worker.alive:
            await worker.start()
        return await worker.play(share)

    def again(self, share: Share, answer: asyncio.Future[list[Outcome]], *, begun: bool) -> None:
        """Play a share that was lost with its worker, and set its answer.

        A share that had begun gets a worker without other shares.
        """
        task = asyncio.ensure_future(self._again(share, answer, begun))
        self._moved[task] = answer
        task.add_done_callback(self._moved.pop)
        answer.add_done_callback(functools.partial(_cancel, task))

    async def _again(self, share: Share, answer: asyncio.Future[list[Outcome]], begun: bool) -> None:
        try:
            outcomes = await (self.play_alone(share) if begun else self.play(share))
        except Exception as error:  # noqa: BLE001 - raised where the future is awaited
            if not answer.done():
                answer.set_exception(error)
            return
        if begun:
            outcomes = [changed(each, attempts=played_of(each).attempts + 1) for each in outcomes]
        if not answer.done():
            answer.set_result(outcomes)

    async def reset(self, options: Sequence[Mapping[str, Any] | None]) -> list[StepResult[Any] | None]:
        """Reset environments."""
        return await self._each(options, lambda requests: Reset([(i, dict(given)) for i, given in requests]), 300.0)

    async def step(self, actions: Sequence[Any], timeout_s: float | None) -> list[StepResult[Any] | None]:
        """Take one step in each environment."""
        limit_s = 300.0 if timeout_s is None else timeout_s * len(actions)
        return await self._each(actions, lambda requests: Step(requests, timeout_s), limit_s + GRACE_S)

    async def _each(self, items: Sequence[Any], request: Any, limit_s: float) -> list[StepResult[Any] | None]:
        async def ask(place: int, mine: Sequence[tuple[int, Any]]) -> Sequence[StepResult[Any]]:
            worker = self._workers[place]
            worker.finish_rollout()
            if not worker.alive:
                await worker.start()
            answers = await worker.ask(request(mine), limit_s)
            return [lost_result(LOST, worker.died) for _ in mine] if answers is None else answers

        return await in_shares(items, len(self._workers), ask)

    def make(self) -> tuple[BaseProcess, Connection]:
        """Start a process."""
        mine, its = self._context.Pipe()
        process = self._context.Process(target=main, args=(its, *self._arguments), daemon=True)
        process.start()
        its.close()
        return process, mine


class _Worker:
    """One worker process, from the parent's side.

    Attributes:
        died: the reason for the end of the last process.
        alone: the lock of a share that requires this worker for itself.
        idle: set while it has no share.
    """

    def __init__(self, backend: ProcessBackend) -> None:
        self._backend = backend
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._queue: deque[tuple[Share, asyncio.Future[list[Outcome]]]] = deque()
        self._asked: asyncio.Future[Any] | None = None
        self._running = 1
        self._in_rollout = False
        self._alarm: asyncio.TimerHandle | None = None
        self._starting: asyncio.Future[None] | None = None
        self.died = ""
        self.alone = asyncio.Lock()
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def alive(self) -> bool:
        """True if its process is ready and has not been found dead."""
        return self._pipe is not None and self._starting is None

    @property
    def load(self) -> int:
        """The number of episodes that it has."""
        return sum(len(share) for share, _ in self._queue)

    async def start(self) -> None:
        """Start its process, and wait until it is ready. Concurrent callers wait for the same start.

        Raises:
            PoolError: the target cannot be loaded there, or the process ended.
        """
        if self._starting is not None:
            await asyncio.shield(self._starting)
            return
        loop = asyncio.get_running_loop()
        self._starting = loop.create_future()
        self.died = ""
        try:
            process, pipe = await loop.run_in_executor(None, self._backend.make)
            self._process, self._pipe = process, pipe
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="mcpenv-pool-writer")
            self._asked = loop.create_future()
            loop.add_reader(pipe.fileno(), self._readable)
            loop.add_reader(process.sentinel, self._gone)
            self._watch(self._backend._start_timeout_s)
            try:
                answer = await self._asked
            finally:
                self._asked = None
                self._watch(None)
            if isinstance(answer, Failed):
                raise answer.error
            if self._pipe is None:
                raise PoolError(f"a worker ended before it was ready: {self.died}")
        except BaseException as error:
            self.stop()
            self._starting.set_exception(error)
            self._starting.exception()
            raise
        else:
            self._starting.set_result(None)
            if self._backend._begin is not None and self._in_rollout:
                self._send(self._backend._begin)
        finally:
            self._starting = None

    def stop(self) -> None:
        """Kill its process. It has no state that outlives an episode."""
        self._in_rollout = False
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._let_go()
        asked = [] if self._asked is None else [self._asked]
        for future in [*(future for _, future in self._queue), *asked]:
            if not future.done():
                future.set_exception(PoolError(CLOSED))
        self._queue.clear()
        self.idle.set()

    # -- requests

    def begin_rollout(self, begin: Begin, at_once: int) -> None:
        """Send a policy. Up to ``at_once`` of its episodes run concurrently."""
        self._running, self._in_rollout = at_once, True
        self._send(begin)

    def finish_rollout(self) -> None:
        """End a rollout, if there is one. The episodes of a cancelled rollout end with their process."""
        if self._queue:
            self.stop()
        elif self._in_rollout and self._pipe is not None:
            self._send(End())
        self._in_rollout = False

    async def play(self, share: Share) -> list[Outcome]:
        """Play one share."""
        future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._queue.append((share, future))
        self.idle.clear()
        if len(self._queue) <= self._running:
            self._watch_episode()
        self._send(share)
        return await future

    async def ask(self, request: Any, limit_s: float) -> Any:
        """Send a request and return its answer; None if the process was lost. Cancelling ends the process.

        Raises:
            the exception raised by the request in the worker.
        """
        self._asked = asyncio.get_running_loop().create_future()
        self._watch(limit_s)
        self._send(request)
        try:
            answer = await self._asked
        except asyncio.CancelledError:
            self.stop()  # a late answer would be matched with the next request
            raise
        finally:
            self._asked = None
            self._watch(None)
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    def _send(self, message: Any) -> None:
        """Send a message from a thread: a worker that does not read must not block the event loop.

        `_gone` handles the error of a broken pipe.
        """
        assert self._pipe is not None and self._writer is not None
        self._writer.submit(self._pipe.send_bytes, pickle.dumps(message))

    # -- answers

    def _readable(self) -> None:
        assert self._pipe is not None
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._gone()
        else:
            self._answered(answer)

    def _answered(self, answer: Any) -> None:
        if self._asked is not None:
            if not self._asked.done():
                self._asked.set_result(answer)
            return
        assert isinstance(answer, (Answers, Failed))
        place = next(place for place, (share, _) in enumerate(self._queue) if share[0].number == answer.number)
        future = self._queue[place][1]
        del self._queue[place]
        if self._queue:
            self._watch_episode()
        else:
            self._watch(None)
            self.idle.set()
        if future.done():
            return  # its caller was cancelled
        if isinstance(answer, Failed):
            future.set_exception(answer.error)
        else:
            future.set_result(answer.outcomes)

    def _gone(self) -> None:
        """Answer the pending requests of the ended process, and replace it at the next request."""
        # Its last answers may arrive after its end is noticed.
        while self._pipe is not None and self._pipe.poll():
            try:
                answer = self._pipe.recv()
            except (EOFError, OSError):
                break
            self._answered(answer)
        process = self._process
        self._let_go()
        code = None
        if process is not None:
            process.join(GRACE_S)
            code = process.exitcode
        self.died = self.died or f"its process ended with exit code {code}"
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(None)
        lost, self._queue = list(self._queue), deque()
        self.idle.set()
        company = sum(not future.done() for _, future in lost[: self._running]) > 1
        for place, (share, future) in enumerate(lost):
            begun = place < self._running
            if future.done():
                continue
            if begun and not company:
                future.set_result([Played(each, LOST, error=self.died, where="process") for each in share])
            else:
                self._backend.again(share, future, begun=begun)

    def _let_go(self) -> None:
        loop = asyncio.get_running_loop()
        self._watch(None)
        if self._process is not None:
            loop.remove_reader(self._process.sentinel)
        if self._pipe is not None:
            loop.remove_reader(self._pipe.fileno())
        if self._writer is not None:
            self._writer.shutdown(cancel_futures=True)
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = self._writer = None

    # -- deadlines

    def _watch_episode(self) -> None:
        begin = self._backend._begin
        assert begin is not None
        longest = max(len(share) for share, _ in itertools.islice(self._queue, self._running))
        self._watch(begin.limits.episode_timeout_s * longest + GRACE_S)

    def _watch(self, limit_s: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if limit_s is not None:
            self._alarm = asyncio.get_running_loop().call_later(limit_s, self._hung, limit_s)

    def _hung(self, limit_s: float) -> None:
        self._alarm = None
        if self._process is not None:
            self.died = f"its process did not answer for {limit_s:g} s and was killed ({TIMEOUT})"
            with suppress(ProcessLookupError):
                self._process.kill()  # the sentinel reports its end


def _cancel(task: asyncio.Task[None], _: asyncio.Future[list[Outcome]]) -> None:
    task.cancel()
