"""Coroutines as tests of providers, and the environments that they serve."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

WORLDS = Path(__file__).parent / "provider_worlds.py"

LIMIT_S = 100.0
"""No test waits longer for anything."""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A coroutine as a test, in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(*args, **kwargs), LIMIT_S)

        asyncio.run(bounded())

    return run
