"""The class of a Ray actor: plays batches of episodes, or steps its environments."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import ray
from ray import cloudpickle

from mcpenv_client.types.records import StepResult

from .assignment import Share
from .backend import PoolError
from .episode import AsyncPolicy, BlockingPolicy, Outcome, is_async
from .held import HeldEnvironments
from .instances import instances_of
from .playing import changed
from .ready import ReadyEnvironments
from .worker import Answers, Begin, Failed

T = TypeVar("T")

BATCH_S = 0.5
"""The seconds after which an actor begins no further episode of a batch: a lost batch then costs little."""


class Actor:
    """The environments of one actor. Blocking policies and single steps have one thread, so that calls run in order.

    Answers are bytes, so that one unpicklable answer does not cost the others.

    Args:
        target: the pickled target.
        settings: settings of the target.
        at_once: the number of concurrent async policies; further episodes are reset ahead and wait; None: no limit.
    """

    def __init__(self, target: bytes, settings: Sequence[str], at_once: int | None = None) -> None:
        self._given = (target, settings)
        self._at_once = at_once
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mcpenv-pool")
        self._loading = asyncio.Lock()
        self._held: HeldEnvironments | None = None
        self._ready: ReadyEnvironments
        self._rollout: tuple[int, Begin] | None = None
        self._where = f"actor {os.getpid()} on {ray.util.get_node_ip_address()}"

    async def load(self) -> str:
        """Load the target. Return why it cannot be loaded, or an empty text."""
        async with self._loading:
            if self._held is None:
                target, settings = self._given
                try:
                    instances = await self._in_thread(lambda: instances_of(pickle.loads(target), settings))
                except PoolError as error:
                    return str(error)
                except (ImportError, AttributeError) as error:
                    return (
                        f"the target cannot be imported in a Ray actor: {error}. Put its module beside the program or "
                        "on PYTHONPATH, or name it in runtime_env of actor_options"
                    )
                self._held, self._ready = HeldEnvironments(instances), ReadyEnvironments(instances, self._at_once)
        return ""

    async def play(self, rollout: int, begin: Sequence[Any], shares: Sequence[Share]) -> bytes:
        """Play shares and return a list of `Answers` or `Failed`; if time is short, only the first result.

        Args:
            rollout: the number of the rollout.
            begin: the reference of its pickled `Begin`, in a list so that Ray does not fetch it for each call.
            shares: the shares to play.
        """
        await self._loaded()
        async with self._loading:
            if self._rollout is None or self._rollout[0] != rollout:
                self._rollout = (rollout, pickle.loads(await begin[0]))
        given = self._rollout[1]
        if is_async(given.policy):
            return _packed(await asyncio.gather(*(self._play_async(given, each) for each in shares)))
        waiting = deque(shares)
        try:
            return await self._in_thread(lambda: _packed(self._play(given, waiting)))
        except asyncio.CancelledError:
            waiting.clear()
            raise

    async def reset(self, requests: Sequence[tuple[int, dict[str, Any]]]) -> bytes:
        """Reset environments, and return a list of their results or `Failed`."""
        return await self._single(lambda held: held.reset(requests))

    async def step(self, requests: Sequence[tuple[int, Any]], timeout_s: float | None) -> bytes:
        """Step environments, and return a list of their results or `Failed`."""
        return await self._single(lambda held: held.step(requests, timeout_s))

    async def _loaded(self) -> HeldEnvironments:
        """Load the target, if Ray has restarted this actor since the driver checked.

        Raises:
            PoolError: it cannot be loaded.
        """
        text = await self.load()
        if self._held is None:
            raise PoolError(text)
        return self._held

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _play(self, begin: Begin, waiting: deque[Share]) -> list[Answers | Failed]:
        answers: list[Answers | Failed] = []
        began = time.monotonic()
        while waiting and (not answers or time.monotonic() - began < BATCH_S):
            share = waiting.popleft()
            try:
                policy = cast("BlockingPolicy", begin.policy)
                outcomes = self._ready.play_blocking(policy, share, begin.limits)
            except Exception as error:  # noqa: BLE001 - raised in the driver
                answers.append(Failed(error, share[0].number))
            else:
                answers.append(self._placed(outcomes))
        return answers

    async def _play_async(self, begin: Begin, share: Share) -> Answers | Failed:
        try:
            outcomes = await self._ready.play(cast("AsyncPolicy", begin.policy), share, begin.limits)
        except Exception as error:  # noqa: BLE001 - raised in the driver
            return Failed(error, share[0].number)
        return self._placed(outcomes)

    def _placed(self, outcomes: Sequence[Outcome]) -> Answers:
        return Answers([changed(each, where=self._where) for each in outcomes])

    async def _single(self, call: Callable[[HeldEnvironments], list[StepResult[Any]]]) -> bytes:
        held = await self._loaded()
        answer: list[StepResult[Any]] | Failed
        try:
            answer = await self._in_thread(lambda: call(held))
        except Exception as error:  # noqa: BLE001 - raised in the driver
            answer = Failed(error)
        return cast("bytes", cloudpickle.dumps(answer))


def _packed(answers: Sequence[Answers | Failed]) -> bytes:
    """Return pickled answers. An unpicklable one is replaced by the reason."""
    try:
        return cast("bytes", cloudpickle.dumps(answers))
    except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
        if len(answers) == 1:
            reason = f"an actor's answer cannot be sent to the driver ({error}); return plain data from the policy"
            return cast("bytes", cloudpickle.dumps([Failed(PoolError(reason), answers[0].number)]))
        each = [pickle.loads(_packed([answer]))[0] for answer in answers]
        return cast("bytes", cloudpickle.dumps(each))
