"""The class of a Ray actor: a `Worker` that loads its target on first use."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray import cloudpickle

from .assignment import Share
from .backend import PoolError
from .instances import instances_of
from .worker import Worker


class Actor:
    """The environments of one actor.

    Args:
        target: the pickled target.
        settings: settings of the target.
        at_once: as for `Worker`.
    """

    def __init__(self, target: bytes, settings: Sequence[str], at_once: int | None = None) -> None:
        self._given = (target, settings)
        self._at_once = at_once
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mcpenv-pool")
        self._loading = asyncio.Lock()
        self._worker: Worker | None = None
        self._where = f"actor {os.getpid()} on {ray.util.get_node_ip_address()}"

    async def load(self) -> str:
        """Load the target. Return why it cannot be loaded, or an empty text."""
        async with self._loading:
            if self._worker is None:
                target, settings = self._given
                loop = asyncio.get_running_loop()
                try:
                    instances = await loop.run_in_executor(
                        self._thread, lambda: instances_of(pickle.loads(target), settings)
                    )
                except PoolError as error:
                    return str(error)
                except (ImportError, AttributeError) as error:
                    return (
                        f"the target cannot be imported in a Ray actor: {error}. Put its module beside the program or "
                        "on PYTHONPATH, or name it in runtime_env of actor_options"
                    )
                self._worker = Worker(instances, self._where, self._at_once, self._thread, cloudpickle.dumps)
        return ""

    async def play(self, rollout: int, begin: Sequence[Any], shares: Sequence[Share]) -> bytes:
        """Play shares, as `Worker.play`.

        Args:
            rollout: the number of the rollout.
            begin: the reference of its pickled `Begin`, in a list.
            shares: the shares to play.
        """
        worker = await self._loaded()
        async with self._loading:
            if not worker.has(rollout):
                worker.begin(rollout, await begin[0])
        return await worker.play(rollout, shares)

    async def forget(self, rollout: int) -> None:
        """Drop the policy of a rollout."""
        if self._worker is not None:
            self._worker.forget(rollout)

    async def pause(self, paused: bool) -> None:
        """Pause the episodes, or continue."""
        (await self._loaded()).pause(paused)

    async def reset(self, requests: Sequence[tuple[int, dict[str, Any]]]) -> bytes:
        """Reset environments, as `Worker.reset`."""
        return await (await self._loaded()).reset(requests)

    async def step(self, requests: Sequence[tuple[int, Any]], timeout_s: float | None) -> bytes:
        """Step environments, as `Worker.step`."""
        return await (await self._loaded()).step(requests, timeout_s)

    async def _loaded(self) -> Worker:
        """Load the target, if Ray has restarted this actor since the driver checked.

        Raises:
            PoolError: it cannot be loaded.
        """
        text = await self.load()
        if self._worker is None:
            raise PoolError(text)
        return self._worker
