"""The backend that plays in this process: environments in threads, or in its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from mcpenv_client.types.records import StepResult

from .assignment import Share
from .backend import CLOSED, DirectRollout, PoolError, Rollout
from .episode import Begin, Outcome
from .held import HeldEnvironments
from .instances import Target, instances_of
from .ready import ReadyEnvironments
from .threads import DaemonThreads


class LocalBackend:
    """Plays in this process. A blocking policy has a thread for each environment; Python runs one thread at a time.

    A tool that never returns cannot be stopped here: use processes for code that may hang.

    Args:
        target: the environment.
        size: the environments.
        settings: settings of the target.
        warm: the number of environments in addition to ``size`` to reset ahead of need.
    """

    def __init__(self, target: Target, size: int, settings: Sequence[str] = (), *, warm: int = 0) -> None:
        self._target = target
        self._settings = settings
        self.size = size
        self._warm = warm
        self._threads: Executor | None = None
        self._held: HeldEnvironments | None = None
        self._ready: ReadyEnvironments | None = None

    @property
    def at_once(self) -> int:
        """The number of environments."""
        return self.size + self._warm

    async def start(self) -> None:
        """Load the target."""
        self._threads = DaemonThreads(self.at_once)
        instances = await self._run(lambda: instances_of(self._target, self._settings))
        self._held, self._ready = HeldEnvironments(instances), ReadyEnvironments(instances, self.size)

    async def close(self) -> None:
        """Close the environments and end the threads."""
        if self._threads is None:
            return
        self._threads.shutdown(wait=False)
        self._threads = DaemonThreads(1)  # the others may run policies
        ready, held, self._ready, self._held = self._ready, self._held, None, None
        if ready is not None and held is not None:
            await self._run(ready.close)
            await ready.close_sessions()
            await self._run(held.close)
        self._threads.shutdown(wait=False)
        self._threads = None

    async def begin(self, begin: Begin) -> Rollout:
        """Return a new rollout."""
        return DirectRollout(self, begin)

    def pause(self, paused: bool) -> None:
        """Pause the episodes, or continue."""
        if self._ready is not None:
            self._ready.clock.stop() if paused else self._ready.clock.start()

    async def play(self, begin: Begin, share: Share) -> list[Outcome]:
        """Play one share."""
        ready = self._ready
        if ready is None:
            raise PoolError(CLOSED)
        if begin.is_async:
            return await ready.play(begin, share)
        answer: list[Outcome] = await self._run(lambda: ready.play_blocking(begin, share))
        if self._ready is not ready:
            raise PoolError(CLOSED)
        return answer

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
