"""The backend that plays in this process: environments in threads, or in its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from mcpenv_client.errors import ConnectionFailed, WireError
from mcpenv_client.types.records import StepResult

from .assignment import Assignment, Limits, Played
from .backend import step_failed
from .episode import AsyncPolicy, BlockingPolicy, BlockingSession, Policy, Session, is_async, play, play_blocking
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
        self._policy: Policy
        self._limits = Limits()
        self._idle_blocking: list[BlockingSession] = []
        self._idle: list[Session] = []
        self._held: list[BlockingSession | None] = [None] * size

    @property
    def at_once(self) -> int:
        """The number of environments."""
        return self.size

    async def start(self) -> None:
        """Load the target."""
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="mcpenv-pool")
        self._instances = await self._run(lambda: instances_of(self._target, self._settings))

    async def close(self) -> None:
        """Close the environments and end the threads."""
        if self._threads is None:
            return
        for session in self._idle:
            await session.close()
        blocking = [*self._idle_blocking, *(held for held in self._held if held is not None)]
        for each in blocking:
            await self._run(each.close)
        self._idle, self._idle_blocking, self._held = [], [], [None] * self.size
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
        return await self._each(self._reset, options)

    async def step(self, actions: Sequence[Any], timeout_s: float | None) -> list[StepResult[Any] | None]:
        """Take one step in each environment."""
        return await self._each(lambda index, action: self._step(index, action, timeout_s), actions)

    async def _each(self, one: Callable[[int, Any], StepResult[Any]], items: Sequence[Any]) -> list[Any]:
        def all_of_them() -> list[Any]:
            return [None if item is None else one(index, item) for index, item in enumerate(items)]

        results: list[Any] = await self._run(all_of_them)
        return results

    def _reset(self, index: int, options: Mapping[str, Any]) -> StepResult[Any]:
        held = self._held[index]
        if held is None:
            held = self._held[index] = self._instances.blocking()
        return self._ask(index, lambda: held.reset(**options))

    def _step(self, index: int, action: Any, timeout_s: float | None) -> StepResult[Any]:
        held = self._held[index]
        if held is None:
            raise ValueError(f"environment {index} has no episode; call reset_all() first")
        return self._ask(index, lambda: held.step(action, timeout_s=timeout_s))

    def _ask(self, index: int, call: Callable[[], StepResult[Any]]) -> StepResult[Any]:
        try:
            return call()
        except (WireError, ConnectionFailed) as error:
            result = step_failed(error)
            held, self._held[index] = self._held[index], None
            if held is not None:
                held.close()
            return result

    async def _run(self, fn: Callable[[], Any]) -> Any:
        assert self._threads is not None, "start() comes first"
        return await asyncio.get_running_loop().run_in_executor(self._threads, fn)


__all__ = ["LocalBackend"]
