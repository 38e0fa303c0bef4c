"""`mcpenv branch` and `mcpenv trajectories pivot`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from durable_worlds import Counted
from record_worlds import Dice, play

from mcpenv.cli import execute
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder, read_episodes
from mcpenv_client.types.records import Fork, Reward, StepRecord, ToolCall, ToolOutcome, Trajectory

WORLDS = Path(__file__).parents[2] / "record_worlds.py"
DURABLE = WORLDS.with_name("durable_worlds.py")

POLICY = """
async def rolls(episode):
    for _ in range(episode.assignment.sample + 1):
        if not episode.done:
            await episode.call_tool("roll", {"times": 1})
    return None


number = 3
"""

LONG = "right" * 20

STUCK = """
import threading

from record_worlds import Dice


class Stuck(Dice):
    EXPOSED_NAME = "Dice"

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
"""


@pytest.fixture
def record(tmp_path: Path) -> Path:
    folder = tmp_path / "record"
    with Recorder(folder) as recorder, Dice() as env:
        recorder.attach(env)
        env.reset(seed=3, sides=8, target=30, episode_id="parent")
        for _ in range(4):
            env.call_tool("roll")
        env.end()
        recorder.flush()
        play(env, 4)
    (tmp_path / "policies.py").write_text(POLICY)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, dict[str, Any], str]:
    status = execute([*map(str, arguments), "--json"])
    said = capsys.readouterr()
    return status, json.loads(said.out) if said.out.strip() else {}, said.err


@pytest.mark.parametrize("target", ["Dice", "Stuck"])
def test_a_policy_plays_branches_which_are_recorded(
    record: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record.parent
    (folder / "stuck.py").write_text(STUCK)  # it cannot be saved, so that the calls run for each branch
    where = f"{WORLDS}:Dice" if target == "Dice" else f"{folder / 'stuck.py'}:Stuck"
    status, document, said = run(
        capsys, "branch", record, "parent", "--at", 2, "--target", where, "-n", 3,
        "--policy", f"{folder / 'policies.py'}:rolls", "--out", folder / "tree",
    )  # fmt: skip
    assert (status, said) == (0, "") and (document["parent"], document["step"]) == ("parent", 2)
    assert [each["steps"] for each in document["branches"]] == [1, 2, 3]
    assert [each["return"] for each in document["branches"]] == [1.5, 2.0, 2.5]
    assert sum(each["advantage"] for each in document["branches"]) == pytest.approx(0.0)
    written = list(read_episodes(folder / "tree"))
    assert [each.trajectory.forked_from for each in written] == [Fork("parent", 2)] * 3
    assert {each.id for each in written} == {each["id"] for each in document["branches"]}
    texts = [[step.outcome.result.text for step in each.trajectory.steps if step.outcome.result] for each in written]
    assert texts[0] == texts[1][:3] and texts[1] == texts[2][:4]


def test_a_policy_that_raises_is_named_with_its_line(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = record.parent / "policies.py"
    policies.write_text("def raises(episode):\n    episode.jump()\n")
    where, out = f"{WORLDS}:Dice", record.parent / "tree"
    arguments = ("--target", where, "--policy", f"{policies}:raises", "--out", out)
    status, document, _ = run(capsys, "branch", record, "parent", "--at", 2, *arguments)
    assert status == 2 and "policies.py:raises raised AttributeError: " in str(document)
    assert "policies.py:2)" in str(document) and "Traceback" not in str(document) and not out.exists()


def test_a_person_plays_one_branch(
    record: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("roll times=2\nend\n"))
    tree = record.parent / "tree"
    arguments = ("branch", record, "par", "--at", 1, "--target", f"{WORLDS}:Dice", "--out", tree)
    status, document, said = run(capsys, *arguments)
    assert status == 0 and document["calls"][0]["tool_name"] == "roll" and document["return"] == 1.0
    assert "1. roll" in said and "Reach 30 with dice of 8 sides." in said
    (episode,) = read_episodes(tree)
    assert episode.id == document["id"] and episode.trajectory.forked_from == Fork("parent", 1)


@pytest.mark.parametrize("policy", [True, False])
def test_a_changed_environment_is_refused_with_status_1(
    record: Path, policy: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = record.parent / "tree"
    more = ("--policy", f"{record.parent / 'policies.py'}:rolls", "-n", "2") if policy else ()
    target = ("--target", f"{WORLDS}:Dice", "--set", "loaded=true")
    status, document, said = run(capsys, "branch", record, "parent", "--at", 3, *target, "--out", tree, *more)
    assert status == 1 and said.splitlines()[-1].startswith("error: the episode parent cannot be opened")
    assert "differs in result.content[0].text: recorded" in said and document["error"] in said
    assert document["difference"]["type"] == "differs" and document["difference"]["replayed"] == "8"
    assert not tree.exists()


def test_calls_to_the_outside_that_are_made_again_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTED", str(tmp_path / "counted"))
    with Recorder(tmp_path / "record") as recorder, Counted() as env:
        recorder.attach(env)
        env.reset(episode_id="counts")
        for name in "abc":
            env.call_tool("count", {"name": name})
        env.end()
    (tmp_path / "policies.py").write_text("async def rests(episode):\n    return None\n")
    more = ("--target", f"{DURABLE}:Counted", "--policy", f"{tmp_path / 'policies.py'}:rests")
    status, _, said = run(capsys, "branch", tmp_path / "record", "counts", "--at", 2, *more)
    assert (status, (tmp_path / "counted").read_text()) == (0, "a\nb\nc\na\nb\n")
    assert "made again, though they act on the outside: count (2 calls)" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing", "--at", "1"), "there is no episode with the id 'nothing'"),
        (("", "--at", "1"), "there is 2 episodes with the id ''"),
        (("parent", "--at", "9"), "--at 9: the episode parent has 4 steps, and so no step 9"),
        (("parent", "--at", "1", "-n", "2"), "more than one need --policy"),
        (("parent", "--at", "1", "--policy", "POLICIES:number"), "it is a int, no function of an episode"),
    ],
)
def test_what_cannot_be_asked_is_named(
    record: Path, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [each.replace("POLICIES", str(record.parent / "policies.py")) for each in arguments]
    assert execute(["branch", str(record), *given, "--target", f"{WORLDS}:Dice"]) == 2
    assert said in capsys.readouterr().err


def branched(name: str, origin: Fork | None, calls: list[str], worth: float | None) -> RecordedEpisode:
    steps = [StepRecord(ToolCall(call, {}, at), ToolOutcome.returned("so", 0.1)) for at, call in enumerate(calls, 1)]
    if worth is not None:
        steps[-1].reward = Reward(worth)
    about: dict[str, Any] = {"total_reward": worth or 0.0, "terminated": True, "forked_from": origin}
    return RecordedEpisode(Trajectory(name, steps=steps, **about), RecordedEnvironment("w"))


def test_the_step_whose_branches_end_differently_most_is_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.write(branched("parent", None, ["look", "open", "take"], 0.5))
        for at, ends in ((1, (0.5, 0.5)), (2, (0.0, 1.0, 1.0)), (3, (1.0,))):
            for number, worth in enumerate(ends):
                calls = [*["look", "open", "take"][:at], "left" if worth < 1 else LONG]
                recorder.write(branched(f"{at}-{number}", Fork("parent", at), calls, worth))
        recorder.write(branched("unscored", Fork("parent", 1), ["look", "fall"], None))
        recorder.write(branched("reset", Fork("parent", 0), ["fall"], -9.0))
    status, document, _ = run(capsys, "trajectories", "pivot", tmp_path)
    first, second = document["pivots"]
    assert status == 0 and document["points"] == 2
    assert (first["step"], first["branches"], first["worst_call"], first["best_call"]) == (2, 3, "left()", f"{LONG}()")
    assert first["deviation"] == pytest.approx(0.4714, abs=1e-4) and first["mean"] == pytest.approx(2 / 3)
    assert (first["parent"], first["parent_call"]) == (0.5, "take()")
    assert (second["step"], second["deviation"]) == (1, 0.0)
    assert execute(["trajectories", "pivot", str(tmp_path), "--limit", "1"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2 and shown[1].split()[:4] == ["parent", "2", "3", "0.4714"]
    assert shown[1].endswith(f"{LONG[:39]}…")


def test_the_branches_of_a_step_are_a_condition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.write(branched("parent", None, ["look", "open"], 0.5))
        for name, at in (("one", 1), ("two", 1), ("other", 2)):
            recorder.write(branched(name, Fork("parent", at), ["look", "open", "take"], 1.0))
    for condition, names in (('parent = "parent" and parent_step = 1', {"one", "two"}), ("parent = none", {"parent"})):
        assert execute(["trajectories", "list", str(tmp_path), "--where", condition, "--json"]) == 0
        assert {json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()} == names


def test_a_record_without_branches_has_no_pivot(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["trajectories", "pivot", str(record)]) == 2
    assert "no step with two scored branches; mcpenv branch makes some" in capsys.readouterr().err
