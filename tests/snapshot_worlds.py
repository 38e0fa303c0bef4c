"""Environments whose state can be saved, and some whose cannot."""

from __future__ import annotations

import random
import sqlite3
import threading
from typing import Any

import numpy as np
import pytest

from mcpenv import Context, MCPEnvironment, Observation, OverSteps, Reward, Rubric, ToolCall, ToolOutcome, WeightedSum

SQLiteWorld = pytest.importorskip("mcpenv.extensions.sqlite_world").SQLiteWorld


class Streak(Rubric):
    """1 for every call of `add` after another one: it has to remember."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.seen: list[str] = []

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        before, self.last = self.last, call.name
        self.seen.append(call.name)
        return float(before == call.name == "add")


class Half(Rubric):
    """Return the value of a number at the end."""

    async def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return 0.5


class Plain(MCPEnvironment):
    """Plain Python objects, two random generators, and a rubric that remembers."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, target: int = 1000) -> None:
        self.target, self.count = target, 0
        self.numbers: list[int] = []
        self.rng, self.generator = random.Random(0), np.random.default_rng(0)
        self.rubric = WeightedSum({"streak": Streak(), "half": OverSteps(Half())})

        @self.tool
        def add(by: int = 1) -> int:
            """Add."""
            self.count += by
            if self.count >= self.target:
                self.finish(10.0, reason="target")
            return self.count

        @self.tool
        def draw() -> list[float]:
            """Draw two numbers."""
            self.numbers.append(self.rng.randrange(1000))
            return [self.numbers[-1], float(self.generator.random())]

        @self.tool
        async def keep(value: int, ctx: Context) -> list[int]:
            """Keep a value beside those before."""
            kept: list[int] = [*(await ctx.get_state("kept") or []), value]
            await ctx.set_state("kept", kept)
            return kept

        @self.tool
        def look() -> dict[str, Any]:
            """All there is."""
            return {"count": self.count, "numbers": self.numbers, "late": getattr(self, "late", None)}

        @self.tool
        def learn() -> str:
            """Have an attribute that was not there, and a tool less."""
            self.late = "late"
            self.remove_tool("learn")
            return "learnt"

    def reset(self, seed: int | None = None, episode_id: str | None = None, start: int = 0) -> Observation:
        self.count, self.numbers = start, []
        self.rng, self.generator = random.Random(seed), np.random.default_rng(seed)
        return Observation(metadata={"start": start})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward | None:
        return Reward(0.25, {"look": 0.25}) if call.name == "look" else None


class Ledger(MCPEnvironment):
    """Accounts in SQLite, whose connection belongs to one thread."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    THREAD_AFFINE = True
    max_steps = 50

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:")
        self.world = SQLiteWorld(self.db)
        self.moved = 0
        self.tool(self.transfer)
        self.tool(self.balance)
        self.tool(self.submit, terminal=True)

    def reset(self, seed: int | None = None, episode_id: str | None = None, accounts: int = 2) -> None:
        self.moved = 0
        self.db.executescript(
            "DROP TABLE IF EXISTS accounts; CREATE TABLE accounts (id INTEGER PRIMARY KEY, cents INT)"
        )
        rng = random.Random(seed)
        self.db.executemany(
            "INSERT INTO accounts VALUES (?, ?)", [(number, rng.randrange(100, 200)) for number in range(accounts)]
        )
        self.db.commit()

    def transfer(self, source: int, target: int, cents: int) -> int:
        """Move money."""
        with self.db:
            self.db.execute("UPDATE accounts SET cents = cents - ? WHERE id = ?", (cents, source))
            self.db.execute("UPDATE accounts SET cents = cents + ? WHERE id = ?", (cents, target))
        self.moved += cents
        return self.moved

    def balance(self, account: int) -> int:
        """Return the balance of an account."""
        (cents,) = self.db.execute("SELECT cents FROM accounts WHERE id = ?", (account,)).fetchone()
        return int(cents)

    def submit(self) -> str:
        """End it."""
        return "submitted"

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        return call.arguments["cents"] / 100 if call.name == "transfer" else None

    def close(self) -> None:
        self.db.close()


class Locked(Plain):
    """An attribute that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: dict[str, Any] = {"lock": threading.Lock()}


class WithoutLock(Locked):
    """The same, and says how."""

    def save_state(self) -> Any:
        state = super().save_state()
        del state["inner"]
        return state


class Part:
    """Cannot be unpickled while it does not fit."""

    fits = True
    held_up: threading.Event | None = None

    def __setstate__(self, state: Any) -> None:
        if Part.held_up is not None:
            Part.held_up.wait(30)
        if not Part.fits:
            raise ValueError("changed")

    def __getstate__(self) -> Any:
        return {"a": 1}


class Picky(Plain):
    """Holds what may not fit any more."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()


class Hiding(MCPEnvironment):
    """An environment whose tool keeps its state in a variable of the constructor."""

    def __init__(self, how: str = "list") -> None:
        items: list[int] = []
        total = 0

        def add(by: int) -> int:
            """Add."""
            items.append(by)
            return sum(items)

        def add_up(by: int) -> int:
            """Add."""
            nonlocal total
            total += by
            return total

        self.tool(add if how == "list" else add_up, name="add")
