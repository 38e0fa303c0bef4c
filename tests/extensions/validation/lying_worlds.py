"""Environments whose episodes cannot be continued as their class of durability says, and honest ones."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

from mcpenv import MCPEnvironment, TaskSet
from mcpenv_client import NotSupported


class Walk(MCPEnvironment):
    """Walk by random steps that the seed decides."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([{"id": "go", "prompt": "Walk.", "oracle": [{"tool_name": "walk"}] * 4}])

    def __init__(self) -> None:
        self.at, self.pace = 0, 1
        self.random = random.Random(0)
        self.tool(self.walk)

    def reset(self, seed: int | None = None) -> None:  # type: ignore[override]
        """Begin."""
        self.at, self.pace = 0, 1
        self.random = random.Random(0)

    def walk(self) -> int:
        """Walk one step."""
        self.at += self.random.randint(1, 1000)
        return self.at


class Saved(Walk):
    """The same walk, whose state is saved."""

    DURABILITY = "export"


class Slow(Walk):
    """The same walk, after a slow reset."""

    def reset(self, seed: int | None = None) -> None:  # type: ignore[override]
        """Begin."""
        super().reset(seed)
        time.sleep(0.3)


class Restarted(Walk):
    """A walk that says it cannot be continued."""

    DURABILITY = "restart"

    def walk(self) -> int:
        """Tell the time."""
        return time.time_ns()


class Clock(Walk):
    """Read the clock."""

    DURABILITY = "rerun"

    def walk(self) -> int:
        """Tell the time."""
        return time.time_ns()


class SavedClock(Walk):
    """Read the clock, and save the state: it may be honest, and cannot be compared."""

    DURABILITY = "export"

    def walk(self) -> int:
        """Tell the time."""
        return time.time_ns()


class Unseeded(Walk):
    """Draw numbers that no seed decides, in the third step only."""

    def walk(self) -> int:
        """Walk one step."""
        self.at += 1
        return random.randint(1, 10**9) if self.at == 3 else self.at


class Forgetful(Walk):
    """Forget a field that is needed later in the state that is saved."""

    DURABILITY = "export"

    def walk(self) -> int:
        """Walk faster with each step."""
        self.at, self.pace = self.at + self.pace, self.pace + 1
        return self.at

    def save_state(self) -> dict[str, Any]:
        """Return the place, without the pace."""
        return {"at": self.at}


class Outside(Walk):
    """Claim to depend on the calls alone, and count in a file that no reset empties."""

    DURABILITY = "rerun"

    def walk(self) -> int:
        """Write a line, and count all of them."""
        with Path(os.environ["COUNTED"]).open("a+", encoding="utf-8") as file:
            file.write("a step\n")
            file.seek(0)
            return len(file.readlines())


class Refusing(Walk):
    """Say nothing of durability, and refuse to be saved: it is played again."""

    def save_state(self) -> dict[str, Any]:
        """Refuse."""
        raise NotSupported("a server of ours has the state")


class Process(Walk):
    """Claim to depend on the calls alone, and show the process."""

    def walk(self) -> int:
        """Return the process."""
        return os.getpid()


class Drifting(Walk):
    """Save and load a state that does not go on in the same way: the generator begins anew."""

    def save_state(self) -> dict[str, Any]:
        """Return the place."""
        return {"at": self.at}

    def load_state(self, state: dict[str, Any]) -> None:
        """Put it back."""
        self.at, self.random = state["at"], random.Random(0)


class Unsaved(Walk):
    """Claim that its state is saved, which it cannot be."""

    DURABILITY = "export"

    def reset(self, seed: int | None = None) -> None:  # type: ignore[override]
        """Begin."""
        super().reset(seed)
        self.lock = threading.Lock()
