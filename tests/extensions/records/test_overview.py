"""Figures of many episodes, and the rollouts of a task: every episode is counted once, where a condition finds it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpenv.extensions.console.overview_charts import charts_of, heat_of
from mcpenv.extensions.records.overview import ACROSS, BARS, DOWN, groups_of, overview_of
from mcpenv.extensions.records.record_index import RecordIndex
from mcpenv.extensions.records.rollouts import MAX_STEPS, rollouts_of
from mcpenv.extensions.records.where import parse
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode
from mcpenv_client.scores import advantages_of_scores
from mcpenv_client.types.records import Reward, StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.tasks import Task


def row(place: str, earned: float | None, steps: int = 1, task: str | None = None) -> dict[str, Any]:
    split = None if task is None else "train"
    return {"place": place, "return": earned, "n_steps": steps, "task_id": task, "split": split, "errors": 0}


RETURNS = st.lists(st.none() | st.floats(-1e9, 1e9) | st.integers(0, 10).map(lambda n: n / 10), max_size=30)


@given(RETURNS, st.lists(st.integers(0, 5000), min_size=30, max_size=30))
def test_each_bar_and_cell_has_the_episodes_that_its_condition_finds(
    returns: list[float | None], steps: list[int]
) -> None:
    rows = [row(str(at), value, steps[at]) for at, value in enumerate(returns)]
    seen = overview_of(rows)
    scored = [each for each in rows if each["return"] is not None]
    assert (seen["total"], seen["unscored"]) == (len(rows), len(rows) - len(scored))
    if not scored:
        assert seen["returns"] is None
        return
    bars = seen["returns"]
    assert bars["count"] == len(bars["counts"]) <= BARS and sum(bars["counts"]) == len(scored)
    for at, count in enumerate(bars["counts"]):
        low, high = (bars["start"] + bars["width"] * edge for edge in (at, at + 1))
        found = parse(f"return >= {low!r} and return < {high!r}")
        assert count == sum(bool(found.holds(each, lambda text: None)) for each in rows)
    x, y, cells = (seen["scatter"][name] for name in ("x", "y", "cells"))
    assert x["count"] <= ACROSS and y["count"] <= DOWN and sum(count for *_, count, _ in cells) == len(scored)
    assert all(0 <= column < x["count"] and 0 <= line < y["count"] for column, line, *_ in cells)


def test_charts_have_a_cell_for_each_bar_and_attempt() -> None:
    figures = overview_of([row("b", 0.5, 2, task="t"), row("a", 0.25, 1, task="t"), row("x", None)])
    histogram, scatter = charts_of(figures)
    assert (histogram["range"], histogram["about"]) == ("up to 1 episode", "1 episode without a return.")
    assert histogram["ends"][0] == "0.25" and histogram["cells"][0][5].endswith(": 1 episode")
    assert all(0 <= each <= 1 for cell in histogram["cells"] + scatter["cells"] for each in cell[:5])
    assert scatter["cells"][-1][5].startswith("1 to 2 steps, return 0.25 to ") and scatter["x"][0] == "steps"
    heat = heat_of(figures["heat"])
    assert heat["names"] == ["train/t"] and heat["range"] == "1 task"
    assert [cell[4:] for cell in heat["cells"]] == [
        (0.0, "train/t, attempt 1: 0.25", "a"),
        (1.0, "train/t, attempt 2: 0.5", "b"),
    ]
    assert charts_of(overview_of([])) == [] and heat_of(overview_of([])["heat"])["cells"] == []


def test_tasks_are_shown_by_attempt_in_order_of_time_the_worst_first() -> None:
    newest_first = [row("c", 1.0, task="a"), row("b", 0.0, task="b"), row("a", 0.0, task="a"), row("x", 1.0)]
    heat = overview_of(newest_first)["heat"]
    assert heat["count"] == 2
    assert [(task["value"], task["attempts"]) for task in heat["tasks"]] == [
        ("b", [["b", 0.0]]),
        ("a", [["a", 0.0], ["c", 1.0]]),
    ]
    groups = groups_of(newest_first, "task")
    assert [(group["value"], group["episodes"], group["mean"]) for group in groups["groups"]] == [
        ("a", 2, 0.5),
        ("b", 1, 0.0),
        (None, 1, 1.0),
    ]


@pytest.mark.slow
def test_a_hundred_thousand_rows_are_filtered_sorted_and_summed_up_quickly(tmp_path: Path) -> None:
    count = 100_000
    template = episode("NAME", "ab", 0.5).line().replace(b'"seed":7', b'"seed":SEED').replace(b":0.5", b":WORTH")
    assert b"SEED" in template and b"WORTH" in template
    with (tmp_path / "episodes-a.jsonl").open("wb") as file:
        for number in range(count):
            worth = b"%.2f" % (number % 101 / 100)
            file.write(
                template.replace(b"NAME", b"e%d" % number).replace(b"SEED", b"%d" % number).replace(b"WORTH", worth)
            )
    index = RecordIndex(tmp_path)
    assert index.find().total == count
    wanted = parse('return < 0.2 and tool("a") and not (seed <= 5 or agent = "codex")')
    began = time.process_time()
    found = index.select(wanted, "-return")
    figures = overview_of([each.summary for each in found])
    everything = overview_of([each.summary for each in index.select()])
    groups_of([each.summary for each in index.select()], "task")
    took = time.process_time() - began
    assert len(found) == figures["total"] == sum(number % 101 < 20 for number in range(6, count))
    assert everything["total"] == count
    assert [each.summary["return"] for each in found[:2]] == [0.19, 0.19]
    assert took < 6, "all four, in processor time: 1.2 s on two slow cores"
    three = index.find(parse("seed in (7, 70000, 99999) and return >= 0"))
    assert {each["id"] for each in three.rows} == {"e7", "e70000", "e99999"}


def episode(name: str, calls: str, worth: float | None) -> RecordedEpisode:
    """Return an episode of a task that calls a tool for each letter."""
    steps = [StepRecord(ToolCall(call, {}, at), ToolOutcome.returned("", 0.1)) for at, call in enumerate(calls, 1)]
    end = None if worth is None else Reward(worth)
    task = Task(id="t", split="train")
    trajectory = Trajectory(
        name, seed=7, task=task, steps=steps, end_reward=end, total_reward=worth or 0.0, started_at=1.0, ended_at=2.0
    )
    return RecordedEpisode(trajectory, RecordedEnvironment("Letters"))


def test_sixteen_rollouts_stand_on_one_trie_and_part_where_winners_and_losers_do() -> None:
    group = [(f"w{at}", episode(f"w{at}", "abc", 1.0)) for at in range(4)]
    group += [(f"l{at}", episode(f"l{at}", "abd" + "e" * at, 0.0)) for at in range(11)]
    group.append(("n", episode("n", "x", None)))
    seen = rollouts_of(group[::-1])
    assert [lane["place"][0] for lane in seen["lanes"]] == ["w"] * 4 + ["l"] * 11 + ["n"]
    assert [[step["lanes"] for step in lane["steps"]] for lane in seen["lanes"][:6]] == [
        [15, 15, 4], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 11], [0, 0, 0, 10],
    ]  # fmt: skip
    first = seen["partings"][0]
    assert (first["step"], first["explained"]) == (2, pytest.approx(1.0))
    assert [(way["call"]["name"], way["lanes"], way["mean"]) for way in first["ways"]] == [
        ("c", 4, 1.0),
        ("d", 11, 0.0),
    ]
    expected = advantages_of_scores([1.0] * 4 + [0.0] * 11 + [None])
    assert [lane["advantage"] for lane in seen["lanes"]] == expected
    assert (seen["equal"], seen["scored"]) == (False, 15)


def test_a_lane_has_the_steps_that_its_record_lacks_and_is_cut_apart_from_them() -> None:
    long = episode("long", "a" * (MAX_STEPS + 5), 1.0)
    long.trajectory.dropped = 3
    (lane,) = rollouts_of([("long", long)])["lanes"]
    assert (lane["dropped"], lane["n_steps"], len(lane["steps"])) == (3, MAX_STEPS + 8, MAX_STEPS)


def test_a_group_without_a_difference_has_no_gradient() -> None:
    seen = rollouts_of([(name, episode(name, calls, 0.1 + 0.2)) for name, calls in zip("ab", ("xy", "z"), strict=True)])
    assert seen["equal"] and [lane["advantage"] for lane in seen["lanes"]] == [0.0, 0.0]
    assert not rollouts_of([("a", episode("a", "x", 1.0))])["equal"], "one alone is no group"
    assert rollouts_of([]) == {"lanes": [], "partings": [], "equal": False, "scored": 0, "mean": None}


@given(st.lists(st.tuples(st.text("ab", max_size=5), st.none() | st.sampled_from([0.0, 1.0])), max_size=8))
def test_every_step_of_every_rollout_is_drawn_once(group: list[tuple[str, float | None]]) -> None:
    seen = rollouts_of([(str(at), episode(str(at), *each)) for at, each in enumerate(group)])
    assert sorted(lane["place"] for lane in seen["lanes"]) == sorted(map(str, range(len(group))))
    drawn = sum(step["lanes"] for lane in seen["lanes"] for step in lane["steps"])
    assert drawn == sum(len(calls) for calls, _ in group)
    prefixes = {calls[:end] for calls, _ in group for end in range(1, len(calls) + 1)}
    assert sum(step["lanes"] > 0 for lane in seen["lanes"] for step in lane["steps"]) == len(prefixes)
    assert all(0 <= parting["explained"] <= 1 + 1e-9 for parting in seen["partings"])


@pytest.mark.parametrize("returns", [[-1.7e308, 1.7e308], [0.0, 5e-324], [1e300, 1e300], [-5e-324, 5e-324]])
def test_odd_returns_have_bins_too(returns: list[float]) -> None:
    seen = overview_of([row(str(at), value) for at, value in enumerate(returns)])["returns"]
    assert sum(seen["counts"]) == 2 and all(map(math.isfinite, (seen["start"], seen["width"])))
