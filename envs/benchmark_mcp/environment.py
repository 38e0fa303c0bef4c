"""Benchmark a server with tools of adjustable cost: waiting time, processor time, or bytes."""

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
    """The cost of this episode, in addition to episode and step count."""

    waited_s: float = 0.0
    computed_rounds: int = 0
    fetched_bytes: int = 0


class BenchmarkEnvironment(MCPEnvironment):
    """Provide tools of adjustable cost.

    Description:
        There is nothing to solve. A client sets the cost of a call, and measures the overhead: the number of sessions
        that can wait at once, the delay that a computing session causes for others, the cost of a large result.

    Tools:
        wait(seconds): wait without using a thread or a processor; returns the seconds.
        compute(rounds): hash ``rounds`` times in a thread; returns the last hash.
        fetch(size): return a text of ``size`` bytes.

    Observation:
        Of a reset: empty. Of a step: the tool's.

    Reward:
        Per step, 1.0 for a call that succeeded, 0.0 for one that failed.

    Start:
        All counters are 0. The seed has no effect.

    End:
        Only by the server's limits.

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
        """Wait for some seconds, as for another service."""
        await asyncio.sleep(seconds)
        self.cost.waited_s += seconds
        return seconds

    def compute(self, rounds: Annotated[int, Field(ge=0, le=MAX_ROUNDS)] = 1000) -> str:
        """Compute a chain of hashes, which occupies a processor."""
        digest = b""
        for _ in range(rounds):
            digest = hashlib.sha256(digest).digest()
        self.cost.computed_rounds += rounds
        return digest.hex()

    async def fetch(self, size: Annotated[int, Field(ge=0, le=MAX_BYTES)] = 1000) -> str:
        """Get a text of ``size`` bytes."""
        self.cost.fetched_bytes += size
        return "x" * size
