"""A pool of servers that are started ahead of need: `ProviderPool`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcpenv_client.errors import McpenvError

from .fingerprint import state_hash
from .provider import Instance, Provider

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("mcpenv_client.providers")

PROBE_TIMEOUT_S = 60.0
"""Maximum seconds to wait for each answer of a server during a comparison of states."""


@dataclass(frozen=True)
class Replaced:
    """The report on an instance that the pool has replaced.

    Attributes:
        name: the replaced instance.
        reason: the fault.
    """

    name: str
    reason: str


class _Place:
    """One place of the pool. It has an instance, or none if the last start failed."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._stack = AsyncExitStack()
        self.instance: Instance | None = None

    async def fill(self) -> Instance:
        """Start an instance."""
        self.instance = await self._stack.enter_async_context(self._provider.instance())
        return self.instance

    async def clear(self) -> None:
        """End the instance, if there is one."""
        self.instance = None
        await self._stack.aclose()


class ProviderPool:
    """The pool of ready instances of one provider. One block at a time uses an instance.

    An instance is provided only if it is alive. After use it begins an episode; the hash of its observation, state and
    tools is compared with a new instance's hash. An instance that differs, or does not answer, is replaced.

    A new instance begins that episode twice before its hash is trusted. If these hashes differ, nothing can be proven,
    and every used instance is replaced.

    Use it as ``async with``. Several tasks of one event loop may use it at once.

    Args:
        provider: the provider.
        size: the number of instances.
        reset: options of the reset for the comparison; ``{"seed": 0}`` by default.

    Attributes:
        replaced: the instances that were replaced, oldest first.
        pristine: the hash of a new instance; None before the start, and if it differs from episode to episode.
    """

    def __init__(self, provider: Provider, size: int, *, reset: Mapping[str, Any] | None = None) -> None:
        if size < 1:
            raise ValueError(f"size is {size}; it must be 1 or more")
        self.provider = provider
        self.size = size
        self.replaced: list[Replaced] = []
        self.pristine: str | None = None
        self._reset = {"seed": 0} if reset is None else dict(reset)
        self._places = [_Place(provider) for _ in range(size)]
        self._free: asyncio.Queue[_Place] = asyncio.Queue()
        self._recycling: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Start all instances.

        Raises:
            ProviderUnavailable: a requirement is missing; nothing was started.
            InstanceFailed: an instance did not start; the others are ended.
        """
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self._clear)
            first = await self._places[0].fill()
            self.pristine = await self._trusted_hash(first)
            filling = [asyncio.ensure_future(place.fill()) for place in self._places[1:]]
            try:
                await asyncio.gather(*filling)
            finally:
                for task in filling:
                    task.cancel()
                await asyncio.gather(*filling, return_exceptions=True)
            undo.pop_all()
        for place in self._places:
            self._free.put_nowait(place)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End all instances."""
        recycling = list(self._recycling)
        for task in recycling:
            task.cancel()
        await asyncio.gather(*recycling, return_exceptions=True)
        await self._clear()

    @asynccontextmanager
    async def instance(self) -> AsyncIterator[Instance]:
        """Provide a live instance for the block. Wait if all are in use.

        Raises:
            InstanceFailed: one had to be replaced, and the new one did not start. The next use tries again.
        """
        place = await self._free.get()
        with ExitStack() as undo:
            undo.callback(self._free.put_nowait, place)
            instance = place.instance
            if instance is None:
                instance = await place.fill()
            elif not await instance.is_alive():
                instance = await self._replace(place, "it is not alive")
            undo.pop_all()
        try:
            yield instance
        finally:
            task = asyncio.ensure_future(self._recycle(place, instance))
            self._recycling.add(task)
            task.add_done_callback(self._recycling.discard)

    async def _recycle(self, place: _Place, instance: Instance) -> None:
        """Make an instance ready for its next use, then free its place."""
        try:
            reason = await self._fault(instance)
            if reason is not None:
                await self._replace(place, reason)
        except McpenvError:
            # The place is empty now. Its next user tries again, and gets the error if that fails too.
            logger.exception("%s could not be replaced", instance.name)
        finally:
            self._free.put_nowait(place)

    async def _fault(self, instance: Instance) -> str | None:
        """Return the fault of a used instance; None if its state equals a new instance's."""
        if self.pristine is None:
            return "the state after a reset differs from episode to episode, so that nothing proves it to be as new"
        try:
            found = await self._hash(instance)
        except McpenvError as error:
            return f"it could not be compared with a new one: {error}"
        if found != self.pristine:
            return f"after a reset its state is {found[:12]}, and {self.pristine[:12]} in a new one"
        return None

    async def _replace(self, place: _Place, reason: str) -> Instance:
        assert place.instance is not None
        self.replaced.append(Replaced(place.instance.name, reason))
        logger.warning("%s is replaced: %s", place.instance.name, reason)
        await place.clear()
        return await place.fill()

    async def _trusted_hash(self, instance: Instance) -> str | None:
        first, second = await self._hash(instance), await self._hash(instance)
        if first == second:
            return first
        logger.warning("%s: its state after a reset is not reproducible; instances are used once", instance.name)
        return None

    async def _hash(self, instance: Instance) -> str:
        return await state_hash(instance, self._reset, PROBE_TIMEOUT_S)

    async def _clear(self) -> None:
        await asyncio.gather(*(place.clear() for place in self._places))
