"""The world of the worker benchmarks, whose tools compute."""

from __future__ import annotations

import os
import time

from mcpenv import MCPEnvironment

BURN_S = 0.005
"""Seconds of processor time that a call takes."""


class Computing(MCPEnvironment):
    """Compute."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        async def burn() -> int:
            """Compute on the event loop."""
            return computed()

        @self.tool
        def burn_sync() -> int:
            """Compute in a thread."""
            return computed()

        @self.tool
        async def process() -> int:
            """Return the id of the process in which this runs."""
            return os.getpid()


def computed() -> int:
    """Return the process id, after `BURN_S` of processor time."""
    begun = time.thread_time()
    while time.thread_time() - begun < BURN_S:
        pass
    return os.getpid()
