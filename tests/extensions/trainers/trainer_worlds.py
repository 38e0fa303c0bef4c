"""Environments of the tests of trainers' adapters, importable in worker processes."""

from __future__ import annotations

import errno
import random
import threading
from typing import Annotated, Any, ClassVar, Literal

from environments import PIXEL
from fastmcp.utilities.types import Image
from pydantic import BaseModel, Field

from mcpenv import MCPEnvironment, TaskSet
from mcpenv.extensions.users import ScriptedUser, add_user

COLOURS = ("red", "green", "blue")

TOGETHER = 4
"""The environments of `Together` that wait for each other."""


class Doors(MCPEnvironment):
    """Look for the colour of the door with the treasure, then open it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet(
        [
            {"id": colour, "prompt": f"Number {at}.", "options": {"door": colour}, "level": 1 + at, "tags": ["door"]}
            for at, colour in enumerate(COLOURS)
        ]
        + [{"id": f"test-{colour}", "split": "test", "options": {"door": colour}} for colour in COLOURS]
    )

    def __init__(self) -> None:
        self.door = self.opened = ""

        @self.tool
        def look() -> dict[str, str]:
            """Look."""
            return {"colour": self.door}

        @self.tool
        def open_door(colour: Literal["red", "green", "blue"]) -> str:
            """Open a door."""
            self.opened = colour
            self.finish()
            return "opened"

        @self.tool
        def break_verifier() -> str:
            """Make the verifier of the end fail."""
            self.opened = "broken"
            return "broken"

    def reset(self, seed: int | None = None, episode_id: str | None = None, door: str | None = None) -> None:
        self.door = door or random.Random(seed).choice(COLOURS)
        self.opened = ""

    def score(self, call: Any, outcome: Any) -> float:
        return 0.25 if call.name == "look" else 0.0

    def verify(self, evidence: Any) -> float:
        if self.opened == "broken":
            raise RuntimeError("the verifier is broken")
        return float(self.opened == self.door)


class Many(Doors):
    """The doors, with a million generated tasks.

    Attributes:
        made: the indices of those that were made.
    """

    made: ClassVar[list[int]] = []

    @staticmethod
    def make(rng: random.Random, index: int) -> dict[str, Any]:
        Many.made.append(index)
        return {"prompt": f"Number {index}.", "options": {"door": "red"}, "level": 1 + index % 5}

    tasks = TaskSet.generate(make.__func__, seed=1, sizes={"train": 1_000_000})  # type: ignore[attr-defined]


class Jammed(Doors):
    """The doors, of which some resets fail.

    Attributes:
        failing: how often the reset of a door will fail.
    """

    failing: ClassVar[dict[str, int]] = {}

    def reset(self, seed: int | None = None, episode_id: str | None = None, door: str | None = None) -> None:
        super().reset(seed=seed, episode_id=episode_id, door=door)
        if self.failing.get(self.door, 0):
            self.failing[self.door] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")


class Street(BaseModel):
    """A street."""

    name: str
    number: int = Field(default=1, ge=1, le=999)


class Cash(BaseModel):
    """Paid in cash."""

    kind: Literal["cash"] = "cash"
    coins: list[int] = Field(default_factory=list, max_length=9)


class Card(BaseModel):
    """Paid by card."""

    kind: Literal["card"]
    digits: str = Field(pattern="^[0-9]{4}$")


class Shop(MCPEnvironment):
    """An environment with a tool that has nested objects, unions, enums, arrays and defaults."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([{"id": "buy", "prompt": "Buy."}])

    def __init__(self) -> None:
        self.bought: dict[str, Any] = {}

        @self.tool
        def buy(
            to: Annotated[Street, Field(description="Where to")],
            payment: Annotated[Cash | Card, Field(discriminator="kind")],
            size: Literal["small", "large"] = "small",
            amounts: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [1],  # noqa: B006
            note: str | None = None,
        ) -> str:
            """Buy something.

            Pay at once.
            """
            self.bought = {"to": to, "payment": payment, "size": size, "amounts": amounts, "note": note}
            self.finish()
            return "bought"

    def verify(self, evidence: Any) -> float:
        return float(bool(self.bought) and self.bought["to"].number == 7)


