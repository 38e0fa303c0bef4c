"""Train a policy for mazes by GRPO in two arms: from the start alone, and from steps of recorded solutions too.

A maze pays 1 at its door, some 46 calls away, and nothing before. The second arm begins at most `reach` steps before
the end of a solution, or at the start of its maze if that is nearer. When half of a batch is solved, `reach` grows.
Calls of the solutions, and those that run again to come to a step, count. Tests are other mazes, from the start::

    python examples/train_from_midstates.py --seeds 11 12 13 14 15 --calls 80000 --tests 30 --json midstates.json
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from operator import itemgetter
from pathlib import Path
from typing import Any

from mcpenv import TaskSet
from mcpenv_client.pool import EnvPool, Episode, Played, Start
from mcpenv_client.scores import advantages_of_scores

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from envs.maze_mcp.environment import STEPS, MazeEnvironment, make_task

place_of = itemgetter("column", "row", "has_key")
SIZE, TASKS, GROUP, BATCH, GROWTH, LOOKS = 7, 10, 8, 2, 1.1, 8


class Mazes(MazeEnvironment):
    """Mazes of one size."""

    tasks = TaskSet.generate(lambda rng, _: make_task(rng, SIZE - 4), seed=1, sizes={"train": 10_000, "test": 100})


class Policy:
    """A softmax over the next calls. The score of a call is the sum of the weights of what is known about it."""

    def __init__(self, seed: int) -> None:
        self.weights, self.seed, self.updates = defaultdict[str, float](float), seed, 0

    async def __call__(self, episode: Episode) -> tuple[int, dict[str, float]]:
        """Play, and return the number of calls and the slope of the logarithm of their probability."""
        start: Any = episode.start
        dice = random.Random(f"{self.seed} {self.updates} {episode.assignment.number}")
        before = [step.outcome.result.data for step in start.trajectory.steps] if start else []
        left = 4 * (start.task.metadata["shortest"] - start.step) if start else math.inf  # then as the maze limits it
        view, been = before[-1] if before else None, Counter(map(place_of, before))
        slopes, calls = defaultdict[str, float](float), 0
        while not episode.done and calls < left:
            options = options_of(view, been) if view else [("look", {}, [])]
            powers = [math.exp(sum(self.weights[fact] for fact in facts)) for _, _, facts in options]
            (at,) = dice.choices(range(len(options)), powers)
            for place, (_, _, facts) in enumerate(options):
                for fact in facts:
                    slopes[fact] += (place == at) - powers[place] / sum(powers)
            result: Any = (await episode.call_tool(*options[at][:2])).result
            view = result.data
            been[place_of(view)] += 1
            calls += 1
        return calls, slopes

    def learn(self, played: list[Played]) -> None:
        step = defaultdict[str, float](float)
        for first in range(0, len(played), GROUP):
            group = played[first : first + GROUP]
            for each, value in zip(group, advantages_of_scores([each.reward for each in group]), strict=True):
                for fact, slope in each.value[1].items():
                    step[fact] += (value or 0.0) * slope / len(played)
        for fact, by in step.items():
            self.weights[fact] += by / max(math.hypot(*step.values()), 1.0)  # a step of 1 at most
        self.updates += 1


def options_of(view: dict[str, Any], been: Counter[Any]) -> list[tuple[str, dict[str, str], list[str]]]:
    """Return the calls to choose from, with what is known: walls, the ways taken least, and what is in sight."""
    (column, row, key), found = place_of(view), list[tuple[str, dict[str, str], list[str]]]()
    ways = {way: been[column + STEPS[way][0], row + STEPS[way][1], key] for way in view["rooms_ahead"]}
    for way in STEPS:
        facts = ["wall" if way not in ways else "least" if ways[way] == min(ways.values()) else "more"]
        facts += [f"to {what}, key {key}" for what in ("key", "door") if view[f"{what}_ahead"] == way]
        found.append(("walk", {"direction": way}, facts))
    others = (("take_key", "key_ahead"), ("unlock_door", "door_ahead"))
    return [*found, *((tool, {}, [f"{tool}, here {view[what] == 'here'}, key {key}"]) for tool, what in others)]


async def solve(episode: Episode) -> None:
    for call in episode.assignment.row.oracle:
        await episode.call_tool(call.tool_name, call.arguments)


async def train(seed: int, arm: str, calls: int, tests: int) -> dict[str, Any]:
    policy, dice, began = Policy(seed), random.Random(seed), time.process_time()
    tasks = [Mazes.tasks.get("train", index) for index in dice.sample(range(10_000), TASKS)]
    looks, curve, records, made, again, reach = list[Any](), list[Any](), list[Any](), 0, 0, 1.0
    async with EnvPool(Mazes, size=GROUP) as pool:
        if arm == "mid-states":
            records = [each.trajectory for each in await pool.rollout(solve, tasks)]
            made = sum(len(record.steps) for record in records)
        while len(looks) <= LOOKS:
            if made >= calls * len(looks) / LOOKS:
                played = await pool.rollout(policy, [{"split": "test", "index": at} for at in range(tests)])
                looks.append((calls * len(looks) // LOOKS, statistics.fmean(each.reward or 0.0 for each in played)))
                continue
            rows = list[Any]()
            for _ in range(BATCH):
                at, back = dice.randrange(TASKS), dice.randint(1, int(reach))
                step = len(records[at].steps) - back if records else 0
                rows.append(Start(records[at], step) if step > 0 else tasks[at])
            played = await pool.rollout(policy, rows, group=GROUP, forks=True, trajectories=False)
            policy.learn(played)
            reward = statistics.fmean(each.reward or 0.0 for each in played)
            reach = min(reach * GROWTH + 1, 100) if reward >= 0.5 else reach
            replays = sum(row.step for row in rows if isinstance(row, Start))  # by forks=True once for each group
            made, again = made + replays + sum(each.value[0] for each in played), again + replays
            curve.append({"steps": made, "episodes": len(played), "reward": reward, "verified": reward})
    about = {"seed": seed, "sampler": arm, "cheat": False, "unit": "calls", "lost": 0, "calls": made, "again": again}
    about |= {name: [looks[0][1], looks[-1][1]] for name in ("reward", "verified")}
    return {**about, "seconds": round(time.process_time() - began, 1), "held_out": looks, "curve": curve}


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--seeds", type=int, nargs="+", default=[0])
parser.add_argument("--calls", type=int, default=1500, help="calls of the training in each arm")
parser.add_argument("--tests", type=int, default=2, help="mazes of each test, at most 100")
parser.add_argument("--json", type=Path, help="the curves, for plot_curves.py")
given, runs = parser.parse_args(), list[dict[str, Any]]()
for seed in given.seeds:
    for arm in ("start", "mid-states"):
        runs.append(asyncio.run(train(seed, arm, given.calls, given.tests)))
        print(f"seed {seed}, {arm}:", *(f"{mean:.2f}" for _, mean in runs[-1]["held_out"]), end="; ")
        print(f"{runs[-1]['calls']} calls, {runs[-1]['again']} of them again", flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps({"runs": runs}))
    assert runs[-2]["again"] == 0 < runs[-1]["again"]
