"""Checks of a record: each fault is named once, and sound episodes have none."""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, command_lines
from evaluate_endpoint import scripted_endpoint
from evaluate_world import Counting

from mcpenv import ConfigurationError, MCPEnvironment, Observation
from mcpenv.extensions.evaluation import ModelAgent, evaluate
from mcpenv.extensions.records.check import Check, check_record
from mcpenv.extensions.records.finding import Kind
from mcpenv.tasks import TaskSet
from mcpenv.trajectories import RecordedEnvironment, RecordedEpisode, Recorder, read_episodes
from mcpenv.trajectories.episode import EVALUATED
from mcpenv_client import Task, Trajectory
from mcpenv_client.types.records import Fork, Reward, StepRecord, ToolCall, ToolOutcome
from mcpenv_client.types.status import Stage, Status, StatusCode
from mcpenv_client.types.tools import ToolErrorType, ToolFailure, ToolResult

RECORDS = Path(__file__).parents[2] / "data" / "records"
TASK = Task(id="one", split="train")
START = 1_700_000_000.0


def step(number: int, *, at: float = START, reward: float | None = None, **outcome: Any) -> StepRecord:
    of = ToolOutcome(**outcome) if outcome else ToolOutcome(result=ToolResult(content=[{"type": "text", "text": "1"}]))
    given = None if reward is None else Reward(reward)
    return StepRecord(ToolCall("add", {"by": 1}, number), of, given, started_at=at)


def episode(
    name: str, steps: int | list[StepRecord] = 2, *, at: float | None = None, extra: Any = None, **fields: Any
) -> RecordedEpisode:
    """Return a sound episode, at a time of its own."""
    rng = random.Random(name)
    start = START + rng.uniform(0, 1e6) if at is None else at
    usual: dict[str, Any] = {
        "started_at": start,
        "ended_at": start + 1.0,
        "terminated": True,
        "task": TASK,
        "seed": rng.getrandbits(32),
        "steps": [step(number, at=start + number / 8) for number in range(1, steps + 1)]
        if isinstance(steps, int)
        else steps,
    }
    return RecordedEpisode(Trajectory(name, **(usual | fields)), RecordedEnvironment("World", "1"), extra=extra or {})


Checked = Callable[..., Check]


@pytest.fixture
def checked(tmp_path: Path) -> Checked:
    """Write episodes to a record, and check it."""

    def write(*episodes: RecordedEpisode) -> Check:
        with Recorder(tmp_path / "record") as recorder:
            for each in episodes:
                recorder.write(each)
        return check_record(tmp_path / "record")

    return write


def found(check: Check) -> list[tuple[str, str, str]]:
    return [(finding.kind.value, finding.subject, finding.text) for finding in check.findings]


# -- sound records


@pytest.mark.parametrize("name", ["in_process", "served"])
def test_records_of_an_earlier_version_are_sound(name: str) -> None:
    assert check_record(RECORDS / name).findings == []


def test_real_episodes_with_rewards_of_reset_steps_and_end_are_sound(tmp_path: Path) -> None:
    class Paying(MCPEnvironment):
        """Pay at the reset, for steps, and at the end."""

        tasks = TaskSet([Task(id="pay", reward_range=(0.0, 2.0))])

        def __init__(self) -> None:
            @self.tool
            def work() -> str:
                return "done"

        def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
            return Observation(reward=0.25)

        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            return 0.1

        def verify(self, evidence: Any) -> float:
            return 1.0

    env: Any = Paying()
    with Recorder(tmp_path) as recorder:
        recorder.attach(env)
        for _ in range(3):
            env.reset(task="pay")
            env.call_tool("work")
            assert env.trajectory is not None and env.trajectory.total_reward == pytest.approx(0.35)
            env.end()
    check = check_record(tmp_path)
    assert (check.episodes, check.tasks, found(check)) == (3, 1, [])


def test_real_forks_and_restored_episodes_are_sound(tmp_path: Path) -> None:
    env: Any = Counting()
    with Recorder(tmp_path) as recorder:
        recorder.attach(env)
        env.reset(task="solve")
        env.call_tool("add")
        before = env.snapshot()
        for _ in range(3):
            env.call_tool("add")
            env.end()
            env.restore(before)
        env.close()
    forks = [each.trajectory.forked_from for each in read_episodes(tmp_path)]
    assert sum(fork is not None for fork in forks) == 3
    assert found(check_record(tmp_path)) == []


