"""Recording: every episode with its ending, whole or absent, whatever happens to the process or the disk."""

from __future__ import annotations

import asyncio
import errno
import gc
import gzip
import json
import logging
import math
import os
import pickle
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from command_line import command_lines
from fastmcp import Client
from hypothesis import given
from hypothesis import strategies as st
from killed import kill_in_the_middle
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from record_worlds import Dice, Shout, play

from mcpenv import ConfigurationError, Mode, Trajectory
from mcpenv.errors import DamagedRecord
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder, TornTail, read_episodes, spilled
from mcpenv.trajectories.episode import NOT_RECORDED, Ending
from mcpenv.trajectories.segments import Segment
from mcpenv.trajectories.tool_lists import ToolLists
from mcpenv.trajectories.writer import Job, Writer
from mcpenv_client import EnvClient, Plane, ToolErrorType
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.records import Fork, LogEntry, Reward, StepRecord, ToolCall, ToolOutcome
from mcpenv_client.types.status import StatusCode
from mcpenv_client.types.tasks import OracleCall, Task, TaskLimits
from mcpenv_client.types.tools import ToolFailure, ToolResult
from mcpenv_client.types.values import to_plain

TESTS = Path(__file__).parents[1]
RECORDS = TESTS / "data" / "records"
"""Written by an earlier version, see `record_worlds.Dice`."""


def episode(name: str, **fields: Any) -> RecordedEpisode:
    return RecordedEpisode(Trajectory(name, **fields), RecordedEnvironment("Dice", "1"))


def ids(record: Path) -> list[str]:
    return [each.id for each in read_episodes(record)]


def segments(record: Path) -> list[Path]:
    return sorted(record.glob("episodes-*.jsonl.gz"))


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with Recorder(tmp_path / "record") as made:
        yield made


# -- what is recorded


def test_an_episode_of_a_server_is_on_disk_when_the_reset_after_it_is_answered(tmp_path: Path) -> None:
    with serving(Dice, ServerConfig(record=tmp_path)) as url, EnvClient(url).sync() as client:
        for number in range(5):
            client.reset(episode_id=f"episode-{number}")
            assert ids(tmp_path) == [f"episode-{before}" for before in range(number)]
            client.call_tool("roll")


def test_an_episode_of_a_server_is_on_disk_when_the_close_after_it_is_answered(tmp_path: Path) -> None:
    with serving(Dice, ServerConfig(record=tmp_path)) as url:
        for number in range(5):
            with EnvClient(url).sync() as client:
                client.reset(episode_id=f"episode-{number}")
                client.call_tool("roll")
            assert ids(tmp_path)[-1] == f"episode-{number}"


def test_each_ending_is_recorded(tmp_path: Path) -> None:
    with serving(Dice, ServerConfig(record=tmp_path, session_timeout_s=0.2)) as url:
        with EnvClient(url).sync() as client:
            client.reset(seed=1)
            while not client.call_tool("roll").done:
                pass
            client.reset()
            client.end(reason="it has said enough")
            client.reset()
            client.end(truncated=True)
            client.reset()
            client.reset()
        abandoned = httpx.post(f"{url}/reset", json={"episode_id": "abandoned"}).json()["session_id"]
        while httpx.get(f"{url}/state", params={"session_id": abandoned}).is_success:
            threading.Event().wait(0.6)  # asking is use: longer than a session may be idle
        left = EnvClient(url).sync()
        left.connect()
        left.reset(episode_id="left")
    left.close()
    ended = [(each.ending, each.trajectory.reason) for each in read_episodes(tmp_path)]
    assert ended == [
        ("terminated", "enough"),
        ("terminated", "it has said enough"),
        ("truncated", None),
        ("reset", "reset"),
        ("closed", "closed"),
        ("idle", "idle"),
        ("shutdown", "shutdown"),
    ]
    assert {ending for ending, _ in ended} <= set(get_args(Ending))


@pytest.mark.process
def test_an_episode_whose_orchestrator_vanished_is_recorded_as_disconnected(tmp_path: Path) -> None:
    program = (
        "import os, sys; from mcpenv_client import EnvClient; client = EnvClient(sys.argv[1]).sync(); "
        "client.connect(); client.reset(); client.call_tool('roll'); os._exit(0)"
    )
    with serving(Dice, ServerConfig(record=tmp_path)) as url:
        subprocess.run([sys.executable, "-c", program, url], check=True, timeout=60)
        while httpx.get(f"{url}/sessions").json()["sessions"]:
            threading.Event().wait(0.05)
        while not ids(tmp_path):
            threading.Event().wait(0.05)
    (recorded,) = read_episodes(tmp_path)
    assert recorded.ending == "disconnected" and len(recorded.trajectory.steps) == 1


