"""Compare samplers of tasks on a world of five levels: the reward of test tasks by the calls that the training made.

The task is to guess a number with 12 guesses. By default, level 1 has numbers to 30, and level 5 to 4,095, which only
those find who always guess in the middle. The policy chooses where to guess between the bounds, and learns by GRPO from
groups of eight. The tasks are drawn evenly, or by the measured rate at which they are solved. Run it::

    python examples/compare_samplers.py --seeds 101 102 103 104 105 --calls 24000 --json samplers.json
"""

import argparse
import asyncio
import contextlib
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from write_an_environment import GuessNumber

from mcpenv import Observation
from mcpenv_client import Task
from mcpenv_client.pool import EnvPool, Episode, Played, TaskSampler
from mcpenv_client.scores import advantages_of_scores

HIGHEST = (30, 300, 1000, 2500, 4095)
SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
SAMPLERS = {"plain": "weight", "pass rate": "pass_rate"}
GROUP, BATCH, RATE, LOOKS = 8, 4, 0.3, 6


class Numbers(GuessNumber):
    """A number to guess, whose range is the task's. One that was not found is scored with 0."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, highest: int = 100) -> Observation:
        self.highest = highest
        return super().reset(seed, episode_id)

    def verify(self, evidence: Any) -> float:
        return 0.0


class Policy:
    """A softmax over the places between the bounds."""

    def __init__(self, seed: int) -> None:
        self.scores, self.dice, self.calls = [0.0] * len(SHARES), random.Random(seed), 0

    def chances(self) -> list[float]:
        powers = [math.exp(score) for score in self.scores]
        return [power / sum(powers) for power in powers]

    async def __call__(self, episode: Episode) -> list[int]:
        low, high, made = 1, episode.assignment.row.options["highest"], list[int]()
        while not episode.done:
            made += self.dice.choices(range(len(SHARES)), self.chances())
            number = low + round(SHARES[made[-1]] * (high - low))
            answer = (await episode.call_tool("guess", {"number": number})).text
            low, high = (number + 1, high) if answer == "higher" else (low, number - 1)
        return made

    def learn(self, groups: list[list[Played]]) -> None:
        """Improve by groups of episodes (GRPO without weights: few episodes are older than the policy)."""
        chances, slopes = self.chances(), [0.0] * len(SHARES)
        for group in groups:
            for played, value in zip(group, advantages_of_scores([each.reward for each in group]), strict=True):
                for at in played.value or ():
                    for place, chance in enumerate(chances):
                        slopes[place] += (value or 0.0) * ((place == at) - chance) / (len(groups) * GROUP)
        self.scores = [score + RATE * slope for score, slope in zip(self.scores, slopes, strict=True)]


def tasks(levels: Sequence[int], first: int, number: int) -> list[Task]:
    """Return tasks of all levels, each with a highest number, with seeds from ``first`` on."""
    return [
        Task(id=f"{level}-{seed}", level=level, seed=seed, options={"highest": highest})
        for level, highest in enumerate(levels, 1)
        for seed in range(first, first + number)
    ]


async def train(seed: int, name: str, calls: int, levels: Sequence[int]) -> dict[str, Any]:
    """Train by one sampler until so many calls are made, and return the curve."""
    policy, began, looks, curve = Policy(seed), time.perf_counter(), list[tuple[int, float]](), list[dict[str, Any]]()
    sampler: Any = TaskSampler(tasks(levels, 0, 20), by=SAMPLERS[name], seed=seed)  # type: ignore[arg-type]

    async def measured(pool: EnvPool) -> float:
        played = await pool.rollout(policy, tasks(levels, 10_000, 30), trajectories=False)
        return round(statistics.fmean(each.reward or 0.0 for each in played), 4)

    async with EnvPool(Numbers, size=16) as pool:
        looks.append((0, await measured(pool)))
        async with contextlib.aclosing(pool.groups(policy, sampler, group=GROUP, trajectories=False)) as stream:
            while policy.calls < calls:
                groups = [await anext(stream) for _ in range(BATCH)]
                policy.learn(groups)
                policy.calls += sum(len(each.value) for group in groups for each in group)
                reward = round(statistics.fmean(each.reward or 0.0 for group in groups for each in group), 4)
                curve.append({"steps": policy.calls, "episodes": BATCH * GROUP, "reward": reward, "verified": reward})
                if policy.calls >= calls * len(looks) / LOOKS:
                    looks.append((calls * len(looks) // LOOKS, await measured(pool)))
    ends = [looks[0][1], looks[-1][1]]
    about = {
        "seed": seed,
        "sampler": name,
        "cheat": False,
        "unit": "calls",
        "lost": 0,
        "reward": ends,
        "verified": ends,
    }
    return {**about, "seconds": round(time.perf_counter() - began, 1), "held_out": looks, "curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--calls", type=int, default=2000, help="calls of the training of each policy")
    parser.add_argument("--highest", type=int, nargs="+", default=HIGHEST, help="the highest number of each level")
    parser.add_argument("--json", type=Path, help="the curves, for plot_curves.py")
    given = parser.parse_args()
    runs = []
    for seed in given.seeds:
        for name in SAMPLERS:
            runs.append(asyncio.run(train(seed, name, given.calls, given.highest)))
            print(f"seed {seed}, {name}:", " ".join(f"{mean:.2f}" for _, mean in runs[-1]["held_out"]), flush=True)
            if given.json is not None:
                given.json.write_text(json.dumps({"runs": runs}))


main()
