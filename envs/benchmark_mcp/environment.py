"""The benchmark environment: tools that cost what one asks for, in time, in processor time, or in bytes."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Annotated

from pydantic import Field

from mcpenv import MCPEnvironment, State, ToolCall, ToolOutcome

MAX_WAIT_S = 60.0
MAX_ROUNDS = 1_000_000
MAX_BYTES = 1_000_000


class BenchmarkState(State):
    """Beside episode and step count: what this episode has cost."""

    waited_s: float = 0.0
    computed_rounds: int = 0
    fetched_bytes: int = 0


class BenchmarkEnvironment(MCPEnvironment):
    """Cost something.

    Description:
        There is nothing to solve. A client says what a call shall cost, and measures what it costs beyond that: how
        many sessions wait at once, whether one that computes delays the others, what a large result takes.

    Tools:
        wait(seconds): waits without occupying anything; the seconds.
        compute(rounds): hashes so often, in a thread; the last hash.
        fetch(size): a text of so many bytes.

    Observation:
        Of a reset: empty. Of a step: the tool's.

    Reward:
        Per step, 1.0 for a call that succeeded, 0.0 for one that failed.

    Start:
        Nothing was asked for. The seed has no effect.

    End:
        None but the server's limits.

    Version:
        1.0.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "benchmark"
    VERSION = "1.0.0"
    state_type = BenchmarkState

    def __init__(self) -> None:
        self.cost = BenchmarkState()
        for tool in (self.wait, self.compute, self.fetch):
            self.tool(tool)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.cost = BenchmarkState()

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return float(outcome.error is None)

    @property
    def state(self) -> BenchmarkState:
        return self.cost

    async def wait(self, seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] = 1.0) -> float:
        """Wait, as for another service."""
        await asyncio.sleep(seconds)
        self.cost.waited_s += seconds
        return seconds

    def compute(self, rounds: Annotated[int, Field(ge=0, le=MAX_ROUNDS)] = 1000) -> str:
        """Occupy a processor: hash a hash, again and again."""
        digest = b""
        for _ in range(rounds):
            digest = hashlib.sha256(digest).digest()
        self.cost.computed_rounds += rounds
        return digest.hex()

    async def fetch(self, size: Annotated[int, Field(ge=0, le=MAX_BYTES)] = 1000) -> str:
        """Get a text of so many bytes."""
        self.cost.fetched_bytes += size
        return "x" * size
