"""MixedPool: episodes of several environments in one play."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from .assignment import Assignment, Played, world_of
from .env_pool import EnvPool
from .episode import Policy
from .instances import Target
from .plan import Plan, Tasks
from .plays import Plays
from .stream import Episodes, Stream

if TYPE_CHECKING:
    from typing_extensions import Self

AHEAD = 1000
"""The number of episodes that wait for a place in their worlds, at which a mixed pool reads no further rows."""


class MixedPool(Plays):
    """Pools of several environments that play as one. Use it as ``async with``.

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

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for pool in self.pools.values():
                await stack.enter_async_context(pool)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def play(
        self,
        policy: Policy | Mapping[str, Policy],
        tasks: Tasks | None = None,
        *,
        n: int = 1,
        group: int = 1,
        seed: int | None = None,
        **options: Any,
    ) -> MixedStream:
        """Play episodes and yield each as soon as it is done.

        Args:
            policy: one for all worlds, or one for each by name.
            tasks: rows with ``world``. They may be endless. A row is read when a place in any world is free; a world
                whose rows are rare is looked for until `AHEAD` episodes of the others wait.
            n, group, seed: as for `EnvPool.rollout`.
            options: further arguments of `EnvPool.play`, except ``forks`` and ``progress``.

        Raises:
            ValueError: there are no tasks, a world has no policy, or, while it plays, a row names no world.
        """
        if tasks is None:
            raise ValueError('a mixed pool needs tasks, each a row with "world"')
        for name in ("forks", "progress"):
            if name in options:
                raise ValueError(f"a mixed pool takes no {name}")
        policies = policy if isinstance(policy, Mapping) else dict.fromkeys(self.pools, policy)
        missing = [name for name in self.pools if name not in policies]
        if missing:
            raise ValueError(f"there is no policy for {', '.join(missing)}")
        router = _Router(Plan(tasks, n=n, group=group, seed=seed), list(self.pools))
        streams = [
            pool.play(policies[name], router.assignments_of(name), **options) for name, pool in self.pools.items()
        ]
        return MixedStream(streams, router, getattr(tasks, "record", None))

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
    """Gives each world the episodes of its rows, which it reads in their order when a world needs the next one."""

    def __init__(self, plan: Plan, worlds: list[str]) -> None:
        self._plan = plan
        self._waiting: dict[str, deque[Assignment]] = {world: deque() for world in worlds}
        self._woken = {world: asyncio.Event() for world in worlds}

    async def assignments_of(self, world: str) -> AsyncIterator[Assignment]:
        """Yield the episodes of a world.

        Raises:
            ValueError: a row names no world.
        """
        own, woken = self._waiting[world], self._woken[world]
        while True:
            woken.clear()
            if own:
                self._wake()  # those that wait until fewer are ahead
                yield own.popleft()
            elif self._plan.ended:
                return
            elif self._read():
                await asyncio.sleep(0)  # other tasks run while a rare world is looked for
            else:
                await woken.wait()

    def _read(self) -> bool:
        """Read the next share. Return False if there is none now, or `AHEAD` episodes wait."""
        if sum(map(len, self._waiting.values())) >= AHEAD:
            return False
        share = self._plan.next(self._wake)
        for each in share or ():
            name = world_of(each.row)
            if name not in self._waiting:
                known = ", ".join(self._waiting)
                raise ValueError(f'a row has the world {name!r}; "world" is one of: {known}')
            self._waiting[name].append(each)
            self._woken[name].set()
        if self._plan.ended:
            self._wake()
        return share is not None

    def _wake(self) -> None:
        for woken in self._woken.values():
            woken.set()

    async def close(self) -> list[Assignment]:
        """Stop the reading of an async iterator, and return the episodes that were read and not taken."""
        return [*itertools.chain(*self._waiting.values()), *await self._plan.close()]


class MixedStream(Episodes):
    """The episodes of a play of several worlds, as `Stream` has those of one.

    Attributes:
        unfinished: as of `Stream`.
    """

    def __init__(self, streams: list[Stream], router: _Router, told: Callable[[Played], None] | None) -> None:
        self.unfinished: list[Assignment] = []
        self._episodes = _episodes(streams, router, told, self.unfinished)


async def _episodes(
    streams: list[Stream],
    router: _Router,
    told: Callable[[Played], None] | None,
    unfinished: list[Assignment],
) -> AsyncGenerator[Played, None]:
    coming = {asyncio.ensure_future(anext(stream)): stream for stream in streams}
    try:
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                stream = coming.pop(task)
                try:
                    played = task.result()
                except StopAsyncIteration:
                    continue
                if told is not None:
                    told(played)
                yield played
                coming[asyncio.ensure_future(anext(stream))] = stream
    finally:
        for task in coming:
            task.cancel()
        ended = await asyncio.gather(*coming, return_exceptions=True)
        unfinished += [each.assignment for each in ended if isinstance(each, Played)]
        for stream in streams:
            await stream.aclose()
            unfinished += stream.unfinished
        unfinished += await router.close()
