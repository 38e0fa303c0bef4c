"""The sampler of tasks, by weight, level and measured pass rate."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest

from mcpenv_client.pool import Assignment, Played, TaskSampler
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
    weighted = TaskSampler(["a", "b"], by="weight", weights=[3, 1])
    assert 650 < Counter(itertools.islice(weighted, 1000))["a"] < 850


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tasks": []}, "at least one task"),
        ({"tasks": ["a"], "by": "luck"}, "by is 'luck'"),
        ({"tasks": ["a"], "weights": [1, 2]}, "one positive number for each task"),
        ({"tasks": ["a"], "weights": [0]}, "one positive number for each task"),
        ({"tasks": ["a"], "replay": 2}, "replay is 2"),
    ],
)
def test_arguments_of_a_sampler_that_do_not_fit_are_refused(arguments: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TaskSampler(**arguments)
