"""Logs far too long for a model's context, with a word of the answer in each: for tests of the context tools."""

from __future__ import annotations

import random
from typing import Any

from mcpenv import MCPEnvironment, Task, TaskSet
from mcpenv.extensions.long_outputs import LongOutputs

DAYS = 13
LOG_BYTES = 400_000
"""Minimum size of a log. 13 of them are 5.2 MB."""


class Logs(MCPEnvironment):
    """Find the word that each day's log hides."""

    tasks = TaskSet([Task(id="words", prompt=f"Read the logs of days 1 to {DAYS} and give all words.", seed=7)])

    def __init__(self) -> None:
        self.words: list[str] = []
        self.right = False
        self.read = 0

        @self.tool
        def read_log(day: int) -> str:
            """Read the log of a day."""
            log = log_of(day, self.words[day - 1])
            self.read += len(log)
            return log

        @self.tool(terminal=True)
        def answer(words: list[str]) -> str:
            """Give the words of all days, in order."""
            self.right = words == self.words
            return "Thank you."

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        chance = random.Random(seed)
        self.words = ["".join(chance.choices("abcdefgh", k=8)) for _ in range(DAYS)]
        self.right, self.read = False, 0

    def verify(self, evidence: Any) -> bool:
        return self.right


class KeptLogs(Logs):
    """Find the word that each day's log hides, with tools for long outputs."""

    long_outputs = LongOutputs(max_characters=4000)


def log_of(day: int, word: str) -> str:
    """Return a log with the word in the middle."""
    lines = [f"day {day} {number:07} all is well" for number in range(LOG_BYTES // 26 + 1)]
    lines.insert(len(lines) // 2, f"day {day} WORD={word}")
    return "\n".join(lines)
