"""A small world with levels, families, variants and a canary: lamps to be switched on."""

from __future__ import annotations

import random
from typing import Any, Literal, get_args

from mcpenv import MCPEnvironment, TaskSet
from mcpenv.worlds import ObjectWorld

Room = Literal["hall", "attic", "study", "kitchen", "porch", "cellar"]
ROOMS: tuple[Room, ...] = get_args(Room)


def _task(rng: random.Random, index: int, split: str) -> dict[str, Any]:
    level = 1 + index % 2
    kind = ("switch", "dim")[index // 2 % 2]
    # Another number of variants, so that no variant has the rooms of its original.
    offset = {"train": 0, "train_variants": 1, "test": 2}[split]
    rooms = [ROOMS[(index + offset + n) % len(ROOMS)] for n in range(level)]
    canary = " canary 5a0e" if split == "test" else ""
    return {
        "prompt": f"{kind.title()} the lamps of {' and '.join(rooms)}, number {index} of {split}.{canary}",
        "level": level,
        "family": kind,
        "oracle": [{"tool_name": kind, "arguments": {"room": room}} for room in rooms],
        "verifier": {"kind": "expect_exactly", "changes": dict.fromkeys(rooms, kind)},
    }


class Lamps(MCPEnvironment):
    """Lamps of a house."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "lamps"
    VERSION = "2.1.0"
    tasks = TaskSet.generate(_task, seed=1, sizes={"train": 40, "train_variants": 40, "test": 8}).with_licence("MIT")

    def __init__(self) -> None:
        self.lamps: dict[str, str] = {}
        self.world = ObjectWorld(lambda: self.lamps, self.lamps.update)
        for tool in (self.switch, self.dim, self.look):
            self.tool(tool)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.lamps.update(dict.fromkeys(ROOMS, "off"))

    def switch(self, room: Room) -> str:
        """Switch a lamp on."""
        self.lamps[room] = "switch"
        return "on"

    def dim(self, room: Room) -> str:
        """Dim a lamp."""
        self.lamps[room] = "dim"
        return "dimmed"

    def look(self) -> list[str]:
        """List the rooms."""
        return list(ROOMS)