def test_a_record_says_what_was_called_by_whom_and_what_came_of_it(tmp_path: Path) -> None:
    async def agent(mcp_url: str) -> None:
        async with Client(mcp_url) as client:
            await client.call_tool("say", {"text": "hi"})

    with serving(Dice, ServerConfig(record=tmp_path)) as url, EnvClient(url).sync() as client:
        begun = client.reset(seed=7, sides=4, target=3)
        asyncio.run(agent(begun.info["mcp_url"]))
        client.call_tool("refuse")
        client.step(Shout(text="go"))
        client.end(reason="enough talk")
        client.reset()
        recorded = next(iter(read_episodes(tmp_path)))
        played = recorded.trajectory
    assert (played.seed, played.options) == (7, {"sides": 4, "target": 3})
    assert played.observation is not None
    assert played.observation["metadata"]["prompt"] == "Reach 3 with dice of 4 sides."
    said, refused, shouted = played.steps
    assert (said.call.plane, said.call.name, said.call.arguments) == (Plane.AGENT, "say", {"text": "hi"})
    assert said.outcome.result is not None and said.outcome.result.data == {"said": "hi"} and said.reward is None
    assert refused.outcome.error is not None and refused.outcome.error.error_type is ToolErrorType.EXECUTION_ERROR
    assert refused.reward is not None and refused.reward.components == {"effort": 0.5}
    assert shouted.call.name == "shout"
    assert recorded.extra == {"observations": {"3": {"metadata": {}, "echo": "go (0)"}}}
    assert recorded.environment == RecordedEnvironment("Dice", "0.1.0")
    assert recorded.versions.keys() == {"mcpenv", "fastmcp", "mcp", "python"}


def test_a_recorded_episode_knows_its_tools_and_the_list_is_written_once(recorder: Recorder) -> None:
    env = Dice()
    recorder.attach(env)
    for seed in range(3):
        play(env, seed)
    env.remove_tool("say")
    env.reset()
    env.close()
    recorder.flush()
    *first, last = [each.tools for each in read_episodes(recorder.directory)]
    assert len(set(first)) == 1 and last != first[0]
    assert len(list((recorder.directory / "tools").iterdir())) == 2
    assert [tool.name for tool in recorder.tools.read(last)] == ["roll", "picture", "refuse", "crash"]


def test_an_episode_that_nobody_gave_a_seed_has_one_that_plays_it_again(recorder: Recorder) -> None:
    env = Dice()
    recorder.attach(env)
    env.reset()
    said = [env.call_tool("roll").text for _ in range(3)]
    env.reset()
    recorder.flush()
    (recorded,) = read_episodes(recorder.directory)
    env.reset(seed=recorded.trajectory.seed)
    assert [env.call_tool("roll").text for _ in range(3)] == said


@pytest.mark.parametrize("keep", [10, 200])
def test_an_episode_longer_than_its_environment_keeps_is_recorded_from_its_first_step(
    recorder: Recorder, keep: int
) -> None:
    class Short(Dice):
        max_kept_steps = keep

    env = Short()
    recorder.attach(env)
    env.reset(target=10**6)
    for number in range(700):
        env.call_tool("say", {"text": str(number)})
    assert env.trajectory is not None and env.trajectory.dropped == 700 - len(env.trajectory.steps)
    assert keep <= len(env.trajectory.steps) <= keep * 65 // 64
    env.close()
    recorder.flush()
    (recorded,) = read_episodes(recorder.directory)
    assert recorded.trajectory.dropped == 0
    assert [step.call.arguments["text"] for step in recorded.trajectory.steps] == [str(n) for n in range(700)]


