"""The environment whose tool takes a given time, with a log of what happens to it."""

from __future__ import annotations

import asyncio

from mcpenv import MCPEnvironment


class Slow(MCPEnvironment):
    """Waits until it is told."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    log: list[str]

    def __init__(self) -> None:
        self.runs = 0

        @self.tool
        async def wait(seconds: float = 60) -> int:
            """Wait."""
            self.runs += 1
            type(self).log.append("began")
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                type(self).log.append("stopped")
                raise
            type(self).log.append("ended")
            return self.runs

        @self.tool
        async def count() -> int:
            """Return how often the tool ran."""
            return self.runs

    def close(self) -> None:
        type(self).log.append("closed")


def with_own_log() -> type[Slow]:
    class Own(Slow):
        log: list[str] = []

    return Own


async def until(log: list[str], entry: str, times: int = 1) -> None:
    async with asyncio.timeout(20):
        while log.count(entry) < times:
            await asyncio.sleep(0)