def test_an_empty_record_and_a_folder_without_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    with pytest.raises(ConfigurationError, match="there is no episode to check"):
        check_record(tmp_path / "record")
    with pytest.raises(ConfigurationError, match="there is no such record"):
        check_record(tmp_path / "nowhere")


# -- duplicates


def test_an_episode_that_is_there_twice_is_a_duplicate_and_its_other_faults_are_found_once(checked: Checked) -> None:
    check = checked(episode("a", 0), episode("b"), episode("a", 0), episode("a", 0))
    assert [(kind, subject, text.partition(" (")[0]) for kind, subject, text in found(check)] == [
        ("duplicate", "a", "3 times in the record"),
        ("no_calls", "a", "no call before its end"),
    ]
    assert check.episodes == 4


def test_a_copy_under_another_id_is_a_duplicate_and_names_both_files(tmp_path: Path) -> None:
    for name, number in (("a", 1), ("copy", 2)):
        again = dataclasses.replace(episode("a").trajectory, episode_id=name)
        recorded = dataclasses.replace(episode("a"), trajectory=again)
        (tmp_path / f"episodes-{number}.jsonl").write_bytes(recorded.line())
    (finding,) = check_record(tmp_path).findings
    assert (finding.kind, finding.episodes, finding.task) == (Kind.DUPLICATE, ["a", "copy"], "train/one")
    assert finding.text == "2 times in the record, copied as copy (episodes-1.jsonl, episodes-2.jsonl)"


def test_episodes_that_agree_but_were_played_separately_are_counted_and_no_finding(checked: Checked) -> None:
    check = checked(*(episode(name, seed=4) for name in "abc"), episode("d", seed=5), episode("e", 3, seed=4))
    assert (check.repeated, check.findings) == (2, [])


def test_forks_that_end_where_they_began_are_no_duplicates(checked: Checked) -> None:
    forks = [
        episode(name, at=START, ended_at=START + number, forked_from=Fork("a", 2))
        for number, name in enumerate(("b", "c"), 2)
    ]
    assert checked(episode("a", at=START), *forks).findings == []


def test_episodes_without_times_are_duplicates_only_by_id(checked: Checked) -> None:
    check = checked(*(episode(name, at=0.0, ended_at=None) for name in "ab"))
    assert check.findings == []


# -- calls


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ({"error": ToolFailure(error_type=ToolErrorType.TIMEOUT, message="late")}, "timeout"),
        ({"result": ToolResult(content=[], is_error=True)}, "is_error"),
    ],
)
def test_an_episode_that_ends_on_a_failed_call_is_found(checked: Checked, outcome: dict[str, Any], said: str) -> None:
    check = checked(
        episode("ends", steps=[step(1), step(2, **outcome)]), episode("goes-on", steps=[step(1, **outcome), step(2)])
    )
    assert found(check) == [("failed_last_call", "ends", f"step 2, add: {said}; then terminated")]


# -- statuses

ENV_ERROR = Status(StatusCode.ENV_ERROR, Stage.RESET, True)
JUDGE_ERROR = Status(StatusCode.JUDGE_ERROR, Stage.VERIFY)


def test_a_task_of_which_every_episode_is_an_error_of_the_environment_or_judge_is_found(checked: Checked) -> None:
    def of(task: str, name: str, status: Status | None = None) -> RecordedEpisode:
        return episode(name, task=Task(id=task, split="train"), status=status)

    check = checked(
        of("always", "a", ENV_ERROR),
        of("always", "b", ENV_ERROR),
        of("always", "c", JUDGE_ERROR),
        of("sometimes", "d", ENV_ERROR),
        of("sometimes", "e"),
        of("once", "f", JUDGE_ERROR),
        of("lost", "g", Status(StatusCode.TRANSPORT_LOST)),
    )
    assert found(check) == [
        ("always_fails", "train/always", "all 3 episodes ended by env_error in its reset"),
        ("always_fails", "train/once", "its only episode ended by judge_error in its verify"),
    ]
    assert check.findings[0].episodes == ["a", "b", "c"] and check.tasks == 4


