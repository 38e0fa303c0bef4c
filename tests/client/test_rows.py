"""Rows of a split, which are read when they are used."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest

from mcpenv import MCPEnvironment, TaskSet
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient
from mcpenv_client.pool import Assignment, EnvPool, Played, TaskSampler
from mcpenv_client.rows import PAGE, Rows
from mcpenv_client.types.status import COMPLETED
from mcpenv_client.types.tasks import Task

MANY = 1_000_000


def make_task(rng: random.Random, index: int, split: str) -> dict[str, Any]:
    """Return a task that knows its split and is counted."""
    Endless.made += 1
    return {"prompt": f"{split} {index}", "level": 1 + index % 3, "seed": rng.getrandbits(16)}


class Endless(MCPEnvironment):
    """An environment with a million generated tasks.

    Attributes:
        made: how many of them were made.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet.generate(make_task, seed=1, sizes={"train": MANY, "test": 10_000})
    made = 0

    def __init__(self) -> None:
        self.tool(self.wave, terminal=True)

    def wave(self) -> str:
        """Wave."""
        return "waved"

    def verify(self, evidence: Any) -> float:
        return 1.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Endless) as address:
        yield address


@pytest.fixture(params=["here", "server"])
def rows(request: pytest.FixtureRequest, url: str) -> Rows:
    source: Any = Endless if request.param == "here" else EnvClient(url).sync()
    Endless.made = 0
    found: Rows = source.rows("train")
    return found


def test_of_a_million_rows_only_those_that_are_used_are_read(rows: Rows) -> None:
    assert len(rows) == MANY and Endless.made <= PAGE + 32  # the first page, and what tells the version of the tasks
    before = Endless.made
    assert rows[-1]["prompt"] == [{"role": "user", "content": f"train {MANY - 1}"}]
    assert Endless.made == before + 1
    part = rows[200:800][100:-100:2]
    assert (len(part), part[0]["index"], part[-1]["index"]) == (200, 300, 698)
    assert Endless.made == before + 3
    assert [row["level"] for row in rows[500:503]] == [3, 1, 2]


def test_an_iteration_reads_a_page_at_a_time(rows: Rows) -> None:
    for row in rows:
        if row["index"] == PAGE + 1:
            break
    assert Endless.made <= 2 * PAGE + 32


def test_indices_are_those_of_a_list(rows: Rows) -> None:
    few = rows[:5]
    plain = list(few)
    assert few == plain and plain == few and few != plain[1:] and few != "few"
    assert few[::-1] == plain[::-1] and few[-2] == plain[-2] and plain[3] in few
    with pytest.raises(IndexError):
        few[5]


def test_a_row_is_a_copy(rows: Rows) -> None:
    rows[0]["prompt"] = "mine"
    assert rows[0]["prompt"] != "mine"


def test_rows_in_this_process_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Endless.rows("test")))[9] == Endless.rows("test")[9]


def test_a_coroutine_reads_them_while_others_run(url: str) -> None:
    async def read() -> list[int]:
        found = await EnvClient(url).rows("test")
        return [row["index"] async for row in found[: 3 * PAGE]]

    assert asyncio.run(read()) == list(range(3 * PAGE))


def test_rows_that_were_used_long_ago_are_not_kept() -> None:
    asked: list[int] = []

    def read(start: int, stop: int) -> list[Task]:
        asked.extend(range(start, stop))
        return [Task(id=str(index), prompt="") for index in range(start, stop)]

    found = Rows(range(5000), read, "train")
    assert sum(1 for _ in found) == 5000 and asked == list(range(5000))
    assert found[4999]["index"] == 4999 and len(asked) == 5000
    assert found[0]["index"] == 0 and len(asked) == 5001


@pytest.mark.parametrize("place", [pytest.param("local", marks=pytest.mark.extension("in_process")), "remote"])
def test_a_play_of_ten_thousand_generated_tasks_begins_with_a_few_of_them(place: Any, url: str) -> None:
    made: list[int] = []

    async def wave(episode: Any) -> None:
        made.append(Endless.made)
        await episode.call_tool("wave")

    async def begin() -> Any:
        rows = Endless.rows("test") if place == "local" else await EnvClient(url).rows("test")
        async with EnvPool(Endless if place == "local" else url, 2, backend=place) as pool:
            async with pool.play(wave, rows) as stream:
                return await anext(stream)

    Endless.made = 0
    first = asyncio.run(begin())
    assert first.reward == 1.0 and first.assignment.row["index"] < PAGE
    assert made[0] <= 2 * PAGE and Endless.made < 5 * PAGE


@pytest.mark.parametrize("by", ["weight", "pass_rate"])
def test_a_sampler_of_many_rows_reads_those_that_it_draws(rows: Rows, by: Any) -> None:
    def drawn(sampler: TaskSampler) -> list[Any]:
        return list(itertools.islice(sampler, 20))

    rows, before = rows[: MANY // 10], Endless.made
    sampler = TaskSampler(rows, by=by, seed=1)
    first = drawn(sampler)
    assert Endless.made <= before + 20
    for row in first:
        sampler.record(Played(Assignment(0, 0, 0, row=row), COMPLETED, reward=1.0))
    sampler.record(Played(Assignment(0, 0, 0, row={"split": "test", "index": 0}), COMPLETED, reward=1.0))
    state = json.loads(json.dumps(sampler.state()))
    assert state["seen"].keys() == {json.dumps(["train", row["index"]]) for row in first}
    other = TaskSampler(rows, by=by, seed=2)
    state["seen"] |= {"pay-rent": [1, 1.0], "7": [1, 1.0], '["train", -1]': [1, 1.0]}  # of other samplers
    other.resume(state)
    assert drawn(other) == drawn(sampler) and other.rate(first[0]) == sampler.rate(first[0]) > 0.5
    assert Endless.made <= before + 80


def test_a_sampler_draws_from_rows_as_from_a_list(rows: Rows) -> None:
    part = rows[10:100:3]
    lazy, plain = TaskSampler(part, replay=0.5), TaskSampler(list(part), replay=0.5)
    for one, other, number in zip(lazy, plain, range(300), strict=False):
        assert one == other
        for sampler in (lazy, plain):
            sampler.record(Played(Assignment(0, 0, 0, row=one), COMPLETED, reward=float(number % 3 > 0)))
    assert lazy.state() == plain.state()
