"""What a process or an actor of a pool does: plays batches of episodes, or steps its environments."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from mcpenv_client.types.records import StepResult

from .assignment import Share
from .backend import PoolError
from .episode import Begin, Outcome
from .held import HeldEnvironments
from .instances import Instances
from .playing import changed
from .ready import ReadyEnvironments
from .remote_errors import RemoteTraceback, text_of

T = TypeVar("T")

BATCH_S = 0.5
"""The seconds after which a worker begins no further episode of a batch: a lost batch then costs little."""

UNPICKLABLE = (pickle.PicklingError, TypeError, AttributeError, ValueError)
"""The errors of pickling."""


@dataclass(frozen=True)
class Failed:
    """A request failed with an error that its caller must see.

    Attributes:
        error: the error.
        text: its traceback.
    """

    error: Exception
    text: str

    @classmethod
    def by(cls, error: Exception) -> Failed:
        """Return the failure by an error that was raised."""
        return cls(error, text_of(error))

    def raised(self) -> Exception:
        """Return the error with its traceback as cause."""
        self.error.__cause__ = RemoteTraceback(self.text)
        return self.error


@dataclass(frozen=True)
class Answers:
    """The outcomes of the episodes of a share."""

    outcomes: list[Outcome]


class Worker:
    """The environments of one process or actor, for one event loop.

    Answers are bytes, so that one unpicklable answer does not cost the others.

    Args:
        instances: makes environments.
        where: the place for `Played.where`.
        at_once: the number of concurrent async policies; further episodes are reset ahead and wait; None: no limit.
        thread: runs blocking policies and single steps, one at a time and in order.
        dumps: pickles answers.
    """

    def __init__(
        self, instances: Instances, where: str, at_once: int | None, thread: Executor, dumps: Callable[[Any], bytes]
    ) -> None:
        self._held = HeldEnvironments(instances)
        self._ready = ReadyEnvironments(instances, at_once)
        self._where, self._thread, self._dumps = where, thread, dumps
        self._begins: dict[int, bytes | Begin] = {}

    def has(self, rollout: int) -> bool:
        """Return True if it has the policy of a rollout."""
        return rollout in self._begins

    def begin(self, rollout: int, begin: bytes) -> None:
        """Take the pickled `Begin` of a rollout. `play` raises if it cannot be unpickled here."""
        self._begins[rollout] = begin

    def forget(self, rollout: int) -> None:
        """Drop the policy of a rollout."""
        self._begins.pop(rollout, None)

    def pause(self, paused: bool) -> None:
        """Pause the episodes, or continue."""
        self._ready.clock.stop() if paused else self._ready.clock.start()

    async def play(self, rollout: int, shares: Sequence[Share]) -> bytes:
        """Play shares and return a list of `Answers` or `Failed`; if time is short, only of the first shares."""
        given = self._begins[rollout]
        begin = given if isinstance(given, Begin) else pickle.loads(given)
        self._begins[rollout] = begin
        if begin.is_async:
            return self._packed(await asyncio.gather(*(self._play_async(begin, each) for each in shares)))
        waiting = deque(shares)
        try:
            return await self.in_thread(lambda: self._packed(self._play(begin, waiting)))
        except asyncio.CancelledError:
            waiting.clear()
            raise

    async def reset(self, requests: Sequence[tuple[int, dict[str, Any]]]) -> bytes:
        """Reset environments, and return a list of their results or `Failed`."""
        return await self._single(lambda: self._held.reset(requests))

    async def step(self, requests: Sequence[tuple[int, Any]], timeout_s: float | None) -> bytes:
        """Step environments, and return a list of their results or `Failed`."""
        return await self._single(lambda: self._held.step(requests, timeout_s))

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run a blocking call where its environments are."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close_sessions(self) -> None:
        """Close the environments of async policies."""
        await self._ready.close_sessions()

    def close(self) -> None:
        """Close the other environments, in the thread that used them."""
        self._held.close()
        self._ready.close()

    def _play(self, begin: Begin, waiting: deque[Share]) -> list[Answers | Failed]:
        answers: list[Answers | Failed] = []
        began = time.monotonic()
        while waiting and (not answers or time.monotonic() - began < BATCH_S):
            try:
                outcomes = self._ready.play_blocking(begin, waiting.popleft())
            except Exception as error:  # noqa: BLE001 - raised in the caller
                answers.append(Failed.by(error))
            else:
                answers.append(self._placed(outcomes))
        return answers

    async def _play_async(self, begin: Begin, share: Share) -> Answers | Failed:
        try:
            outcomes = await self._ready.play(begin, share)
        except Exception as error:  # noqa: BLE001 - raised in the caller
            return Failed.by(error)
        return self._placed(outcomes)

    def _placed(self, outcomes: Sequence[Outcome]) -> Answers:
        return Answers([changed(each, where=self._where) for each in outcomes])

    async def _single(self, call: Callable[[], list[StepResult[Any]]]) -> bytes:
        answer: list[StepResult[Any]] | Failed
        try:
            answer = await self.in_thread(call)
        except Exception as error:  # noqa: BLE001 - raised in the caller
            answer = Failed.by(error)
        try:
            return self._dumps(answer)
        except UNPICKLABLE as error:
            return self._dumps(self._unsent(error))

    def _packed(self, answers: Sequence[Answers | Failed]) -> bytes:
        """Return pickled answers. An unpicklable one is replaced by the reason."""
        try:
            return self._dumps(answers)
        except UNPICKLABLE as error:
            if len(answers) == 1:
                return self._dumps([self._unsent(error)])
            return self._dumps([pickle.loads(self._packed([answer]))[0] for answer in answers])

    def _unsent(self, error: Exception) -> Failed:
        reason = f"an answer of {self._where} cannot be sent ({error}); return plain data from the policy"
        return Failed(PoolError(reason), text_of(error))