def test_an_environment_without_tasks_that_always_fails_is_found_by_its_name(checked: Checked) -> None:
    check = checked(*(episode(name, task=None, status=ENV_ERROR) for name in "ab"))
    assert found(check) == [("always_fails", "World", "all 2 episodes ended by env_error in its reset")]


# -- rewards


@pytest.mark.parametrize(
    ("reward_range", "verified", "total", "text"),
    [
        ((0.0, 1.0), None, 1.0, None),
        ((0.0, 1.0), None, 1.0 + 1e-12, None),
        ((0.0, 1.0), None, 1.5, "return 1.5; reward_range is 0 to 1"),
        ((0.0, 1.0), None, -0.5, "return -0.5; reward_range is 0 to 1"),
        ((-1.0, 0.0), None, -0.5, None),
        # With a verifier, the return may be any number.
        ((0.0, 1.0), 1.0, 1.5, None),
        ((0.0, 1.0), 2.0, 1.0, "verified value 2; reward_range is 0 to 1"),
    ],
)
def test_a_reward_is_held_against_the_range_of_its_task(
    checked: Checked, reward_range: tuple[float, float], verified: float | None, total: float, text: str | None
) -> None:
    task = Task(id="one", reward_range=reward_range)
    end = None if verified is None else Reward(verified)
    check = checked(
        episode("a", steps=[step(1, reward=total)], total_reward=total, task=task, verified=end),
        episode("no-task", steps=[step(1, reward=99.0)], total_reward=99.0, task=None),
    )
    assert found(check) == ([] if text is None else [("reward_out_of_range", "a", text)])


def test_a_return_that_is_not_the_sum_of_the_rewards_is_found(checked: Checked) -> None:
    steps = [step(1, reward=0.25), step(2), step(3, reward=0.5)]
    sound: dict[str, Any] = {"steps": steps, "end_reward": Reward(0.1), "observation": {"reward": 0.05}}
    check = checked(
        episode("sound", total_reward=0.9, **sound),
        episode("wrong", total_reward=0.8, **sound),
        # The steps before are not in the record.
        episode("cut", total_reward=0.8, dropped=3, **sound),
    )
    assert found(check) == [("wrong_return", "wrong", "return 0.8; its rewards add up to 0.9")]


# -- costs


def test_costs_far_above_the_others_are_found(checked: Checked) -> None:
    others = [episode(f"e{number}", 10 + number % 5, extra=tokens(900 + number)) for number in range(20)]
    slow = episode("slow", at=START, ended_at=START + 600.0)
    check = checked(*others, slow, episode("long", 61), episode("dear", extra=tokens(50_000)))
    assert found(check) == [
        ("cost_outlier", "long", "61 steps; the median of 23 episodes is 12"),
        ("cost_outlier", "slow", "600 seconds; the median of 23 episodes is 1"),
        ("cost_outlier", "dear", "50,000 tokens; the median of 21 episodes is 910"),
    ]


def tokens(count: int) -> dict[str, Any]:
    return {EVALUATED: {"prompt_tokens": count - 10, "completion_tokens": 10}}


def test_a_wide_spread_has_outliers_only_above_ten_medians(checked: Checked) -> None:
    steps = [2, 4, 8, 16, 32, 64, 128, 8, 16, 32]
    check = checked(*(episode(f"e{number}", count) for number, count in enumerate(steps)), episode("far", 170))
    assert found(check) == [("cost_outlier", "far", "170 steps; the median of 11 episodes is 16")]


@pytest.mark.parametrize("steps", [[1] * 20 + [9], [20] * 6 + [500], [20] * 20 + [59]])
def test_cheap_few_or_near_episodes_are_no_outliers(checked: Checked, steps: list[int]) -> None:
    assert checked(*(episode(f"e{number}", count) for number, count in enumerate(steps))).findings == []


def test_lognormal_costs_have_hardly_an_outlier(checked: Checked) -> None:
    rng = random.Random(3)
    steps = [max(1, round(rng.lognormvariate(3.0, 0.5))) for _ in range(1000)]
    assert len(checked(*(episode(f"e{number}", count) for number, count in enumerate(steps))).findings) <= 2


# -- damage


