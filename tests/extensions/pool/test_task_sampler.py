"""The sampler of tasks, by weight, level and measured pass rate."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from typing import Any

import pytest

from mcpenv import MCPEnvironment, TaskSet
from mcpenv_client.pool import Assignment, EnvPool, Played, TaskSampler
from mcpenv_client.rows import Rows
from mcpenv_client.types.status import COMPLETED
from mcpenv_client.types.tasks import Task

ROWS: list[dict[str, Any]] = [{"split": "train", "index": index, "level": index // 4} for index in range(12)]


def drawn(sampler: TaskSampler, number: int) -> Counter[int]:
    rows: Any = itertools.islice(sampler, number)
    return Counter(row["index"] for row in rows)


def played(row: Any, reward: float | None) -> Played:
    return Played(Assignment(0, 0, 0, row=row), COMPLETED, reward=reward)


def teach(sampler: TaskSampler) -> None:
    """Tell it that level 0 is always solved, level 1 every second time, level 2 never."""
    for row, time in itertools.product(ROWS, range(40)):
        sampler.record(played(row, float((1, time % 2, 0)[row["index"] // 4])))


def test_a_sampler_by_pass_rate_prefers_groups_whose_rewards_differ_and_replays_the_solved() -> None:
    sampler = TaskSampler(ROWS, replay=0.2, seed=1)
    assert len(drawn(sampler, 300)) == 12 and sampler.rate(ROWS[0]) == 0.5
    teach(sampler)
    assert sampler.rate(ROWS[0]) > 0.9 and 0.4 < sampler.rate(ROWS[5]) < 0.6 and sampler.rate(ROWS[9]) < 0.1
    levels = Counter[int]()
    for index, number in drawn(sampler, 1000).items():
        levels[index // 4] += number
    assert levels[1] > 600 and 150 < levels[0] < 350 and 0 < levels[2] < 150


@pytest.mark.parametrize("number", [1, 2, 3, 7, 12])
def test_a_task_is_drawn_in_proportion_to_its_weight(number: int) -> None:
    weights = [1.0 + 3.0 * (index % 3) for index in range(number)]
    counted = drawn(TaskSampler(ROWS[:number], by="weight", weights=weights, seed=2), 6000)
    for index, weight in enumerate(weights):
        assert abs(counted[index] / 6000 - weight / sum(weights)) < 0.03


def test_a_task_that_stands_twice_has_its_rate_in_both_places() -> None:
    sampler = TaskSampler([ROWS[0], ROWS[4], ROWS[0]], replay=0.0)
    for _ in range(40):
        sampler.record(played(ROWS[0], 1.0))
    assert drawn(sampler, 400)[4] > 300


def test_a_draw_of_many_tasks_reads_one() -> None:
    class Counted(list[Any]):
        read = 0

        def __getitem__(self, place: Any) -> Any:
            self.read += 1
            return super().__getitem__(place)

        def __iter__(self) -> Any:
            for place in range(len(self)):
                yield self[place]

    tasks = Counted({"split": "train", "index": index} for index in range(5000))
    sampler = TaskSampler(tasks)
    tasks.read = 0
    for row in itertools.islice(sampler, 20):
        sampler.record(played(row, 1.0))
    assert tasks.read == 20


def test_an_evaluation_of_many_tasks_begins_a_sampler_that_reads_none_of_them() -> None:
    read: list[int] = []

    def tasks(start: int, stop: int) -> list[Task]:
        read.extend(range(start, stop))
        return [Task(id=f"t{index}", level=1 + index % 2) for index in range(start, stop)]

    summary = {
        "tasks": [{"name": f"t{index}", "scored": 8, "passed": index} for index in range(9)],
        "labels": [{"kind": "level", "label": str(level), "pass_rate": {"value": level / 10}} for level in (1, 2)],
    }
    rows = Rows(range(1_000_000), tasks, "train")
    sampler = TaskSampler(rows, seed=3)
    assert (sampler.begin_from(summary), read) == (9, [])
    assert [sampler.rate(rows[index]) for index in (2, 8, 10, 11)] == [0.25, 1.0, 0.1, 0.2]

    # As often as from a list, of which all rates are known from the beginning.
    few = Rows(range(12), tasks, "train")
    one, other = TaskSampler(few, seed=1), TaskSampler([*few], seed=2)
    assert (one.begin_from(summary), other.begin_from(summary)) == (9, 9)
    resumed = TaskSampler(few)
    resumed.resume(json.loads(json.dumps(one.state())))
    assert drawn(resumed, 30) == drawn(one, 30)
    counts = [drawn(each, 8000) for each in (one, other)]
    for index in range(12):
        assert abs(counts[0][index] - counts[1][index]) < 200
    asked = Counter[int]()
    for seed in range(600):  # the first draw, too
        fresh = TaskSampler(few, seed=seed, replay=0.0)
        fresh.begin_from(summary)
        asked += drawn(fresh, 1)
    assert asked[4] > 3 * (asked[0] + asked[8]) and asked[2] > asked[11]


def test_what_was_not_scored_is_not_measured() -> None:
    sampler = TaskSampler(ROWS)
    sampler.record(played(ROWS[0], None))
    sampler.record(played({"split": "other", "index": 0}, 1.0))
    sampler.record(played(None, 1.0))
    assert sampler.state()["seen"] == {}


def test_an_episode_that_lacks_only_rounding_is_solved() -> None:
    sampler = TaskSampler(ROWS, solved=0.1 + 0.2)
    sampler.record(played(ROWS[0], 0.3))
    sampler.record(played(ROWS[1], 0.2999))
    assert sampler.rate(ROWS[0]) > 0.5 > sampler.rate(ROWS[1])


def test_a_task_in_a_row_is_known_by_its_id() -> None:
    rows = [{"world": "maze", "task": Task(id=name, seed=1)} for name in ("one", "two")]
    sampler = TaskSampler(rows)
    sampler.record(played({"world": "maze", "task": Task(id="one", prompt="Changed.")}, 1.0))
    assert sampler.rate(rows[0]) > 0.5 and sampler.rate(rows[1]) == 0.5


def test_the_seed_and_the_saved_state_decide_the_tasks() -> None:
    one, other = TaskSampler(ROWS, seed=3), TaskSampler(ROWS, seed=3)
    assert list(itertools.islice(one, 50)) == list(itertools.islice(other, 50))
    assert list(itertools.islice(TaskSampler(ROWS, seed=4), 50)) != list(itertools.islice(TaskSampler(ROWS), 50))
    teach(one)
    state = json.loads(json.dumps(one.state()))
    expected = list(itertools.islice(one, 50))
    fresh = TaskSampler(ROWS, seed=9)
    fresh.resume(state)
    assert list(itertools.islice(fresh, 50)) == expected and fresh.rate(ROWS[0]) == one.rate(ROWS[0])


def test_a_sampler_by_level_or_weight_does_not_measure() -> None:
    rows = [{"task": "easy", "level": 1}] * 1 + [{"task": f"hard{number}", "level": 2} for number in range(9)]
    drawn_rows: Any = itertools.islice(TaskSampler(rows, by="level"), 1000)
    by_level = Counter(row["task"] for row in drawn_rows)
    assert 400 < by_level["easy"] < 600
    tasks = [Task(id="easy", level=1), *(Task(id=f"hard{number}", level=2) for number in range(9))]
    inside = TaskSampler([{"world": "w", "task": task} for task in tasks], by="level")
    drawn_tasks: Any = itertools.islice(inside, 1000)
    assert 400 < Counter(row["task"].id for row in drawn_tasks)["easy"] < 600
    weighted = TaskSampler(["a", "b"], by="weight", weights=[3, 1])
    assert 650 < Counter(itertools.islice(weighted, 1000))["a"] < 850


class Scored(MCPEnvironment):
    """Its tasks are solved at 10, with a step that costs nothing or 3."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([Task(id="ten", reward_range=(0.0, 10.0), prompt="Do it.")])

    def __init__(self) -> None:
        @self.tool
        def do(worth: float, cost: float) -> str:
            """Do it."""
            self.worth, self.cost = worth, cost
            return "done"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.worth = self.cost = 0.0

    def score(self, call: Any, outcome: Any) -> float:
        return -self.cost

    def verify(self, evidence: Any) -> float:
        return self.worth


