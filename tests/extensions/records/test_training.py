"""A run while it trains: its buckets, and each alarm on both sides of its threshold."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpenv.extensions.console.training_page import training_page
from mcpenv.extensions.records.record_index import RecordIndex
from mcpenv.extensions.records.training import (
    BUCKETS,
    Bucket,
    alarms_of,
    buckets_of,
    calls_of,
    present_of,
    recorded_twice,
    repeated_calls,
    reward_without_verified,
    tools_that_only_fail,
)
from mcpenv.extensions.records.where import EVERYTHING, Condition, parse, row_of
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.records import Reward, StepRecord, ToolCall, ToolOutcome, Trajectory
from mcpenv_client.types.tools import ToolErrorType, ToolFailure

Row = dict[str, Any]


def row(version: int | None, at: int = 0, **more: Any) -> Row:
    """Return the row of an episode that made a call of its own, with success."""
    name = f"e{version}-{at}"
    usual: Row = {"id": name, "policy_version": version, "started_at": 1.7e9 + at, "ended_at": None, "server": "a"}
    usual |= {"return": 0.5, "verified": None, "n_steps": 1, "errors": 0, "split": None}
    return usual | {"calls": (("read", 1, 0),), "tools": ["read"], "calls_digest": name} | more


def found(rows: list[Row], condition: str) -> list[Row]:
    wanted: Condition = parse(condition)
    return [each for each in rows if wanted.holds(each, lambda text: None)]


VERSIONS = st.lists(st.none() | st.integers(0, 200), max_size=80)


@given(VERSIONS)
def test_each_bucket_has_the_episodes_that_its_condition_finds(versions: list[int | None]) -> None:
    rows = [row(version, at) for at, version in enumerate(versions)]
    buckets = buckets_of(rows)
    assert len(buckets) <= BUCKETS
    for at, bucket in enumerate(buckets):
        assert bucket.rows and found(rows, bucket.where) == bucket.rows
        since = [each for later in buckets[at:] for each in later.rows]
        assert sorted(each["id"] for each in found(rows, bucket.since)) == sorted(each["id"] for each in since)
    in_them = sum(len(bucket.rows) for bucket in buckets)
    known = [version for version in versions if version is not None]
    assert in_them == (len(known) if known else len(rows))


def test_without_versions_the_episodes_stand_by_time() -> None:
    rows = [row(None, at * 60) for at in range(120)] + [row(None, 999, started_at=None)]
    buckets = buckets_of(rows)
    assert 30 <= len(buckets) <= BUCKETS and sum(len(bucket.rows) for bucket in buckets) == 120
    assert buckets[0].label == "22:13:20" and present_of(buckets)[-1] is buckets[-1]
    page = training_page(rows, EVERYTHING)
    assert page["notes"] == [
        "No episode has a policy version, so that they stand by the time of their start.",
        "1 of 121 episodes have no time and no point.",
        "No alarm.",
    ]
    assert training_page([], EVERYTHING) == {"total": 0, "notes": [], "alarms": [], "charts": [], "tables": []}


def run(returns: list[float], verified: list[float | None], each: int = 30) -> list[Bucket]:
    """Return buckets of policy versions with these means, and some spread."""
    return buckets_of(
        [
            row(version, at, **{"return": worth + (at % 3 - 1) * 0.05, "verified": checked})
            for version, (worth, checked) in enumerate(zip(returns, verified, strict=True))
            for at in range(each)
        ]
    )


def test_a_reward_that_rises_while_the_verified_value_does_not_is_told() -> None:
    alarm = reward_without_verified(run([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.2] * 6))
    assert alarm is not None
    assert alarm.text == "the mean return rises from 0.15 to 0.55, and the verified value does not (0.2 to 0.2)"
    assert (alarm.where, alarm.sort) == ("policy_version >= 4 and verified <= 0.2", "-return")


@pytest.mark.parametrize(
    ("returns", "verified", "each"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 30),
        ([0.3] * 6, [0.3, 0.3, 0.2, 0.2, 0.1, 0.1], 30),
        ([0.6, 0.5, 0.4, 0.3, 0.2, 0.1], [0.2] * 6, 30),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [None] * 6, 30),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.2] * 6, 9),
        ([0.6], [0.2], 30),
    ],
    ids=["both rise", "only verified falls", "the return falls", "nothing is verified", "too few", "one version"],
)
def test_else_no_alarm_is_raised(returns: list[float], verified: list[float | None], each: int) -> None:
    assert reward_without_verified(run(returns, verified, each)) is None


def test_an_episode_that_is_recorded_twice_is_told_and_one_that_is_not_is_not() -> None:
    rows = [row(1, at) for at in range(5)]
    assert recorded_twice(rows) is None
    alarm = recorded_twice([*rows, row(1, 3)])
    assert alarm is not None and alarm.text == "1 episode is in the record more than once"
    assert [each["id"] for each in found(rows, alarm.where)] == ["e1-3"]


def test_episodes_that_repeat_others_are_told_from_half_of_them_on() -> None:
    def with_copies(count: int) -> list[Bucket]:
        rows = [row(version, at) for version in range(3) for at in range(40)]
        for each in rows[80 : 80 + count]:
            each["calls_digest"] = "same"
        return buckets_of(rows)

    assert repeated_calls(with_copies(19)) is None
    alarm = repeated_calls(with_copies(20))
    assert alarm is not None
    assert alarm.text.startswith("20 of the 40 newest episodes repeat another one call by call")
    assert len(found(with_copies(20)[-1].rows, alarm.where)) == 20
    assert repeated_calls(buckets_of([row(1, calls_digest="same") for _ in range(19)])) is None, "too few"


def test_a_tool_that_only_fails_is_told_and_one_that_works_once_is_not() -> None:
    def failing(failed: int) -> list[Bucket]:
        rows = [row(version, at) for version in range(3) for at in range(10)]
        for at, each in enumerate(rows[20:]):
            each["calls"] = (("read", 1, 0), ("send", 1, int(at < failed)))
            each["tools"] = ["read", "send"]
        return buckets_of(rows)

    (alarm,) = tools_that_only_fail(failing(10))
    assert (alarm.text, alarm.where) == (
        "the tool send only fails: all its 10 newest calls",
        'policy_version >= 2 and tool("send")',
    )
    assert not list(tools_that_only_fail(failing(9)))
    assert not list(tools_that_only_fail([Bucket("1", "", "", [row(1, calls=(("send", 9, 9),))])])), "too few"


def episode(name: str, version: int, arguments: dict[str, Any], ok: bool = True) -> RecordedEpisode:
    down = ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message="down")
    outcome = ToolOutcome.returned("", 0.1) if ok else ToolOutcome(error=down)
    steps = [StepRecord(ToolCall("read", arguments, 1), outcome)]
    trajectory = Trajectory(name, seed=7, steps=steps, verified=Reward(0.25), started_at=1.0, ended_at=2.0)
    turns = [ModelTurn("chat_completions", "/v1", {}, status=200, answer={}, policy_version=version)]
    return RecordedEpisode(trajectory, RecordedEnvironment("Letters"), model_turns=turns)


def test_a_row_has_what_alarms_need() -> None:
    one, same, other = (row_of(episode(name, 3, {"n": n})) for name, n in (("a", 1), ("b", 1), ("c", 2)))
    assert one["calls_digest"] == same["calls_digest"] != other["calls_digest"]
    assert (one["verified"], one["calls"], one["errors"]) == (0.25, (("read", 1, 0),), 0)
    assert row_of(episode("d", 3, {}, ok=False))["calls"] == (("read", 1, 1),)
    cut = episode("e", 3, {})
    cut.trajectory.dropped = 1
    assert row_of(cut)["calls_digest"] is None, "its first calls are unknown"
    assert calls_of([one, same]) == {"read": (2, 0)}


def test_servers_that_share_a_folder_stand_in_one_page(tmp_path: Path) -> None:
    for at in range(2):
        with Recorder(tmp_path) as recorder:
            for number in range(3 + at):
                recorder.write(episode(f"s{at}-{number}", number, {"n": number}, ok=False))
    index = RecordIndex(tmp_path)
    page = training_page([each.summary for each in index.select()], parse("seed = 7 or seed = 8"))
    tables = {table["title"]: table["rows"] for table in page["tables"]}
    assert sorted(server[1] for server in tables["Servers"]) == ["3", "4"]
    assert len({server[0] for server in tables["Servers"]}) == 2
    (label, episodes, *_, repeated) = tables["By policy version"][-1]
    assert (label[0]["text"], episodes, repeated) == ("0", "2", "100%")
    assert label[0]["where"] == "(seed = 7 or seed = 8) and policy_version = 0"
    assert len(index.select(parse(label[0]["where"]))) == 2
    assert tables["Tools"][0][1:] == ["7", "7", "1", "1"] and not page["alarms"]


def test_records_below_a_folder_are_those_of_several_servers(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with Recorder(tmp_path / name) as recorder:
            recorder.write(episode("same", 1, {}))
    assert not RecordIndex(tmp_path).select()
    index = RecordIndex(tmp_path, below=True)
    rows = [each.summary for each in index.select()]
    assert sorted(each["server"] for each in rows) == ["one", "two"] and len({each["place"] for each in rows}) == 2
    assert sorted(index.folder_of(each["place"]).name for each in rows) == ["one", "two"]
    alarm = training_page(rows, EVERYTHING)["alarms"][0]["rows"][0][0][0]
    assert alarm["text"] == "1 episode is in the record more than once"
    assert len(index.select(parse(alarm["where"]))) == 2
    with Recorder(tmp_path) as recorder:
        recorder.write(episode("own", 1, {}))
    assert len(RecordIndex(tmp_path, below=True).select()) == 1, "a record has no other one below it"


@pytest.mark.slow
def test_a_hundred_thousand_rows_are_summed_up_quickly() -> None:
    rows = [row(at // 500, at, verified=at % 2) for at in range(100_000)]
    began = time.process_time()
    assert training_page(rows, EVERYTHING)["total"] == len(rows)
    assert not alarms_of(rows, buckets_of(rows))
    assert time.process_time() - began < 8, "in processor time"