def test_of_an_episode_without_end_as_much_is_recorded_as_memory_allows(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first steps, its last ones, and how many are lost between them."""

    class Short(Dice):
        max_kept_bytes = 1 << 20

    monkeypatch.setattr(spilled, "MAX_SPILLED_BYTES", 2 << 20)
    env = Short()
    recorder.attach(env)
    env.reset(target=10**6)
    for number in range(60):
        env.call_tool("say", {"text": f"{number:6}" + "x" * 100_000})
    assert env.trajectory is not None
    kept = len(env.trajectory.steps)
    env.close()
    recorder.flush()
    (recorded,) = read_episodes(recorder.directory)
    numbers = [step.call.step for step in recorded.trajectory.steps]
    first = len(numbers) - kept
    assert 0 < kept < 11 and 0 < first < 21
    assert numbers == [*range(1, first + 1), *range(61 - kept, 61)]
    assert recorded.trajectory.dropped == 60 - len(numbers)


@pytest.mark.parametrize("keep", [10, 200])
def test_what_continues_an_episode_longer_than_its_environment_keeps_is_recorded_from_its_first_step(
    recorder: Recorder, keep: int
) -> None:
    class Short(Dice):
        max_kept_steps = keep

    env = Short()
    recorder.attach(env)
    env.reset(target=10**6, episode_id="first")
    for number in range(600):
        env.call_tool("say", {"text": str(number)})
    held = pickle.loads(pickle.dumps(env.snapshot()))
    other = env.fork()
    for number in range(600, 900):
        env.call_tool("say", {"text": "no"})
        other.call_tool("say", {"text": str(number)})
    other.close()
    env.reset(target=10**6, episode_id="between")
    env.restore(held)  # the episode itself is long over
    env.call_tool("say", {"text": "600"})
    env.close()
    recorder.flush()
    continued = [each.trajectory for each in read_episodes(recorder.directory) if each.trajectory.forked_from]
    found = {trajectory.steps[-1].call.step: trajectory for trajectory in continued}
    assert found.keys() == {900, 601}
    for length, trajectory in found.items():
        assert trajectory.dropped == 0
        assert [step.call.arguments["text"] for step in trajectory.steps] == [str(n) for n in range(length)]


@pytest.mark.smoke
def test_a_program_that_ends_without_closing_its_recorder_loses_nothing(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r}); from record_worlds import Dice, play; "
        f"from mcpenv.trajectories import Recorder; env = Dice(); Recorder({str(tmp_path)!r}).attach(env)\n"
        "for seed in range(50): play(env, seed)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, stderr=subprocess.DEVNULL)
    assert len(ids(tmp_path)) == 50


def test_a_recorder_keeps_no_environment_alive(recorder: Recorder) -> None:
    env = Dice()
    recorder.attach(env)
    env.reset()
    env.call_tool("roll")
    env.close()
    recorder.flush()
    gone = weakref.ref(env)
    del env
    gc.collect()
    assert gone() is None


# -- values without a JSON form


class Odd:
    def __repr__(self) -> str:
        return "odd"


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("value", "kept"),
    [(float("nan"), None), (Odd(), None), ("\ud800", "\\ud800"), (deep(500), None)],
    ids=["nan", "object", "surrogate", "deep"],
)
def test_an_odd_value_is_noted_and_the_rest_of_the_episode_is_recorded(
    recorder: Recorder, value: Any, kept: Any
) -> None:
    recorder.write(episode("odd", options={"fine": [1, {"b": b"\xff"}], "odd": value}, total_reward=1.5))
    recorder.write(episode("next"))
    recorder.flush()
    odd, after = read_episodes(recorder.directory)
    (lost,) = odd.extra["not_recorded"]
    assert lost["path"].startswith("trajectory.options.odd") and lost["why"]
    assert odd.trajectory.options["fine"] == [1, {"b": "_w=="}] and odd.trajectory.total_reward == 1.5
    if not isinstance(value, dict):
        assert odd.trajectory.options["odd"] == kept
    assert after.id == "next" and "not_recorded" not in after.extra


@pytest.mark.parametrize(("total", "kept"), [(math.inf, sys.float_info.max), (-math.inf, -sys.float_info.max)])
def test_an_infinite_return_is_recorded_as_the_largest_number(recorder: Recorder, total: float, kept: float) -> None:
    recorder.write(episode("rich", total_reward=total))
    recorder.flush()
    (rich,) = read_episodes(recorder.directory)
    assert rich.trajectory.total_reward == kept


@pytest.mark.parametrize("value", ["NaN", "to Infinity", deep(195)], ids=["nan", "infinity", "deep"])
def test_what_only_looks_odd_is_recorded_as_it_is(recorder: Recorder, value: Any) -> None:
    recorder.write(episode("fine", options={"value": value}))
    recorder.flush()
    (fine,) = read_episodes(recorder.directory)
    assert fine.trajectory.options == {"value": value} and fine.extra == {}


# -- files


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
NOT_FINITE = st.just(math.nan)
ARGUMENTS = st.dictionaries(st.text(), JSON | st.lists(NOT_FINITE, min_size=1) | NOT_FINITE, max_size=4)
LOGS = st.builds(LogEntry, st.text(), st.none() | st.text(), st.none() | st.floats(), st.none() | st.floats())
RESULTS = st.builds(
    ToolResult,
    content=st.lists(st.builds(lambda text: {"type": "text", "text": text}, st.text()), max_size=2),
    structured_content=st.none() | st.dictionaries(st.text(), JSON, max_size=2),
)
FAILURES = st.builds(ToolFailure, error_type=st.sampled_from(ToolErrorType), message=st.text())
OUTCOMES = st.builds(ToolOutcome, st.none() | RESULTS, st.none() | FAILURES, st.just(object())) | st.builds(
    ToolOutcome.returned, st.text() | st.integers(-(2**63), 2**63) | st.booleans(), st.just(0.5)
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
STEPS = st.builds(
    StepRecord,
    st.builds(ToolCall, st.text(), ARGUMENTS, st.integers(1), st.sampled_from(Plane), st.none() | st.text()),
    OUTCOMES,
    st.none() | st.builds(Reward, FINITE, st.just({"a": 1.0})),
    st.booleans(),
    st.booleans(),
    st.none() | st.text(),
    st.just(1.5),
    st.lists(LOGS, max_size=2),
    st.none() | st.text(),
)


@given(st.lists(STEPS, max_size=3))
def test_recorded_steps_are_read_as_they_were_but_for_what_is_noted(steps: list[StepRecord]) -> None:
    line = RecordedEpisode(Trajectory("e", steps=steps), RecordedEnvironment("E")).line()
    assert line.count(b"\n") == 1
    read = RecordedEpisode.from_line(line)
    assert read.line() == line
    if NOT_RECORDED not in read.extra:
        assert [step.to_plain() for step in read.trajectory.steps] == [step.to_plain() for step in steps]
    else:
        with pytest.raises(NotSerializable):
            to_plain([[step.call, step.logs] for step in steps])


NUMBERS = st.none() | st.integers()
OPTIONS = st.dictionaries(st.text(), JSON | NOT_FINITE | st.just((1, 2)) | st.just(b"a"), max_size=3)
REWARDS = st.none() | st.builds(Reward, FINITE, st.just({"part": 0.5}))
TASKS = st.builds(
    Task,
    id=st.just("one"),
    prompt=st.text(),
    options=OPTIONS,
    seed=NUMBERS,
    limits=st.builds(TaskLimits, max_steps=st.none() | st.integers(1, 9), timeout_s=st.none() | st.just(0.5)),
    metadata=OPTIONS,
    oracle=st.none() | st.lists(st.builds(OracleCall, tool_name=st.just("say"), arguments=OPTIONS), max_size=2),
    verifier=st.none() | OPTIONS,
    reward_range=st.just((-1, 2.5)),
    level=st.none() | st.integers(1, 5),
    family=st.none() | st.just("sums"),
    tags=st.lists(st.sampled_from(["carry", "long"]), max_size=2, unique=True),
)


@given(
    st.builds(
        RecordedEpisode,
        st.builds(
            Trajectory, st.text(), NUMBERS, OPTIONS, st.booleans(), st.just([]), st.integers(0), st.floats(),
            st.booleans(), st.booleans(), st.none() | st.text(), st.just(1.5), st.none() | st.just(2.5),
            st.none() | TASKS, st.none() | st.dictionaries(st.text(), SCALARS, max_size=2), REWARDS, REWARDS,
            st.none() | st.text(), st.none() | st.just(Fork("other", 3)),
        ),
        st.builds(RecordedEnvironment, st.text(), st.none() | st.text(), st.none() | st.just({"licence": "MIT"})),
        tools=st.none() | st.text(),
        messages=st.none() | st.lists(OPTIONS, max_size=2),
        agent=st.none() | OPTIONS,
        extra=OPTIONS,
    )
)  # fmt: skip
def test_any_episode_is_read_as_it_was_written(episode: RecordedEpisode) -> None:
    line = episode.line()
    assert line.count(b"\n") == 1
    read = RecordedEpisode.from_line(line)
    assert json.loads(read.line()) == json.loads(line)
    total = episode.trajectory.total_reward
    expected = 0.0 if math.isnan(total) else max(-sys.float_info.max, min(sys.float_info.max, total))
    assert read.trajectory.total_reward == expected


@pydantic_dataclass
class Login:
    user: str
    token: str = Field(default="secret", exclude=True)


class Point(BaseModel):
    x: int = Field(serialization_alias="across")


@pytest.mark.parametrize(
    ("odd", "recorded"),
    [
        (Login("ann"), {"user": "ann"}),
        (Point(x=1), {"x": 1}),
        (datetime(2026, 1, 2, 12, tzinfo=UTC), "2026-01-02T12:00:00Z"),
        (Plane.AGENT, "agent"),
        ((1, 2), [1, 2]),
        ({3: 4}, {"3": 4}),
        (b"a", "YQ=="),
    ],
    ids=repr,
)
def test_what_a_program_keeps_beside_an_episode_is_recorded_in_its_json_form(odd: Any, recorded: Any) -> None:
    there = {"odd": [odd]}
    task = Task(id="a", options=there, metadata=there, verifier=there)
    trajectory = Trajectory("e", options=there, task=task, observation=there)
    written = json.loads(
        RecordedEpisode(trajectory, RecordedEnvironment("E"), messages=[there], agent=there, extra=there).line()
    )
    plain_task = written["trajectory"]["task"]
    for place in (
        written["trajectory"]["options"], written["trajectory"]["observation"], written["messages"][0],
        written["agent"], written["extra"], plain_task["options"], plain_task["metadata"], plain_task["verifier"],
    ):  # fmt: skip
        assert place == {"odd": [recorded]}


# -- records of earlier versions


def as_before(line: bytes) -> Any:
    """The content of an episode's line without what was not written before, such as statuses and times of scoring."""
    content = json.loads(line)
    assert content.pop("model_turns") is content["environment"].pop("tasks") is None
    assert content["trajectory"].pop("end_scoring_s") == 0.0
    assert [content["trajectory"].pop(name) for name in ("problems", "changes", "evidence")] == [[], [], []]
    for each in (content["trajectory"], *content["trajectory"]["steps"]):
        del each["status"]
    for step in content["trajectory"]["steps"]:
        assert step.pop("scoring_s") == 0.0
    return content


@pytest.mark.parametrize("name", ["in_process", "served", "odd"])
def test_a_record_of_an_earlier_version_is_read_and_written_with_the_same_content(name: str) -> None:
    (segment,) = segments(RECORDS / name)
    lines = gzip.decompress(segment.read_bytes()).splitlines()
    assert [as_before(each.line()) for each in read_episodes(RECORDS / name)] == list(map(json.loads, lines))
    for each in read_episodes(RECORDS / name):
        tools = ToolLists(RECORDS / name).read(each.tools)
        assert [tool.name for tool in tools] == ["roll", "say", "picture", "refuse", "crash"]


@pytest.mark.parametrize("name", ["in_process", "served", "odd"])
def test_the_statuses_of_a_record_of_an_earlier_version_follow_from_what_it_says(name: str) -> None:
    for episode in read_episodes(RECORDS / name):
        trajectory = episode.trajectory
        expected = {"terminated": StatusCode.COMPLETED, "truncated": StatusCode.TRUNCATED}
        assert trajectory.status is not None
        assert trajectory.status.code is expected.get(episode.ending, StatusCode.CANCELLED)
        for step in trajectory.steps:
            failed = step.outcome.error is not None
            assert step.status.code is (StatusCode.AGENT_ERROR if failed else StatusCode.COMPLETED)


def test_what_was_odd_in_a_record_of_an_earlier_version_is_as_it_was() -> None:
    (odd,) = read_episodes(RECORDS / "odd")
    assert (odd.id, odd.ending, odd.trajectory.options) == ("odd", "reset", {"odd": [None, "Ynl0ZXM=", {"1": [2, 3]}]})
    assert [note["path"] for note in odd.extra[NOT_RECORDED]] == ["trajectory.options.odd[0]"]
    assert odd.trajectory.steps[1].call.arguments["more"] == [1.5, -0.0, 2**70, None, True, {"é": "\u2028"}]


def test_a_torn_tail_is_an_absent_episode_wherever_it_is_torn(tmp_path: Path) -> None:
    with Recorder(tmp_path / "whole") as recorder:
        for name in ("one", "two", "three"):
            recorder.write(episode(name))
            recorder.flush()  # those that wait together are torn together
    (whole,) = segments(tmp_path / "whole")
    data = whole.read_bytes()
    ends = [0, *(offset for offset in range(1, len(data)) if data[offset:].startswith(b"\x1f\x8b\x08")), len(data)]
    assert len(ends) == 4
    torn = tmp_path / "episodes-torn.jsonl.gz"
    for size in range(len(data)):
        torn.write_bytes(data[:size])
        told: list[TornTail] = []
        found = [each.id for each in read_episodes(torn, on_torn=told.append)]
        complete = max(number for number, end in enumerate(ends) if end <= size)
        assert found == ["one", "two", "three"][:complete]
        assert told == ([] if size in ends else [TornTail(torn, ends[complete], size - ends[complete])])
        assert [each.id for each in read_episodes(torn)] == found


def test_damage_before_the_end_is_named_and_nothing_is_made_up(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        for name in ("one", "two", "three"):
            recorder.write(episode(name, options={"long": "x" * 1000}))
    (whole,) = segments(tmp_path)
    data = bytearray(whole.read_bytes())
    data[len(data) // 2] ^= 0xFF
    whole.write_bytes(data)
    found: list[str] = []
    with pytest.raises(DamagedRecord, match=rf"{whole}, byte \d+: "):
        found.extend(each.id for each in read_episodes(tmp_path))
    whole.with_name("episodes-2.jsonl").write_text('{"format": 1}\n')
    with pytest.raises(DamagedRecord, match="line 1: trajectory: Field required"):
        list(read_episodes(whole.with_name("episodes-2.jsonl")))
    line = episode("new").line().replace(b'"format":1', b'"format":2')
    whole.with_name("episodes-2.jsonl").write_bytes(line)
    with pytest.raises(DamagedRecord, match="format 2; this version of mcpenv reads 1"):
        list(read_episodes(whole.with_name("episodes-2.jsonl")))


def test_a_record_is_read_while_it_is_written(recorder: Recorder) -> None:
    for number in range(20):
        recorder.write(episode(str(number)))
        recorder.flush()
        assert ids(recorder.directory) == [str(before) for before in range(number + 1)]


@pytest.mark.smoke
def test_a_segment_is_text_for_gzip_and_one_episode_a_line(recorder: Recorder) -> None:
    for number in range(3):
        recorder.write(episode(str(number)))
    recorder.flush()
    (segment,) = segments(recorder.directory)
    text = subprocess.run(["gzip", "-dc", str(segment)], capture_output=True, check=True).stdout
    assert [RecordedEpisode.from_line(line).id for line in text.splitlines()] == ["0", "1", "2"]
    (segment.parent / "episodes-text.jsonl").write_bytes(text)
    assert ids(segment.parent / "episodes-text.jsonl") == ["0", "1", "2"]


def test_a_new_segment_begins_when_one_is_full(tmp_path: Path) -> None:
    with Recorder(tmp_path, max_segment_bytes=1000) as recorder:
        for number in range(60):
            recorder.write(episode(str(number)))
    assert len(segments(tmp_path)) > 3 and all(each.stat().st_size < 2000 for each in segments(tmp_path))
    assert ids(tmp_path) == [str(number) for number in range(60)]


def test_a_full_segment_that_cannot_be_closed_takes_no_others_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, closed = Segment.close, list[int]()

    def fails_once(segment: Segment) -> None:
        close(segment)
        closed.append(1)
        if len(closed) == 1:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(Segment, "close", fails_once)
    with Recorder(tmp_path, max_segment_bytes=1000) as recorder:
        for number in range(20):
            recorder.write(episode(str(number)))
            recorder.flush()
        assert recorder.counts.lost == 1  # what would have come behind the one that was closed
    assert len(ids(tmp_path)) == 19


def test_episodes_for_a_folder_that_is_gone_are_lost_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "record"
    with Recorder(folder) as recorder:
        recorder.write(episode("before"))
        recorder.flush()
        shutil.rmtree(folder)
        for name in ("one", "two"):  # the open file still takes what is written
            recorder.write(episode(name))
            recorder.flush()
        assert (recorder.counts.written, recorder.counts.lost) == (1, 2) and "No such file" in caplog.text
        folder.mkdir()
        recorder.write(episode("after"))
        recorder.flush()
        (segment,) = segments(folder)
        segment.rename(folder / "elsewhere")
        segment.touch()
        recorder.write(episode("elsewhere"))
    assert (recorder.counts.written, recorder.counts.lost) == (2, 3)


def test_a_member_that_grows_without_limit_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpenv.trajectories.segments.MAX_MEMBER_BYTES", 100_000)
    (tmp_path / "episodes-bomb.jsonl.gz").write_bytes(gzip.compress(b" " * 10_000_000))
    with pytest.raises(DamagedRecord, match="an episode there has more than 0 MiB"):
        list(read_episodes(tmp_path))


def test_a_pipe_is_no_segment(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "episodes-pipe.jsonl.gz")
    with Recorder(tmp_path) as recorder:
        recorder.write(episode("whole"))
    assert ids(tmp_path) == ["whole"]


@pytest.mark.slow
def test_several_processes_write_to_one_folder(tmp_path: Path) -> None:
    program = (
        "import sys; from mcpenv import Trajectory; from mcpenv.trajectories import *\n"
        "with Recorder(sys.argv[1]) as recorder:\n"
        "    for number in range(100):\n"
        "        episode = RecordedEpisode(Trajectory(f'{sys.argv[2]}-{number}'), RecordedEnvironment('E'))\n"
        "        episode.tools = recorder.tools.keep([])\n"
        "        recorder.write(episode)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert sorted(ids(tmp_path)) == sorted(f"{name}-{number}" for name in "ab" for number in range(100))


@pytest.mark.smoke
def test_a_forked_process_writes_to_segments_of_its_own(tmp_path: Path) -> None:
    program = (
        "import os, sys; from mcpenv import Trajectory; from mcpenv.trajectories import *\n"
        "recorder = Recorder(sys.argv[1]); sink = recorder.sink_for('E', None, lambda: None)\n"
        "sink.episode_over(Trajectory('before'))\n"
        "child = os.fork()\n"
        "for number in range(3):\n"
        '    sink.episode_over(Trajectory(f\'{"child" if child == 0 else "parent"} {number}\'))\n'
        "recorder.flush()\n"
        "if child == 0: os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0; recorder.close()"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    whose = [sorted(each.id for each in read_episodes(segment)) for segment in segments(tmp_path)]
    assert sorted(whose) == [["before", "parent 0", "parent 1", "parent 2"], ["child 0", "child 1", "child 2"]]


# -- when things go wrong


@pytest.mark.slow
def test_episodes_are_whole_or_absent_after_a_kill_and_recording_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    kill_in_the_middle(tmp_path, times=2, episodes=15)


SIGNALLED = """
import signal, sys, threading, time
sys.path.insert(0, sys.argv[2])
from record_worlds import Dice, play
from mcpenv.trajectories import Recorder, segments
recorder, append = Recorder(sys.argv[1]), segments.Segment.append

def interrupted(segment, member):
    segments.Segment.append = append
    time.sleep(0.05)  # until the program waits
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
    append(segment, member)

def handler(*_):
    for action in sys.argv[3].split():
        if action == "play":
            play(other, 7)
            other.reset()
        else:
            getattr(recorder, action)()
    print("handled", flush=True)

signal.signal(signal.SIGTERM, handler)
env, other = Dice(), Dice()
recorder.attach(env)
recorder.attach(other)
segments.Segment.append = interrupted
play(env, 0)
env.reset(episode_id="next")
recorder.flush()
print(env.trajectory.episode_id, recorder.counts.lost)
"""


def test_a_signal_while_the_writer_s_thread_begins_begins_no_other(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        start, begun = threading.Thread.start, list[threading.Thread]()

        def interrupted(thread: threading.Thread) -> None:
            begun.append(thread)
            if len(begun) == 1:
                recorder.write(episode("of the handler"))
            start(thread)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            recorder.write(episode("of the program"))
        recorder.flush()
    assert len(begun) == 1 and sorted(ids(tmp_path)) == ["of the handler", "of the program"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("actions", "lost", "kept"), [("close", 0, 1), ("flush close", 0, 1), ("play close", 0, 2), ("close play", 1, 1)]
)
def test_a_signal_handler_may_record_and_close_while_an_episode_is_being_written(
    tmp_path: Path, actions: str, lost: int, kept: int
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(tmp_path), str(TESTS), actions],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout.split() == ["handled", "next", str(lost)]
    assert len(ids(tmp_path)) == kept


FULL_DISK = """
import logging, resource, signal, sys
sys.path.insert(0, sys.argv[2])
from record_worlds import Dice, play
from mcpenv.trajectories import Recorder
logging.basicConfig(format="%(message)s", level=logging.WARNING)
logging.getLogger("mcpenv").addFilter(lambda record: "recording" in record.getMessage())
env = Dice()
recorder = Recorder(sys.argv[1])
recorder.attach(env)
play(env, 0)
recorder.flush()
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, unlimited[1]))
for seed in range(1, 6):
    play(env, seed)
recorder.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
for seed in range(6, 9):
    play(env, seed)
env.reset()
recorder.flush()
print(recorder.counts.written, recorder.counts.lost, recorder.counts.waiting)
"""


@pytest.mark.process
def test_a_disk_that_takes_no_more_fails_no_step_and_is_said_once(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), str(TESTS)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    written, lost, waiting = map(int, ran.stdout.split())
    assert written + lost == 9 and lost >= 3 and waiting == 0
    said = [line.split(" fails, ")[1] for line in ran.stderr.splitlines()]
    assert said[0].startswith("1 episodes lost so far: ") and len(said) < lost
    causes = [each.split(": ", 1)[1] for each in said]
    assert "No space left on device" in causes and len(set(causes)) == len(causes)
    assert len(ids(tmp_path)) == written


def test_a_disk_that_does_not_answer_holds_up_no_server_and_what_is_too_much_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tmp_path, max_segment_bytes=10**6, max_waiting=2)
    answers, asked = threading.Event(), threading.Event()

    def stuck() -> bytes:
        asked.set()
        assert answers.wait(60)
        return episode("stuck").line()

    first = Job(stuck)
    writer.put(first, wait=False)
    assert asked.wait(60)
    waiting = [Job(episode(name).line) for name in ("one", "two", "three", "four")]
    with caplog.at_level(logging.ERROR, "mcpenv"):
        for job in waiting:
            writer.put(job, wait=False)
    assert [job.over for job in waiting] == [False, False, True, True]
    assert (writer.counts.lost, writer.counts.waiting) == (2, 3)
    assert len(caplog.records) == 1 and "2 episodes wait to be written" in caplog.text
    # In process, whoever ends an episode waits instead.
    patient = Job(episode("patient").line)
    thread = threading.Thread(target=writer.put, args=(patient,), kwargs={"wait": True})
    thread.start()
    assert not patient.over
    answers.set()
    thread.join(60)
    writer.close()
    assert ids(tmp_path) == ["stuck", "one", "two", "patient"]


def test_a_reset_goes_on_when_the_disk_has_not_answered_for_as_long_as_it_may(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()

    def held_up() -> None:
        assert answers.wait(60)

    with Recorder(tmp_path, patience_s=0.05) as recorder:
        recorder.write(episode("first"))
        recorder.writer.put(Job(held_up), wait=True)
        sink = recorder.sink_for("Dice", "1", lambda: None)
        sink.episode_over(Trajectory("late"))
        with caplog.at_level(logging.ERROR, "mcpenv"):
            asyncio.run(sink.written("late"))
        assert "not written after 0.05 s" in caplog.text
        answers.set()
        asyncio.run(sink.written("late"))
        assert ids(tmp_path) == ["first", "late"]


def test_metadata_says_what_became_of_the_episodes(tmp_path: Path) -> None:
    with serving(Dice, ServerConfig(record=tmp_path)) as url, EnvClient(url).sync() as client:
        client.reset()
        client.reset()
        assert client.metadata()["recording"] == {
            "episodes_written": 1,
            "episodes_lost": 0,
            "episodes_waiting": 0,
        }
    with serving(Dice) as url, EnvClient(url).sync() as client:
        assert "recording" not in client.metadata()


def test_a_server_without_episodes_refuses_to_record(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no episodes in production mode"):
        with serving(Dice, ServerConfig(mode=Mode.PRODUCTION, record=tmp_path)):
            pass


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--mode", "production"), "no episodes to record in production mode"),
        pytest.param(
            ("--transport", "stdio"), "no episodes to record over stdio", marks=pytest.mark.extension("stdio")
        ),
        ((), "cannot record to "),
    ],
    ids=["production", "stdio", "no-folder"],
)
def test_mcpenv_run_refuses_what_cannot_be_recorded(
    tmp_path: Path,
    options: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    command = ["run", str(TESTS / "record_worlds.py:Dice"), "--port", "0", *options]
    with command_lines(tmp_path, monkeypatch, capfd) as cli:
        done = cli(*command, "--record", str(tmp_path / "file" / "record"))
    assert done.status == 2 and said in done.err


def test_nothing_is_recorded_of_sessions_without_an_orchestrator(tmp_path: Path) -> None:
    async def agent(url: str) -> None:
        async with Client(f"{url}/mcp") as client:
            await client.call_tool("say", {"text": "hi"})

    with serving(Dice, ServerConfig(record=tmp_path)) as url:
        asyncio.run(agent(url))
    assert ids(tmp_path) == []