@pytest.mark.extension("in_process")
@pytest.mark.parametrize("trajectories", [True, False])
@pytest.mark.parametrize(("worth", "cost", "passed"), [(10.0, 3.0, True), (9.0, -3.0, False), (1.0, 0.0, False)])
def test_a_task_is_solved_by_the_rule_of_evaluations(
    trajectories: bool, worth: float, cost: float, passed: bool
) -> None:
    async def policy(episode: Any) -> None:
        await episode.call_tool("do", {"worth": worth, "cost": cost})

    async def body() -> Played:
        async with EnvPool(Scored, 1) as pool:
            (found,) = await pool.rollout(policy, [*Scored.tasks], trajectories=trajectories)
        return found

    found = asyncio.run(body())
    assert found.passed() is passed and found.passed(threshold=8.0) is (worth - cost >= 8.0)
    sampler = TaskSampler([*Scored.tasks])
    sampler.record(found)
    assert (sampler.rate("ten") > 0.5) is passed


def test_worlds_are_drawn_by_their_weights_and_lazily() -> None:
    read: list[tuple[str, int, int]] = []

    def lazy(name: str, number: int) -> Rows:
        def tasks(start: int, stop: int) -> list[Task]:
            read.append((name, start, stop))
            return [Task(id=f"{name}-{index}", split="train") for index in range(start, stop)]

        return Rows(range(number), tasks, "train")

    worlds: dict[str, Any] = {"office": lazy("office", 1_000_000), "terminal": lazy("terminal", 10), "list": ["a", "b"]}
    sampler = TaskSampler(worlds, weights={"office": 2, "terminal": 1, "list": 1}, replay=0.0)
    assert read == []
    rows: list[Any] = [*itertools.islice(sampler, 1200)]
    counted = Counter(row["world"] for row in rows)
    assert 520 < counted["office"] < 680 and 230 < counted["terminal"] < 370
    assert all(stop == start + 1 for _, start, stop in read) and len(read) <= 900
    assert all(row["task_id"] == f"{row['world']}-{row['index']}" for row in rows if row["world"] != "list")
    first = next(row for row in rows if row["world"] == "office")
    sampler.record(played(first, 1.0))
    sampler.record(played({"world": "list", "task": "b"}, 1.0))
    sampler.record(played({"world": "elsewhere", "task": "b"}, 1.0))
    assert sampler.rate(first) > 0.5 and sampler.state()["seen"].keys() == {
        json.dumps(["office", "train", first["index"]]),
        json.dumps(["list", "b"]),
    }


