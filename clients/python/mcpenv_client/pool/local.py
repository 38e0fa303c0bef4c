"""The backend that plays in this process: environments in threads, or in its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from mcpenv_client.types.records import StepResult

from .assignment import Assignment, Limits, Played
from .backend import CLOSED, PoolError
from .episode import AsyncPolicy, BlockingPolicy, BlockingSession, Policy, Session, is_async, play, play_blocking
from .held import HeldEnvironments
from .instances import Instances, Target, instances_of


class LocalBackend:
    """Plays in this process. A blocking policy has a thread for each environment; Python runs one at a time.

    A tool that never returns cannot be stopped here: use processes for code that may hang.

    Args:
        target: the environment.
        size: the environments.
        settings: settings of the target.
    """

    def __init__(self, target: Target, size: int, settings: Sequence[str] = ()) -> None:
        self._target = target
        self._settings = settings
        self.size = size
        self._threads: ThreadPoolExecutor | None = None
        self._instances: Instances
        self._held: HeldEnvironments | None = None
        self._policy: Policy
        self._limits = Limits()
        self._idle_blocking: list[BlockingSession] = []
        self._idle: list[Session] = []

    @property
    def at_once(self) -> int:
        """The number of environments."""
        return self.size

    async def start(self) -> None:
        """Load the target."""
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="mcpenv-pool")
        self._instances = await self._run(lambda: instances_of(self._target, self._settings))
        self._held = HeldEnvironments(self._instances)

    async def close(self) -> None:
        """Close the environments and end the threads."""
        if self._threads is None:
            return
        for session in self._idle:
            await session.close()
        for each in self._idle_blocking:
            await self._run(each.close)
        if self._held is not None:
            await self._run(self._held.close)
        self._idle, self._idle_blocking, self._held = [], [], None
        self._threads.shutdown(wait=False)
        self._threads = None

    async def begin(self, policy: Policy, limits: Limits) -> None:
        """Prepare for a rollout."""
        self._policy, self._limits = policy, limits

    async def play(self, assignment: Assignment) -> Played:
        """Play one episode."""
        if not is_async(self._policy):
            policy = cast("BlockingPolicy", self._policy)
            answer: Played = await self._run(lambda: self._play_blocking(policy, assignment))
            return answer
        session = self._idle.pop() if self._idle else await self._run(self._instances.session)
        played: Played | None = None
        try:
            played = await play(session, cast("AsyncPolicy", self._policy), assignment, self._limits)
        finally:
            if played is not None and played.status.usable:
                self._idle.append(session)
            else:
                await session.close()
        return played

    def _play_blocking(self, policy: BlockingPolicy, assignment: Assignment) -> Played:
        session: BlockingSession = self._idle_blocking.pop() if self._idle_blocking else self._instances.blocking()
        played: Played | None = None
        try:
            played = play_blocking(session, policy, assignment, self._limits)
        finally:
            if played is not None and played.status.usable:
                self._idle_blocking.append(session)
            else:
                session.close()
        return played

    async def reset(self, options: Sequence[Mapping[str, Any] | None]) -> list[StepResult[Any] | None]:
        """Reset environments."""
        return await self._each(options, lambda held, requests: held.reset(requests))

    async def step(self, actions: Sequence[Any], timeout_s: float | None) -> list[StepResult[Any] | None]:
        """Take one step in each environment."""
        return await self._each(actions, lambda held, requests: held.step(requests, timeout_s))

    async def _each(
        self, items: Sequence[Any], call: Callable[[HeldEnvironments, list[tuple[int, Any]]], list[StepResult[Any]]]
    ) -> list[StepResult[Any] | None]:
        held = self._held
        if held is None:
            raise PoolError(CLOSED)
        given = [(index, item) for index, item in enumerate(items) if item is not None]
        results: list[StepResult[Any] | None] = [None] * len(items)
        for (index, _), result in zip(given, await self._run(lambda: call(held, given)), strict=True):
            results[index] = result
        return results

    async def _run(self, fn: Callable[[], Any]) -> Any:
        if self._threads is None:
            raise PoolError(CLOSED)
        return await asyncio.get_running_loop().run_in_executor(self._threads, fn)


__all__ = ["LocalBackend"]
