"""The world of the model's server: tools that count, fail, block and end, constructors that fail when they are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

from fault_worlds import Counted
from model import Call

from mcpenv import Observation, ToolCall, ToolError, ToolOutcome

MAX_STEPS = 7

DEADLINE_S = 0.02
"""Of calls that never return."""


class World(Counted):
    """A counter of which every step is worth what it adds.

    Attributes:
        breaks: how many of the next constructors raise.
        closed_on_the_loop: how often ``close`` ran in the thread of the server's event loop.
    """

    breaks: ClassVar[int] = 0
    closed_on_the_loop: ClassVar[int] = 0
    serving_in: ClassVar[threading.Thread]
    mutex: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        super().__init__()
        with self.mutex:
            broken = type(self).breaks > 0
            type(self).breaks -= broken
        if broken:
            self.census.fail()
            raise RuntimeError("this constructor had no luck")
        self.max_steps = MAX_STEPS

        @self.tool
        def add_sync(by: int = 1) -> int:
            """Add in a thread."""
            self.count += by
            return self.count

        @self.tool
        async def fail() -> str:
            """Fail."""
            raise ToolError("no luck")

        @self.tool
        def crash() -> str:
            """Fail in a thread."""
            raise SystemExit("this is no way out")

        @self.tool
        async def worthless() -> str:
            """Nobody can say what it is worth."""
            return "as you like"

        @self.tool
        def worthless_sync() -> str:
            """Nobody can say what it is worth."""
            return "as you like"

        @self.tool(timeout_s=DEADLINE_S)
        async def late() -> str:
            """Never return."""
            await asyncio.Event().wait()
            return "never"

        @self.tool(timeout_s=DEADLINE_S)
        def block() -> str:
            """Block the thread until the gate opens."""
            self.gate.wait()
            return "through"

        @self.tool
        async def hold() -> str:
            """Wait until the gate opens."""
            await self.gate.wait_async()
            return "through"

        @self.tool
        def hold_sync() -> str:
            """Block the thread until the gate opens."""
            self.gate.wait()
            return "through"

        @self.tool(terminal=True)
        async def submit() -> str:
            """End the episode."""
            return "handed in"

        @self.tool
        def give_up() -> str:
            """End the episode early."""
            self.finish(0.5, truncated=True)
            return "given up"

    def reset(self, seed: int | None = None, episode_id: str | None = None, how: str = "well") -> Observation | None:
        if how == "badly":
            raise RuntimeError("no luck")
        if how == "never":
            self.gate.wait()
        return super().reset(seed, episode_id)

    def close(self) -> None:
        type(self).closed_on_the_loop += threading.current_thread() is self.serving_in
        super().close()

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncIterator[None]:
        cls.serving_in = threading.current_thread()
        yield

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        if call.name.startswith("worthless"):
            raise RuntimeError("nobody knows")
        return super().score(call, outcome)


ADD = Call("add", adds=1)
SUBMIT = Call("submit", ending="terminated")
HOLD = Call("hold")
HOLD_SYNC = Call("hold_sync")

FINE = [
    ADD,
    Call("add", {"by": 5}, adds=5, reward=5.0),
    Call("add_sync", {"by": -2}, adds=-2, reward=-2.0),
]
AMISS = [
    Call("add", {"by": "many"}, reward=-1.0, failure="invalid_args"),
    Call("add", {"how": 1}, reward=-1.0, failure="invalid_args"),
    Call("no_such_tool", reward=-1.0, failure="tool_not_found"),
    Call("reset", reward=-1.0, failure="tool_not_found"),
    Call("fail", reward=-1.0, failure="execution_error"),
    Call("crash", reward=-1.0, failure="execution_error"),
    Call("worthless", reward=None, refusal="EXECUTION_ERROR"),
    Call("worthless_sync", reward=None, refusal="EXECUTION_ERROR"),
]
LAST = [
    Call("late", reward=-1.0, failure="timeout", ending="truncated"),
    Call("block", reward=None, failure="timeout", ending="truncated", sticks=True),
    SUBMIT,
    Call("give_up", reward=1.5, ending="truncated"),
]
CALLS = FINE * 5 + AMISS * 2 + LAST

TOOLS = 12
