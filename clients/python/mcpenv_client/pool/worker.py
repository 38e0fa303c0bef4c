"""The worker process of a pool: plays the episodes that arrive through its pipe, or steps its environments."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

from mcpenv_client.types.records import StepResult

from .assignment import Limits, Share
from .backend import PoolError
from .episode import AsyncPolicy, BlockingPolicy, Outcome, Policy, is_async
from .held import HeldEnvironments
from .instances import Instances, Target, instances_of
from .playing import changed, played_of
from .ready import ReadyEnvironments


@dataclass(frozen=True)
class Begin:
    """A rollout begins: episodes of this policy follow."""

    policy: Policy
    limits: Limits


@dataclass(frozen=True)
class End:
    """The rollout is over."""


@dataclass(frozen=True)
class Reset:
    """Reset environments: an index and the reset's arguments for each."""

    requests: Sequence[tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class Step:
    """Step environments: an index and an action for each."""

    requests: Sequence[tuple[int, Any]]
    timeout_s: float | None


@dataclass(frozen=True)
class Failed:
    """A request failed with an error that its caller must see.

    ``number`` is the number of the share's first episode.
    """

    error: Exception
    number: int | None = None


@dataclass(frozen=True)
class Answers:
    """The outcomes of the episodes of a share."""

    outcomes: list[Outcome]

    @property
    def number(self) -> int:
        """The number of the first episode."""
        return played_of(self.outcomes[0]).assignment.number


def main(
    pipe: Connection, target: Target, settings: Sequence[str], memory_bytes: int | None, at_once: int | None
) -> None:
    """Run a worker until its pipe ends. Sends None when it is ready, or `Failed`.

    Args:
        pipe: requests in, answers out.
        target: the environment.
        settings: settings of the target.
        memory_bytes: the maximum address space of this process; None: no limit.
        at_once: the number of concurrent async policies; further episodes are reset ahead and wait; None: no limit.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends its workers
    if memory_bytes is not None:
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    try:
        worker = Worker(pipe, instances_of(target, settings), at_once)
    except PoolError as error:
        pipe.send(Failed(error))
        return
    pipe.send(None)
    try:
        worker.run()
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return  # the parent has exited
    finally:
        worker.close()


class Worker:
    """The environments of one process.

    Args:
        pipe: requests in, answers out.
        instances: makes environments.
        at_once: as for `main`.
    """

    def __init__(self, pipe: Connection, instances: Instances, at_once: int | None = None) -> None:
        self._pipe = pipe
        self._held = HeldEnvironments(instances)
        self._ready = ReadyEnvironments(instances, at_once)
        self._where = f"process {os.getpid()}"

    def run(self) -> None:
        """Answer requests, until the pipe ends."""
        while True:
            request = self._pipe.recv()
            if isinstance(request, Begin):
                if is_async(request.policy):
                    asyncio.run(self._play_async(request))
                else:
                    self._play(cast("BlockingPolicy", request.policy), request.limits)
            elif isinstance(request, Reset):
                self._answer(self._held.reset, request.requests)
            elif isinstance(request, Step):
                self._answer(self._held.step, request.requests, request.timeout_s)

    def close(self) -> None:
        """Close the environments."""
        self._held.close()
        self._ready.close()

    # -- whole episodes

    def _play(self, policy: BlockingPolicy, limits: Limits) -> None:
        while True:
            share = self._pipe.recv()
            if isinstance(share, End):
                return
            try:
                outcomes = self._ready.play_blocking(policy, share, limits)
            except Exception as error:  # noqa: BLE001 - raised in the parent
                self._send(Failed(error, share[0].number))
            else:
                self._send(self._placed(outcomes))

    async def _play_async(self, begin: Begin) -> None:
        """Play episodes concurrently, as they arrive."""
        loop = asyncio.get_running_loop()
        requests: asyncio.Queue[Any] = asyncio.Queue()

        def readable() -> None:
            try:
                requests.put_nowait(self._pipe.recv())
            except (EOFError, OSError) as error:
                loop.remove_reader(self._pipe.fileno())
                requests.put_nowait(error)

        loop.add_reader(self._pipe.fileno(), readable)
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                request = await requests.get()
                if isinstance(request, Exception):
                    raise request
                if isinstance(request, End):
                    break
                task = loop.create_task(self._play_one(begin, request))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
        finally:
            loop.remove_reader(self._pipe.fileno())
            await self._ready.close_sessions()

    async def _play_one(self, begin: Begin, share: Share) -> None:
        try:
            outcomes = await self._ready.play(cast("AsyncPolicy", begin.policy), share, begin.limits)
        except Exception as error:  # noqa: BLE001 - raised in the parent
            self._send(Failed(error, share[0].number))
        else:
            self._send(self._placed(outcomes))

    def _placed(self, outcomes: list[Outcome]) -> Answers:
        return Answers([changed(each, where=self._where) for each in outcomes])

    # -- single steps

    def _answer(self, call: Callable[..., list[StepResult[Any]]], *arguments: Any) -> None:
        try:
            answers = call(*arguments)
        except Exception as error:  # noqa: BLE001 - raised in the parent
            self._send(Failed(error))
        else:
            self._send(answers)

    def _send(self, answer: Any) -> None:
        """Send an answer, or the reason why it cannot be sent."""
        try:
            self._pipe.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
            number = answer.number if isinstance(answer, (Answers, Failed)) else None
            reason = f"a worker's answer cannot be sent to the parent ({error}); return plain data from the policy"
            self._pipe.send(Failed(PoolError(reason), number))
