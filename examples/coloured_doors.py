"""Behind one of four doors is a treasure, and a sign says which. An agent that does not read it is right by chance.

``train_grpo.py`` trains a language model in it. Run it::

    python examples/coloured_doors.py
    mcpenv run examples/coloured_doors.py
"""

import random
from itertools import cycle
from typing import Any, Literal, get_args

from mcpenv import MCPEnvironment, TaskSet, ToolCall, ToolOutcome

Colour = Literal["red", "blue", "green", "gold"]
COLOURS: tuple[Colour, ...] = get_args(Colour)


def tasks_of(split: str, number: int) -> list[dict[str, Any]]:
    """Return tasks of a split, as many for one colour as for another."""
    return [
        {
            "id": f"{split}-{at}",
            "split": split,
            "prompt": "Open the right door.",
            "options": {"treasure": colour},
            "oracle": [
                {"tool_name": "read_sign"},
                {"tool_name": "open_door", "arguments": {"colour": colour}},
            ],
        }
        for at, colour in zip(range(number), cycle(COLOURS), strict=False)
    ]


class ColouredDoors(MCPEnvironment):
    """Open the door with the treasure.

    Description:
        Four doors, a treasure behind one of them, and a sign that says which.

    Tools:
        read_sign: returns "Open the COLOUR door."
        open_door: opens a door, once.

    Reward:
        0.25 for reading the sign before a door is open. The verifier gives 1 for the door with the treasure and 0 for
        another, or for none. The return is from 0 to 1.25.

    Start:
        The colour is the task's, or by the seed.

    End:
        Terminated when a door is open, truncated after four calls.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    VERSION = "1.0.0"
    max_steps = 4
    tasks = TaskSet(tasks_of("train", 200) + tasks_of("test", 64))

    def __init__(self) -> None:
        self.treasure: Colour = "red"
        self.opened: Colour | None = None
        self.read = False

        @self.tool
        def read_sign() -> str:
            """Read the sign."""
            return f"Open the {self.treasure} door."

        @self.tool
        def open_door(colour: Colour) -> str:
            """Open the door of a colour. There is only one try."""
            self.opened = colour
            self.finish()
            return "The door is open."

    def reset(self, seed: int | None = None, episode_id: str | None = None, treasure: Colour | None = None) -> None:
        self.treasure = random.Random(seed).choice(COLOURS) if treasure is None else treasure
        self.opened = None
        self.read = False

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        if call.name != "read_sign" or self.read:
            return None
        self.read = True
        return 0.25

    def verify(self, evidence: Any) -> bool:
        return self.opened == self.treasure


if __name__ == "__main__":
    with ColouredDoors() as env:
        returns = []
        for honest in (True, False):
            env.reset(split="train", index=0)
            sign = env.call_tool("read_sign").text if honest else ""
            seen = [colour for colour in COLOURS if colour in (sign or "")]
            step = env.call_tool("open_door", {"colour": seen[0] if seen else "gold"})
            assert step.done
            returns.append(step.info["return"])
            print(f"{'read the sign' if honest else 'guessed'}: return {returns[-1]}")
    assert returns == [1.25, 0.0]
