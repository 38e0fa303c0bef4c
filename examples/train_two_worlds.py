"""Train one policy on two worlds with GRPO: a sampler chooses the tasks, and both worlds play at once.

The worlds are ``coloured_doors.py`` and the numbers of ``write_an_environment.py``. The policy is a softmax over calls,
known by a few words whose weights it learns: to read the sign, and to guess in the middle. Run it with a seed::

    python examples/train_two_worlds.py 1
"""

import asyncio
import contextlib
import math
import random
import statistics
import sys
from collections import Counter, defaultdict
from typing import Any

from coloured_doors import COLOURS, ColouredDoors
from write_an_environment import GuessNumber

from mcpenv_client import Task
from mcpenv_client.pool import Episode, MixedPool, Played, TaskSampler
from mcpenv_client.scores import advantages_of_scores

HIGHEST, SHARES = 1000, (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
GROUPS, GROUP, BATCH, RATE, CLIP = 240, 8, 4, 0.5, 0.2
Call = tuple[str, dict[str, Any]]
Words = tuple[str, ...]
Choice = tuple[tuple[Words, ...], int, float]  # the words of each call, the place of the chosen one, its probability


class Numbers(GuessNumber):
    """Scores a number that was not found, too: without a score an episode teaches nothing."""

    def verify(self, evidence: Any) -> float:
        return 0.0


def options_of(world: str, past: list[tuple[Call, str]]) -> list[tuple[Call, Words]]:
    """Return the calls that can be made after some calls and their answers, with their words."""
    if world == "doors":
        sign = past[-1][1] if past else ""
        doors = [(("open_door", {"colour": each}), ("open", f"named {each in sign}")) for each in COLOURS]
        return [(("read_sign", {}), (f"read {bool(past)}",)), *doors]
    low, high = 1, HIGHEST
    for (_, guess), answer in past:
        low, high = (guess["number"] + 1, high) if answer == "higher" else (low, guess["number"] - 1)
    return [(("guess", {"number": low + round(share * (high - low))}), (f"guess {share}",)) for share in SHARES]


class Policy:
    """Chooses calls by the sums of the weights of their words."""

    def __init__(self, seed: int) -> None:
        self.weights, self.dice = defaultdict[str, float](float), random.Random(seed)

    def chances(self, options: tuple[Words, ...]) -> list[float]:
        powers = [math.exp(sum(self.weights[word] for word in words)) for words in options]
        return [power / sum(powers) for power in powers]

    async def __call__(self, episode: Episode) -> list[Choice]:
        choices, past = list[Choice](), list[tuple[Call, str]]()
        while not episode.done:
            calls, options = zip(*options_of(episode.assignment.row["world"], past), strict=True)
            chances = self.chances(options)
            (at,) = self.dice.choices(range(len(calls)), chances)
            choices.append((options, at, chances[at]))
            past.append((calls[at], (await episode.call_tool(*calls[at])).text or ""))
        return choices

    def learn(self, groups: list[list[Played]]) -> None:
        """Improve by groups of episodes, each of one task (GRPO, Shao et al. 2024)."""
        slopes = defaultdict[str, float](float)
        for group in groups:
            values = advantages_of_scores([each.reward for each in group])  # None where the world failed
            for played, advantage in ((each, value) for each, value in zip(group, values, strict=True) if value):
                for options, at, chance in played.value:
                    now = self.chances(options)
                    ratio = now[at] / chance  # not 1 if the episode began before the last update
                    clipped = advantage * (ratio - 1) > abs(advantage) * CLIP
                    worth = 0.0 if clipped else ratio * advantage / (len(groups) * len(group))
                    for number, words in enumerate(options):
                        for word in words:
                            slopes[word] += worth * ((number == at) - now[number])
        self.weights |= {word: self.weights[word] + RATE * slope for word, slope in slopes.items()}


def rows(split: str, number: int) -> list[dict[str, Any]]:
    """Return tasks of both worlds. The seeds of one split are not those of the other."""
    doors = [{"world": "doors", "split": split, "index": index} for index in range(number)]
    seeds = range(1000, 1000 + number) if split == "test" else range(number)
    return doors + [{"world": "numbers", "task": Task(id=f"number-{seed}", seed=seed)} for seed in seeds]


async def measured(pool: MixedPool, policy: Policy) -> dict[str, float]:
    """Return the mean reward of each world on tasks that are not trained on."""
    rewards = defaultdict[str, list[float]](list)
    async for played in pool.play(policy, rows("test", 64)):
        rewards[played.assignment.row["world"]].append(played.reward or 0.0)
    return {world: statistics.fmean(each) for world, each in sorted(rewards.items())}


async def main(seed: int) -> None:
    """Train, and print the rewards before and after."""
    policy, sampler = Policy(seed), TaskSampler(rows("train", 64), seed=seed)
    async with MixedPool({"doors": ColouredDoors, "numbers": lambda: Numbers(HIGHEST)}) as pool:
        before, played = await measured(pool, policy), list[list[Played]]()
        async with contextlib.aclosing(pool.groups(policy, sampler, group=GROUP)) as stream:
            while len(played) < GROUPS:
                played += [await anext(stream) for _ in range(BATCH)]
                policy.learn(played[-BATCH:])
        after = await measured(pool, policy)
    groups = Counter(group[0].assignment.row["world"] for group in played)
    for world in after:
        print(f"{world}: reward {before[world]:.2f} before, {after[world]:.2f} after {groups[world]} groups")
        assert after[world] > before[world] + 0.3


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
