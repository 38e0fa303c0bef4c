"""Flips: the tasks that pass more or less often in one evaluation than in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .paired import fisher_p


@dataclass(frozen=True)
class Flip:
    """A task with different pass rates in two evaluations.

    Attributes:
        task: its name, with its split; or a seed.
        baseline_passed, baseline_samples: number of scored episodes that passed, and of all scored ones.
        candidate_passed, candidate_samples: of the other evaluation.
        p: the two-sided p-value of Fisher's exact test for this task alone. Among many tasks some are below 0.05 by
            chance.
    """

    task: str
    baseline_passed: int
    baseline_samples: int
    candidate_passed: int
    candidate_samples: int
    p: float

    @property
    def change(self) -> float:
        """The pass rate of the candidate minus the pass rate of the baseline."""
        return self.candidate_passed / self.candidate_samples - self.baseline_passed / self.baseline_samples

    @property
    def whole(self) -> bool:
        """True if all samples passed in one evaluation, and none in the other."""
        return abs(self.change) == 1.0

    def to_plain(self) -> dict[str, Any]:
        """Return the flip as plain JSON data."""
        return {**asdict(self), "change": self.change}


def flip_of(task: str, baseline: Sequence[bool], candidate: Sequence[bool]) -> Flip | None:
    """Return the flip of a task; None if its pass rate is the same, or unknown in one evaluation.

    Args:
        task: the name of the task.
        baseline: for each scored episode, True if it passed.
        candidate: the same for the other evaluation.
    """
    passed, samples, other_passed, other_samples = sum(baseline), len(baseline), sum(candidate), len(candidate)
    # Compared without division, so that equal rates of different numbers of samples are equal.
    if not samples or not other_samples or passed * other_samples == other_passed * samples:
        return None
    p = fisher_p(passed, samples, other_passed, other_samples)
    return Flip(task, passed, samples, other_passed, other_samples, p)