def test_damage_hides_only_the_rest_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "episodes-1.jsonl").write_bytes(episode("a").line() + b'{"format": 1}\n' + episode("hidden").line())
    (tmp_path / "episodes-2.jsonl").write_bytes(episode("b", 0).line())
    check = check_record(tmp_path)
    assert (check.episodes, [finding.kind for finding in check.findings]) == (2, [Kind.DAMAGED, Kind.NO_CALLS])
    assert check.findings[0].subject == f"{tmp_path}/episodes-1.jsonl, line 2"
    assert check.findings[0].text.endswith("; the episodes after it in this file are not read")


# -- the command


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield lambda *arguments: run("trajectories", "check", *arguments)


def test_the_command_names_findings_by_kind_and_exits_with_1(cli: Cli, checked: Checked) -> None:
    checked(*(episode(f"e{number}", 0) for number in range(12)), episode("same"), episode("same"))
    done = cli("record")
    assert (done.status, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[0] == "14 episodes of 1 task"
    assert lines[2].startswith("duplicate (1)") and lines[3].split()[:3] == ["same", "train/one", "2"]
    assert lines[5].startswith("no_calls (12)") and lines[6].split()[:3] == ["e0", "train/one", "no"]
    assert "and 2 more; --json has all of them" in lines and lines[-1] == "13 findings"


def test_ignored_kinds_are_left_out_and_a_sound_rest_exits_with_0(cli: Cli, checked: Checked) -> None:
    checked(episode("a", 0), episode("b"))
    assert cli("record", "--ignore", "damaged").status == 1
    done = cli("record", "--ignore", "no_calls", "--ignore", "duplicate")
    assert (done.status, done.out) == (0, "2 episodes of 1 task\n\nno findings\n")


def test_the_document_of_a_check_has_all_findings(cli: Cli, checked: Checked) -> None:
    checked(*(episode(f"e{number}", 0, seed=1) for number in range(12)))
    done = cli("record", "--json")
    document = json.loads(done.out)
    assert done.status == 1 and document["counts"] == {"no_calls": 12} and len(document["findings"]) == 12
    assert document["findings"][0] == {
        "kind": "no_calls",
        "subject": "e0",
        "text": "no call before its end (terminated)",
        "episodes": ["e0"],
        "task": "train/one",
    }


def test_what_is_no_record_is_refused_in_one_line(cli: Cli, tmp_path: Path) -> None:
    for arguments in (("nowhere",), (), ("nowhere", "--ignore", "nonsense")):
        done = cli(*arguments)
        assert done.status == 2 and done.out == "" and done.err.startswith("error: ") and done.err.count("\n") == 1


# -- a real evaluation, spoiled


@pytest.mark.slow
def test_a_spoiled_evaluation_is_found_and_the_same_before_it_is_sound(tmp_path: Path) -> None:
    with scripted_endpoint() as endpoint:
        agent = ModelAgent("scripted", base_url=endpoint.url, backoff_s=0.001, max_turns=5)
        evaluate(Counting, agent, out=tmp_path, split="many", k=2)
    record = tmp_path / "record"
    # The tasks "miss" and half of "sometimes" are those of an agent that answers without a call.
    before = check_record(record)
    assert set(before.counts) == {"no_calls"} and before.counts["no_calls"] == 12
    (segment,) = record.glob("*.gz")
    lines = [json.loads(line) for line in gzip.decompress(segment.read_bytes()).splitlines()]
    played = [line for line in lines if line["trajectory"]["steps"]]
    played[0]["trajectory"]["verified"]["value"] = 7.0
    played[1]["trajectory"]["total_reward"] += 1.0
    spoiled = [*lines, json.loads(json.dumps(played[2]))]
    segment.write_bytes(gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in spoiled)))
    after = [finding for finding in check_record(record).findings if finding.kind is not Kind.NO_CALLS]
    assert [(finding.kind, finding.subject) for finding in after] == [
        (Kind.DUPLICATE, played[2]["trajectory"]["episode_id"]),
        (Kind.REWARD_OUT_OF_RANGE, played[0]["trajectory"]["episode_id"]),
        (Kind.WRONG_RETURN, played[1]["trajectory"]["episode_id"]),
    ]
    assert len(list(read_episodes(record))) == len(lines) + 1


def test_the_reference_has_every_kind_of_finding() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "records.md").read_text(encoding="utf-8")
    assert [kind for kind in Kind if f"| `{kind}` |" not in page] == []
