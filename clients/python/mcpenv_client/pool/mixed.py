"""MixedPool: episodes of several environments in one play."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from .assignment import Assignment, Played, Share, world_of
from .env_pool import EnvPool, bar_of
from .episode import Policy
from .instances import Target
from .plan import Plan, Tasks
from .plays import Plays
from .stream import Stream, episodes_of

AHEAD = 1000
"""The number of episodes that wait for a place in their worlds, at which a mixed pool reads no further rows."""


class MixedPool(Plays):
    """Pools of several environments that play as one. Use it as ``async with``, or by `sync` as ``with``.

    A task is a row with a column ``world``, which names its environment. The other columns are as for `EnvPool`.
    Episodes of all worlds run at once, each in the pool of its own.

    Args:
        worlds: by name, a pool, or the target of one in this process.
        size: the number of environments of each target.

    Raises:
        ValueError: there is no world.
    """

    def __init__(self, worlds: Mapping[str, EnvPool | Target], size: int = 8) -> None:
        if not worlds:
            raise ValueError("a mixed pool needs at least one world")
        super().__init__()
        self.pools = {
            name: world if isinstance(world, EnvPool) else EnvPool(world, size) for name, world in worlds.items()
        }
        self._stack = AsyncExitStack()

    async def connect(self) -> None:
        """Start the pools of all worlds. Do nothing if they are started.

        Raises:
            PoolError: a target cannot be loaded.
        """
        async with AsyncExitStack() as stack:
            for pool in self.pools.values():
                await stack.enter_async_context(pool)
            self._stack = stack.pop_all()

    async def close(self) -> None:
        """End the pools of all worlds. Safe to call twice. A running play raises an error."""
        super().resume()
        await self._stack.aclose()

    def play(
        self,
        policy: Policy | Mapping[str, Policy],
        tasks: Tasks | None = None,
        *,
        n: int = 1,
        group: int = 1,
        seed: int | None = None,
        forks: bool = False,
        progress: bool = False,
        unfinished: Iterable[Assignment] = (),
        **options: Any,
    ) -> Stream[Played]:
        """Play episodes and yield each as soon as it is done.

        Args:
            policy: one for all worlds, or one for each by name.
            tasks: rows with ``world``. They may be endless. A row is read when a place in any world is free; a world
                whose rows are rare is looked for until `AHEAD` episodes of the others wait.
            n, group, seed, forks, progress, unfinished: as for `EnvPool.rollout`.
            options: further arguments of `EnvPool.play`.

        Raises:
            ValueError: there are no tasks, a world has no policy, or a row of a list names no world.
        """
        if tasks is None:
            raise ValueError('a mixed pool needs tasks, each a row with "world"')
        policies = policy if isinstance(policy, Mapping) else dict.fromkeys(self.pools, policy)
        missing = [name for name in self.pools if name not in policies]
        if missing:
            raise ValueError(f"there is no policy for {', '.join(missing)}")
        given = [*unfinished]
        plan = Plan(tasks, n=n, group=group, seed=seed, forks=forks, unfinished=given, check=self._check)
        router = _Router(plan, list(self.pools))
        parts = [pool.part(_Source(router, name), policies[name], **options) for name, pool in self.pools.items()]
        told, bar = getattr(tasks, "record", None), bar_of(plan.total) if progress else None
        return Stream(lambda left: episodes_of(parts, router.close, told, bar, left), given)

    def _check(self, row: Any) -> None:
        name = world_of(row)
        if name not in self.pools:
            raise ValueError(f'a row has the world {name!r}; "world" is one of: {", ".join(self.pools)}')

    def pause(self) -> None:
        """Let the episodes of all worlds wait, as `EnvPool.pause`."""
        super().pause()
        for pool in self.pools.values():
            pool.pause()

    def resume(self, policy_version: int | None = None) -> None:
        """Continue after `pause`, as `EnvPool.resume`."""
        super().resume(policy_version)
        for pool in self.pools.values():
            pool.resume(policy_version)


class _Router:
    """Gives each world the shares of its rows, which it reads in their order when a world needs the next one."""

    def __init__(self, plan: Plan, worlds: list[str]) -> None:
        self.plan = plan
        self.waiting: dict[str | None, deque[Share]] = {world: deque() for world in worlds}

    def next(self, world: str, wake: Callable[[], None]) -> Share | None:
        """Return the next share of a world, as `Plan.next`. It reads one row, or none if `AHEAD` episodes wait."""
        own, ahead = self.waiting[world], sum(len(share) for own in self.waiting.values() for share in own)
        again = bool(own) and ahead >= AHEAD  # those that wait until fewer are ahead
        if not own and ahead < AHEAD and not self.plan.ended:
            share = self.plan.next(wake)
            if share is not None:
                self.waiting[world_of(share[0].row)].append(share)
            again = self.plan.ended or (share is not None and not own)
        if again:  # at once, no other task would run while a rare world is looked for
            asyncio.get_running_loop().call_soon(wake)
        return own.popleft() if own else None

    async def close(self) -> list[Assignment]:
        """Stop the reading of an async iterator, and return the episodes that were read and not begun."""
        waiting = [each for own in self.waiting.values() for share in own for each in share]
        return [*waiting, *await self.plan.close()]


@dataclass(frozen=True)
class _Source:
    """The shares of one world."""

    router: _Router
    world: str

    @property
    def ended(self) -> bool:
        return self.router.plan.ended and not self.router.waiting[self.world]

    def next(self, wake: Callable[[], None]) -> Share | None:
        return self.router.next(self.world, wake)
