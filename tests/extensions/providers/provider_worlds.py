"""Environments that providers serve: a sound one, one that leaks, one that is never the same, and a broken one."""

from __future__ import annotations

import os
import time

from mcpenv import MCPEnvironment, State

left = 0
"""The count that the last session left in the process."""


class Sound(MCPEnvironment):
    """Count."""

    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self.start = self.count = start

        @self.tool
        def add(by: int = 1) -> int:
            """Add to the count."""
            global left
            self.count += by
            left = self.count
            return self.count

        @self.tool
        def leave() -> None:
            """End the process of the server."""
            os._exit(3)

        @self.tool
        def environ(name: str) -> str | None:
            """Return an environment variable of the server."""
            return os.environ.get(name)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.count = self.first()

    def first(self) -> int:
        return self.start

    @property
    def state(self) -> State:
        return State.model_validate({"count": self.count})


class Leaking(Sound):
    """Count on where the last session stopped."""

    def first(self) -> int:
        return left


class Restless(Sound):
    """Begin with the time."""

    def first(self) -> int:
        return time.time_ns()


class Broken(MCPEnvironment):
    """Raise in the constructor."""

    def __init__(self) -> None:
        raise RuntimeError("the disk is not there")
