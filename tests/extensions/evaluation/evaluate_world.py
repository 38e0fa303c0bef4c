"""Counting: an environment with tasks, for tests of evaluation; its prompts say how scripted agents play."""

from __future__ import annotations

from typing import Any

from mcpenv import MCPEnvironment, Reward, Task, TaskSet

HOW = (
    "solve",
    "miss",
    "loop",
    "scrawl",
    "stutter",
    "both",
    "refuse",
    "long",
    "down",
    "too_long",
    "odd_name",
    "break_reset",
    "break_verify",
    "cut",
)
"""What the scripted agents know to do; the first words of prompts."""


def task(how: str, name: str = "", split: str = "test", target: int = 2) -> Task:
    name = name or how
    options = {"target": target, "how": how}
    return Task(id=name, split=split, prompt=f"{how}: count to {target} ({name}).", options=options)


class Counting(MCPEnvironment):
    """Count to the target, and stop there."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    VERSION = "3.1"
    max_steps = 6
    tasks = TaskSet(
        [
            *map(task, HOW),
            *(task(how, f"p-{how}", "programs") for how in ("solve", "miss", "crash", "too_many")),
            task("slow", split="slow"),
            task("solve", "odd/id <script>alert(1)</script>", "odd"),
            *(task(how, f"{how}-{n}", "many") for n in range(4) for how in ("solve", "miss", "sometimes")),
        ]
    )

    def __init__(self, bonus: float = 0.0) -> None:
        self.count, self.target, self.how, self.bonus = 0, 2, "", bonus

        @self.tool
        def add(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        @self.tool(name="look.at/it")
        def look() -> str:
            """See the counter."""
            return f"it stands at {self.count}"

    def reset(self, seed: int | None = None, episode_id: str | None = None, target: int = 2, how: str = "") -> None:
        if how == "break_reset":
            raise RuntimeError("this reset breaks")
        self.count, self.target, self.how = 0, target, how

    def score(self, call: Any, outcome: Any) -> Reward | None:
        return Reward(self.bonus, {"bonus": self.bonus}) if self.bonus else None

    def verify(self, evidence: Any) -> Reward:
        if self.how == "break_verify":
            raise RuntimeError("this verification breaks")
        there = float(self.count == self.target)
        return Reward(there, {"there": there})


class Plain(MCPEnvironment):
    """Draw a number: an even one wins."""

    def __init__(self) -> None:
        self.drawn = 0

        @self.tool(terminal=True)
        def draw() -> int:
            """Draw."""
            self.finish(reward=float(self.drawn % 2 == 0))
            return self.drawn

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.drawn = seed or 0
