"""The effort of a run: the same rows, with more or fewer rounds and clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """The amounts that are measured.

    Attributes:
        rounds: of each side, after one that is thrown away.
        round_s: seconds of a round.
        loads: how many clients there are at once.
        episodes: how many are opened and closed in the row of churn.
        sessions: how many are held at once in the rows of many sessions.
        steps: how many one session takes in the row of a long episode.
        waiting: how many sessions wait at once in the rows of concurrency.
        starts: how often a program is started in the rows of start-up.
    """

    name: str
    rounds: int
    round_s: float
    loads: tuple[int, ...]
    episodes: int
    sessions: tuple[int, ...]
    steps: int
    waiting: tuple[int, ...]
    starts: int

    @property
    def quick(self) -> bool:
        return self.name != "full"


SMOKE = Effort("smoke", 1, 0.05, (2,), 20, (5, 10), 100, (8,), 1)
"""The effort that only checks that each row can run. Its figures mean nothing."""

QUICK = Effort("quick", 3, 0.3, (1, 32), 2_000, (10, 100, 1_000), 20_000, (128,), 1)
"""The effort for a quick impression."""

FULL = Effort(
    "full",
    rounds=6,
    round_s=0.4,
    loads=(1, 32, 256),
    episodes=10_000,
    sessions=(10, 100, 1_000, 10_000),
    steps=1_000_000,
    waiting=(128, 512, 2_048, 4_096),
    starts=2,
)
"""The effort of published figures."""

EFFORTS = {effort.name: effort for effort in (SMOKE, QUICK, FULL)}
