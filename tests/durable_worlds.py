"""Worlds whose episodes are continued by other servers."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

from fastmcp.resources import Resource
from fastmcp.server.providers import LocalProvider

from mcpenv import MCPEnvironment, TaskSet


class Walk(MCPEnvironment):
    """Walk by random steps that the seed decides."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.at = 0
        self.random = random.Random(0)
        for tool in (self.walk, self.linger, self.arrive, self.fail):
            self.tool(tool)

    def reset(self, seed: int | None = None, at: int = 0) -> None:  # type: ignore[override]
        """Begin."""
        self.at = at
        self.random = random.Random(seed)

    def walk(self, by: int = 1) -> int:
        """Walk."""
        self.at += by * self.random.randint(1, 3)
        return self.at

    async def linger(self, seconds: float) -> int:
        """Walk one step, slowly."""
        await asyncio.sleep(seconds)
        self.at += 1
        return self.at

    def arrive(self) -> str:
        """End the episode."""
        self.finish(reward=float(self.at))
        return "arrived"

    def fail(self) -> None:
        """Fail, which is data of the step."""
        raise ValueError("there is a wall")


class Counted(MCPEnvironment):
    """Count calls in a file outside of the world: a line for each."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool(annotations={"openWorldHint": True})
        def count(name: str, seconds: float = 0.0) -> int:
            """Count, and then wait."""
            with Path(os.environ["COUNTED"]).open("a", encoding="utf-8") as file:
                file.write(f"{name}\n")
            time.sleep(seconds)
            return len(name)


class Trip(Walk):
    """Walk, and send cards, each a line in a file outside of the world. Agents can read how many steps there were."""

    def __init__(self) -> None:
        super().__init__()
        self.mcp_provider = LocalProvider()
        self.mcp_provider.add_resource(
            Resource.from_function(lambda: str(self.step_count), uri="trip://steps", name="steps")
        )

        @self.tool(annotations={"openWorldHint": True})
        def send(name: str, seconds: float = 0.0) -> int:
            """Send a card, which takes a while."""
            with Path(os.environ["COUNTED"]).open("a", encoding="utf-8") as file:
                file.write(f"{name}\n")
            time.sleep(seconds)
            return len(name)


class SavedTrip(Trip):
    """The same, whose state is saved."""

    DURABILITY = "export"

    def save_state(self) -> object:
        """Return the state."""
        return self.at, self.random.getstate()

    def load_state(self, state: tuple[int, Any]) -> None:
        """Take a state."""
        self.at = state[0]
        self.random.setstate(state[1])


class Submitted(MCPEnvironment):
    """Submit an answer to somebody outside, which ends the episode. The first reset makes the tools."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    submitted: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.seen: int | None = None

    def reset(self, seed: int | None = None, broken: bool = False) -> None:  # type: ignore[override]
        """Begin, or fail."""
        if broken:
            raise ValueError("the world is broken")
        made, self.seen = self.seen is not None, 0
        if made:
            return

        @self.tool(annotations={"openWorldHint": True})
        def submit(answer: str) -> str:
            """Submit."""
            self.submitted.append(answer)
            self.finish(reason="submitted")
            return f"received {answer}"

        @self.tool
        def look() -> int:
            """Look."""
            assert self.seen is not None
            self.seen += 1
            return self.seen


class Gated(MCPEnvironment):
    """Wait at a gate that the test opens."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    gate = threading.Event()
    waits = threading.Event()
    passed: ClassVar[list[int]] = []

    def __init__(self) -> None:
        @self.tool
        def enter() -> str:
            """Go through the gate."""
            self.waits.set()
            self.gate.wait()
            self.passed.append(1)
            return "in"

        @self.tool
        async def enter_without_a_thread() -> str:
            """Go through the gate."""
            self.waits.set()
            while not self.gate.is_set():
                await asyncio.sleep(0.01)
            return "in"


class Errands(MCPEnvironment):
    """Run errands, each a line in a file outside of the world, at random prices that the seed decides."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet(
        {"id": f"t{goal}", "prompt": f"Run {goal} errands.", "options": {"goal": goal}} for goal in range(9)
    )

    def __init__(self) -> None:
        self.goal = self.paid = 0
        self.random = random.Random(0)

        @self.tool
        def run(name: str, seconds: float = 0.0) -> int:
            """Run an errand; return its price."""
            with Path(os.environ["COUNTED"]).open("a", encoding="utf-8") as file:
                file.write(f"{name}\n")
            time.sleep(seconds)
            price = self.random.randint(1, 6)
            self.paid += price
            return price

    def reset(self, seed: int | None = None, episode_id: str | None = None, goal: int = 0) -> None:
        self.random = random.Random(seed)
        self.goal, self.paid = goal, 0

    def verify(self, evidence: object) -> float:
        return self.paid / 100


class Noted(Walk):
    """Walk, and note the results of all instances in one list, which is no state of theirs."""

    noted: ClassVar[list[int]] = []

    def walk(self, by: int = 1) -> int:
        """Walk."""
        self.noted.append(super().walk(by))
        return self.at


class Hidden(MCPEnvironment):
    """Count in a variable that no snapshot can have."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        counted: list[int] = []

        @self.tool
        def count() -> int:
            """Count."""
            counted.append(1)
            return len(counted)


class Clock(MCPEnvironment):
    """Tell the time, which no server can tell again."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def now() -> int:
            """Tell the time."""
            return time.time_ns()


class Saved(MCPEnvironment):
    """Draw numbers that no seed decides, and keep them: the state is saved."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    DURABILITY = "export"

    def __init__(self) -> None:
        self.drawn: list[int] = []

        @self.tool
        def draw() -> list[int]:
            """Draw a number."""
            self.drawn.append(time.time_ns())
            return self.drawn


class Restarted(Clock):
    """A world that says it cannot be continued."""

    DURABILITY = "restart"
