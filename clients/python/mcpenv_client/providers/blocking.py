"""Run blocking code of providers in threads, always to completion."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run a blocking function in a thread. If the task is cancelled, wait for the function, then raise.

    A container that is being created when the task is cancelled therefore exists, or does not, when cleanup begins.
    """
    task = asyncio.ensure_future(asyncio.to_thread(functools.partial(function, *args, **kwargs)))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it
        raise
