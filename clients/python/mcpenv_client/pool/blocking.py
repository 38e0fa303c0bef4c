"""The blocking form of a pool, and of what it plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mcpenv_client.portal import PORTAL
from mcpenv_client.samples import Sample
from mcpenv_client.types.records import StepResult
from mcpenv_client.types.tasks import Task

from .assignment import Assignment, Played
from .episode import Policy
from .plan import Tasks
from .stream import Stream

if TYPE_CHECKING:
    from typing_extensions import Self

    from .env_pool import EnvPool
    from .plays import Missing, Plays

R = TypeVar("R")
T = TypeVar("T")


class BlockingStream(Generic[T]):
    """`Stream` as a blocking iterator. Episodes run on while the loop's body runs.

    The end of ``with`` and `close` end the play, and so does an exception in a wait for the next item, such as
    KeyboardInterrupt. Leaving a loop early does not.
    """

    def __init__(self, stream: Stream[T]) -> None:
        self._stream = stream
        self._lock = asyncio.Lock()  # the end waits for an interrupted `__next__`, which stops its episodes

    @property
    def unfinished(self) -> list[Assignment]:
        """The episodes that the play read and did not yield, once it is closed."""
        return self._stream.unfinished

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return PORTAL.call(self._next)
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """End the play. Running episodes are stopped. Safe to call twice."""
        PORTAL.call(self._aclose)

    async def _next(self) -> T:
        async with self._lock:
            return await anext(self._stream)

    async def _aclose(self) -> None:
        async with self._lock:
            await self._stream.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SyncPool:
    """A pool with blocking methods, on the event loop that blocking clients share."""

    def __init__(self, pool: Plays) -> None:
        self.pool = pool

    def rollout(
        self, policy: Policy | Mapping[str, Policy], tasks: Tasks | None = None, **options: Any
    ) -> list[Played]:
        """Play episodes and return them in order. The options are the same as for `EnvPool.rollout`."""
        return PORTAL.call(lambda: self.pool.rollout(policy, tasks, **options))

    def play(
        self, policy: Policy | Mapping[str, Policy], tasks: Tasks | None = None, **options: Any
    ) -> BlockingStream[Played]:
        """Play episodes and yield each as soon as it is done. The options are the same as for `EnvPool.play`."""
        return self._stream(lambda: self.pool.play(policy, tasks, **options))

    def groups(
        self, policy: Policy | Mapping[str, Policy], tasks: Tasks | None = None, **options: Any
    ) -> BlockingStream[list[Played]]:
        """Play episodes and yield those of each group. The options are the same as for `EnvPool.groups`."""
        return self._stream(lambda: self.pool.groups(policy, tasks, **options))

    def samples(
        self, policy: Policy | Mapping[str, Policy], tasks: Tasks | None = None, **options: Any
    ) -> BlockingStream[Sample]:
        """Play episodes and yield the samples of each group. The options are the same as for `EnvPool.samples`."""
        return self._stream(lambda: self.pool.samples(policy, tasks, **options))

    def pause(self) -> None:
        """Let the starts and the calls of all episodes wait until `resume`."""
        self._do(self.pool.pause)

    def resume(self, policy_version: int | None = None) -> None:
        """Continue after `pause`. The argument is the same as for `EnvPool.resume`."""
        self._do(lambda: self.pool.resume(policy_version))

    def checkpoint(self, path: str | Path, state: Any = None) -> None:
        """Write what a later process needs to go on. The arguments are the same as for `EnvPool.checkpoint`."""
        self._do(lambda: self.pool.checkpoint(path, state))

    def restore(self, path: str | Path, *, missing: Missing = "raise") -> Any:
        """Go on from a checkpoint. The arguments are the same as for `EnvPool.restore`."""
        return self._do(lambda: self.pool.restore(path, missing=missing))

    def _stream(self, begin: Callable[[], Stream[T]]) -> BlockingStream[T]:
        return BlockingStream(self._do(begin))

    def _do(self, function: Callable[[], R]) -> R:
        """Call a function in the event loop."""

        async def call() -> R:
            return function()

        return PORTAL.call(call)

    def close(self) -> None:
        """End the pool."""
        PORTAL.call(self.pool.close)

    def __enter__(self) -> Self:
        PORTAL.call(self.pool.connect)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SyncEnvPool(SyncPool):
    """`EnvPool` with blocking methods."""

    pool: EnvPool

    @property
    def size(self) -> int:
        """The total number of environments."""
        return self.pool.size

    def reset_all(
        self, rows: Sequence[Task | str | Mapping[str, Any] | None] | None = None, **options: Any
    ) -> list[StepResult[Any] | None]:
        """Begin an episode in each environment. The options are the same as for `EnvPool.reset_all`."""
        return PORTAL.call(lambda: self.pool.reset_all(rows, **options))

    def step_all(self, actions: Sequence[Any], *, timeout_s: float | None = None) -> list[StepResult[Any] | None]:
        """Take one step in each environment."""
        return PORTAL.call(lambda: self.pool.step_all(actions, timeout_s=timeout_s))