def test_levels_of_many_rows_are_read_in_some_places_only() -> None:
    read = Counter[str]()

    def tasks(start: int, stop: int) -> list[Task]:
        read["tasks"] += stop - start
        return [Task(id=f"{index}", split="train", level=1 + index // 400_000) for index in range(start, stop)]

    sampler = TaskSampler(Rows(range(1_000_000), tasks, "train"), by="level")
    assert read["tasks"] <= 10_100
    rows: Any = itertools.islice(sampler, 900)
    levels = Counter(row["level"] for row in rows)
    assert levels.keys() == {1, 2, 3} and min(levels.values()) > 230


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tasks": []}, "at least one task"),
        ({"tasks": "pay-rent"}, "tasks is 'pay-rent', which is one task"),
        ({"tasks": {"one": "pay-rent"}}, "tasks is 'pay-rent', which is one task"),
        (
            {"tasks": [{"task": "a"}, {"task": "b", "level": "hard"}], "by": "level"},
            "the level of b is 'hard'; it must be a whole number",
        ),
        ({"tasks": ["a"], "by": "luck"}, "by is 'luck'"),
        ({"tasks": ["a"], "weights": [1, 2]}, "one positive number for each task"),
        ({"tasks": ["a"], "weights": [0]}, "one positive number for each task"),
        ({"tasks": ["a"], "replay": 2}, "replay is 2"),
        ({"tasks": {"one": ["a"], "two": []}}, "at least one task of 'two'"),
        ({"tasks": {}}, "at least one task"),
        ({"tasks": {"one": ["a"]}, "weights": [1]}, "one positive number for each world: one"),
        ({"tasks": {"one": ["a"]}, "weights": {"two": 1}}, "one positive number for each world: one"),
    ],
)
def test_arguments_of_a_sampler_that_do_not_fit_are_refused(arguments: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TaskSampler(**arguments)