class Diary(MCPEnvironment):
    """An environment that scores nothing."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([{"id": "write", "prompt": "Write."}])

    def __init__(self) -> None:
        @self.tool
        def write(text: str) -> str:
            """Write a line."""
            self.finish()
            return "written"


class Coin(MCPEnvironment):
    """An environment of four episodes in turn: worth 1, failed, worth 0, failed.

    Attributes:
        ended: the number of episodes that ended.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([{"id": "throw", "prompt": "Throw."}])
    ended = 0

    def __init__(self) -> None:
        @self.tool
        def throw() -> str:
            """Throw."""
            return "thrown"

    def verify(self, evidence: Any) -> float:
        type(self).ended += 1
        if type(self).ended % 2 == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return float(type(self).ended % 4 == 1)


class Clicks(MCPEnvironment):
    """An environment with a tool of a name that TRL uses itself."""

    def __init__(self) -> None:
        @self.tool
        def get_reward() -> str:
            """Ask for a reward."""
            return "none"


class Screen(MCPEnvironment):
    """An environment that shows an image."""

    tasks = TaskSet([{"id": "see", "prompt": "See."}])

    def __init__(self) -> None:
        @self.tool
        def screenshot() -> Image:
            """Return what is on the screen."""
            return Image(data=PIXEL, format="png")


class Together(MCPEnvironment):
    """An environment whose tool returns once all environments call it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    barrier = threading.Barrier(TOGETHER, timeout=30)

    def __init__(self) -> None:
        @self.tool
        def meet() -> str:
            """Meet."""
            return str(self.barrier.wait() >= 0)


class Booth(MCPEnvironment):
    """A customer who says how many tickets to sell once asked, and then leaves."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([{"id": "two", "prompt": "Tickets, please."}])

    def __init__(self) -> None:
        self.sold = 0
        self.tool(self.sell)
        add_user(self)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.sold = 0
        self.user = ScriptedUser(["Two."])

    def sell(self, count: int) -> str:
        """Sell tickets."""
        self.sold += count
        return "sold"

    def verify(self, evidence: Any) -> float:
        return float(self.sold == 2)


class FullDisk(MCPEnvironment):
    """An environment whose disk is full for the first calls of `save`, which then ends the episode.

    Attributes:
        full: the number of calls that will fail.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([{"id": "save", "prompt": "Save."}])
    full = 0

    def __init__(self) -> None:
        self.saved = False
        self.tool(self.save)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.saved = False

    def save(self) -> str:
        """Save."""
        if type(self).full:
            type(self).full -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        self.saved = True
        self.finish()
        return "saved"

    def verify(self, evidence: Any) -> float:
        return float(self.saved)


class ShakyDisk(FullDisk):
    """The same, where the disk is full for some calls of `save`.

    Attributes:
        failing: the numbers of the calls that fail, from 1.
        calls: the number of calls so far.
    """

    failing: ClassVar[set[int]] = set()
    calls = 0
    lock = threading.Lock()

    def save(self) -> str:
        """Save."""
        with self.lock:
            type(self).calls += 1
            type(self).full = int(self.calls in self.failing)
            return super().save()


class Late(MCPEnvironment):
    """An environment whose resets fail for some seeds.

    Attributes:
        failing: how often the reset with each seed will fail.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    failing: ClassVar[dict[int, int]] = {}

    def __init__(self) -> None:
        self.tool(self.wave, terminal=True)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        if self.failing.get(seed or 0, 0):
            self.failing[seed or 0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")

    def wave(self) -> str:
        """Wave."""
        return "waved"

    def score(self, call: Any, outcome: Any) -> float:
        return 1.0


class Stuck(MCPEnvironment):
    """An environment with a tool that does not return before a test releases it.

    Attributes:
        called: set when the tool is called.
        released: lets the tool return.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([{"id": "stick", "prompt": "Stick."}])
    called, released = threading.Event(), threading.Event()

    def __init__(self) -> None:
        @self.tool
        def stick() -> str:
            """Stick."""
            self.called.set()
            return str(self.released.wait(300))


class Odd(MCPEnvironment):
    """An environment with a tool whose name models' APIs refuse."""

    def __init__(self) -> None:
        @self.tool(name="look.around")
        def look() -> str:
            """Look."""
            return "seen"
