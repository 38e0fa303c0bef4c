"""Replay: recorded calls come out the same, and the first that does not is named."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from record_worlds import Dice, Forgetful, Shout, play

from mcpenv import ExecutionError, MCPEnvironment, Observation, Rubric, Trajectory
from mcpenv.cli import execute
from mcpenv.extensions.records.replay import Difference, Verdict, replay
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import RecordedEpisode, Recorder, read_episodes
from mcpenv_client import EnvClient, Task, ToolCall, ToolOutcome

WORLDS = Path(__file__).parents[2] / "record_worlds.py"


class Loaded(Dice):
    """Nothing depends on its seed."""

    def __init__(self) -> None:
        super().__init__(loaded=True)


def recorded(folder: Path, *seeds: int) -> list[RecordedEpisode]:
    """Episodes of the game, played in process."""
    with Recorder(folder) as recorder:
        env = Dice()
        recorder.attach(env)
        for seed in seeds:
            play(env, seed)
            recorder.flush()
    return list(read_episodes(folder))


@pytest.mark.parametrize(("name", "steps"), [("in_process", [11, 11]), ("served", [4])])
def test_a_record_of_an_earlier_version_is_replayed(name: str, steps: list[int]) -> None:
    episodes = list(read_episodes(Path(__file__).parents[2] / "data" / "records" / name))
    replayed = [replay(Dice(), each) for each in episodes]
    assert [each.verdict for each in replayed] == [Verdict.AGREES] * len(steps)
    assert [each.steps for each in replayed] == steps


def tampered(record: Path, into: Path, change: Any) -> Path:
    """A copy of a record as text, its episodes changed."""
    lines = [json.loads(episode.line()) for episode in read_episodes(record)]
    change(lines)
    into.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return into


def test_an_episode_comes_out_the_same_with_the_same_hash(tmp_path: Path) -> None:
    (episode,) = recorded(tmp_path, 3)
    done = replay(Dice(), episode)
    assert (done.verdict, done.difference, done.why) == (Verdict.AGREES, None, None)
    assert done.steps == len(episode.trajectory.steps) > 7
    assert done.recorded_hash == done.replayed_hash


@pytest.mark.process
def test_episodes_of_every_plane_come_out_the_same_in_process(tmp_path: Path) -> None:
    async def agent(mcp_url: str) -> None:
        async with Client(mcp_url) as client:
            for name in ("roll", "refuse", "crash", "picture"):
                await client.call_tool(name, raise_on_error=False)

    with serving(Dice, ServerConfig(record=tmp_path)) as url, EnvClient(url).sync() as client:
        play(client, 5)
        begun = client.reset(sides=20, target=10**6)
        asyncio.run(agent(begun.info["mcp_url"]))
        client.step(Shout(text="go"))
        client.end(truncated=True, reason="that will do")
        client.reset()
    *episodes, closed = [replay(Dice(), episode) for episode in read_episodes(tmp_path)]
    assert [each.verdict for each in episodes] == [Verdict.AGREES] * 2
    assert (closed.verdict, closed.steps) == (Verdict.AGREES, 0)


def test_an_episode_that_began_without_a_reset_comes_out_the_same(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        env = Dice()
        recorder.attach(env)
        env.call_tool("roll", {"times": 3})
        env.close()
    (episode,) = read_episodes(tmp_path)
    assert episode.trajectory.implicit_reset
    assert replay(Dice(), episode).verdict is Verdict.AGREES


@pytest.mark.parametrize(
    ("path", "value", "difference"),
    [
        (["steps", 0, "outcome", "result", "content", 0, "text"], "bye", (1, "result.content[0].text")),
        (["steps", 0, "outcome", "result", "structured_content", "said"], "bye", (1, "result.structured_content.said")),
        (["steps", 0, "call", "arguments", "text"], "bye", (1, "result.content[0].text")),
        (["steps", 1, "outcome", "result", "is_error"], True, (2, "result.is_error")),
        (["steps", 2, "outcome", "error", "message"], "with these dice", (3, "error.message")),
        (["steps", 2, "outcome", "error", "error_type"], "invalid_args", (3, "error.error_type")),
        (["steps", 1, "reward", "value"], 0.75, (2, "reward.value")),
        (["steps", 1, "reward", "components", "effort"], 1, (2, "reward.components.effort")),
        (["steps", 0, "reward"], {"value": 0, "components": {}}, (1, "reward")),
        (["steps", -1, "terminated"], False, (None, "terminated")),
        (["observation", "metadata", "prompt"], "Win.", (0, "observation.metadata.prompt")),
        (["total_reward"], 0.0, (None, "return")),
        (["terminated"], False, (None, "terminated")),
        (["verified"], {"value": 1.0, "components": {}}, (None, "verified")),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_tampered_record_is_named_with_its_first_difference(
    tmp_path: Path, path: list[Any], value: Any, difference: tuple[int | None, str]
) -> None:
    (episode,) = recorded(tmp_path / "record", 3)

    def change(lines: list[Any]) -> None:
        *outer, last = ["trajectory", *path]
        part = lines[0]
        for name in outer:
            part = part[name]
        assert part[last] != value
        part[last] = value

    (changed,) = read_episodes(tampered(tmp_path / "record", tmp_path / "tampered.jsonl", change))
    found = replay(Dice(), changed)
    assert found.verdict is Verdict.DIFFERS and found.recorded_hash != found.replayed_hash
    assert found.difference is not None
    if path == ["steps", -1, "terminated"]:
        difference = (len(episode.trajectory.steps), "terminated")
    assert (found.difference.step, found.difference.field) == difference


def test_what_docs_say_is_not_compared_is_not(tmp_path: Path) -> None:
    with Recorder(tmp_path / "record") as recorder:
        env: Any = Loaded()
        recorder.attach(env)
        env.reset(seed=1, task=Task(id="one", options={"target": 20}))
        for words in ("first", "second"):
            env.call_tool("say", {"text": words})
        env.end(reason="enough")

    def change(lines: list[Any]) -> None:
        trajectory = lines[0]["trajectory"]
        trajectory.update(seed=2, reason="too much")
        trajectory["task"].update(id="other", version="2")
        del trajectory["steps"][0]
        trajectory["steps"][0]["call"]["step"] = 1

    (changed,) = read_episodes(tampered(tmp_path / "record", tmp_path / "tampered.jsonl", change))
    found = replay(Loaded(), changed)
    assert (found.verdict, found.steps) == (Verdict.AGREES, 1)


def test_an_observation_of_an_own_action_is_compared_too(tmp_path: Path) -> None:
    recorded(tmp_path / "record", 3)

    def change(lines: list[Any]) -> None:
        lines[0]["extra"]["observations"]["7"]["echo"] = "stop"

    (changed,) = read_episodes(tampered(tmp_path / "record", tmp_path / "tampered.jsonl", change))
    assert replay(Dice(), changed).difference == Difference(7, "observation.echo", "stop", "go (0)")


def test_an_environment_that_forgets_its_seed_differs_at_the_first_roll(tmp_path: Path) -> None:
    episodes = recorded(tmp_path, *range(10))
    differences = [replay(Forgetful(), episode).difference for episode in episodes]
    assert sum(found is not None for found in differences) > 5
    assert {found.step for found in differences if found is not None} <= {8, 9, 10, 11, 12, 13}


def test_an_environment_that_ends_earlier_differs_where_it_ended(tmp_path: Path) -> None:
    class Impatient(Dice):
        max_steps = 2

    (episode,) = recorded(tmp_path, 3)
    found = replay(Impatient(), episode).difference
    assert found == Difference(2, "truncated", False, True)


class Late(MCPEnvironment):
    """Options of types that are no JSON, deadlines, and a score that fails."""

    def __init__(self) -> None:
        @self.tool
        def day() -> str:
            return self.day.strftime("%A")

        @self.tool(timeout_s=0.01)
        async def sleep() -> None:
            await asyncio.sleep(60)

    def reset(self, seed: int | None = None, episode_id: str | None = None, day: date = date(2026, 1, 1)) -> Any:
        self.day = day
        return Observation(metadata={"id": episode_id})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        if call.name == "sleep":
            return None
        return {"Thursday": 1.0, "Friday": 2.0}[outcome.value]


def play_late(folder: Path, *days: date | None, sleeps: bool = False) -> list[RecordedEpisode]:
    with Recorder(folder) as recorder:
        env: Any = Late()
        recorder.attach(env)
        for day in days:
            env.reset(episode_id="named", **({} if day is None else {"day": day}))
            with contextlib.suppress(ExecutionError):
                env.call_tool("day")
            if sleeps:
                with contextlib.suppress(ExecutionError):
                    env.call_tool("sleep")
        env.close()
    return list(read_episodes(folder))


def test_options_become_again_what_the_environment_declares(tmp_path: Path) -> None:
    (default, friday) = play_late(tmp_path, None, date(2026, 1, 2))
    assert friday.trajectory.options == {"day": "2026-01-02"}
    assert [replay(Late(), each).verdict for each in (default, friday)] == [Verdict.AGREES] * 2


def test_a_step_whose_scoring_failed_fails_again(tmp_path: Path) -> None:
    (saturday,) = play_late(tmp_path, date(2026, 1, 3))
    assert saturday.trajectory.steps[0].fault == "EXECUTION_ERROR"
    assert replay(Late(), saturday).verdict is Verdict.AGREES


class OfTheEnd(Rubric):
    """Worth one; of an episode without a step it knows nothing, unless it forgives."""

    def __init__(self, forgives: bool = False) -> None:
        self.forgives = forgives

    def score_trajectory(self, trajectory: Trajectory) -> float:
        return 1.0 if self.forgives or trajectory.steps else float("nan")


class Judged(Dice):
    """Its end is judged."""

    def __init__(self, *, forgives: bool = False) -> None:
        super().__init__()
        self.rubric = OfTheEnd(forgives)


def test_an_end_that_could_not_be_judged_could_not_be_again_and_the_next_episode_is_replayed(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        env: Any = Judged()
        recorder.attach(env)
        env.reset(seed=1)
        with pytest.raises(ExecutionError):
            env.end()
        env.reset(seed=2)
        env.call_tool("roll")
        env.end()
        env.close()
    failed, judged = read_episodes(tmp_path)
    assert failed.trajectory.fault == "EXECUTION_ERROR" and judged.trajectory.end_reward is not None
    assert [replay(Judged(), each).verdict for each in (failed, judged)] == [Verdict.AGREES] * 2
    assert replay(Judged(forgives=True), failed).verdict is Verdict.DIFFERS
    failed.trajectory.fault = None
    assert replay(Judged(), failed).verdict is Verdict.DIFFERS


def test_a_call_that_passed_its_deadline_is_not_run_again_and_is_no_difference(tmp_path: Path) -> None:
    (episode,) = play_late(tmp_path, None, sleeps=True)
    done = replay(Late(), episode)
    assert (done.verdict, done.steps, done.difference) == (Verdict.PARTLY, 1, None)
    assert done.why is not None and done.why.startswith("step 2 was cut off")


def test_what_could_not_be_recorded_is_not_replayed(tmp_path: Path) -> None:
    (episode,) = recorded(tmp_path, 3)
    episode.extra["not_recorded"] = [{"path": "trajectory.options.odd", "why": "an Odd has no JSON form"}]
    done = replay(Dice(), episode)
    assert done.verdict is Verdict.NOT_REPLAYABLE
    assert done.why == "trajectory.options.odd could not be recorded: an Odd has no JSON form"


def test_a_task_is_begun_again(tmp_path: Path) -> None:
    task = Task(id="low", prompt="Stay low.", options={"target": 5}, limits={"max_steps": 2})  # type: ignore[arg-type]
    with Recorder(tmp_path) as recorder:
        env: Any = Dice()
        recorder.attach(env)
        env.reset(task=task)
        while not env.call_tool("say", {"text": "hm"}).done:
            pass
        env.close()
    (episode,) = read_episodes(tmp_path)
    assert episode.trajectory.task == task and episode.trajectory.reason == "max_steps"
    assert replay(Dice(), episode).verdict is Verdict.AGREES
    episode.trajectory.task = None
    assert replay(Dice(), episode).verdict is Verdict.DIFFERS


def test_what_was_restored_and_what_was_forked_is_replayed_from_the_beginning(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        env = Dice()
        recorder.attach(env)
        env.reset(seed=1, target=10**6)
        env.call_tool("roll")
        env.restore(env.snapshot())
        env.call_tool("roll", {"times": 2})
        with env.fork() as branch:
            branch.call_tool("say", {"text": "here"})
        env.close()
    given_up, forked, restored = read_episodes(tmp_path)
    assert [each.ending for each in (given_up, forked, restored)] == ["restored", "closed", "closed"]
    assert [len(each.trajectory.steps) for each in (given_up, forked, restored)] == [1, 3, 2]
    assert forked.trajectory.forked_from is not None and restored.trajectory.forked_from is not None
    assert [replay(Dice(), each).verdict for each in (given_up, forked, restored)] == [Verdict.AGREES] * 3
    assert given_up.tools == forked.tools == restored.tools


# -- the command


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mcpenv", "trajectories", "replay", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_many_episodes_agree_and_one_that_was_tampered_with_is_found(tmp_path: Path) -> None:
    recorded(tmp_path / "record", *range(200))
    ran = run(str(tmp_path / "record"), "--target", f"{WORLDS}:Dice", "--json")
    said = json.loads(ran.stdout)
    assert (ran.returncode, said["episodes"], said["verdicts"]["agrees"]) == (0, 200, 200)
    assert all(each["recorded_hash"] == each["replayed_hash"] for each in said["replayed"])

    def change(lines: list[Any]) -> None:
        del lines[150:], lines[:100]
        lines[40]["trajectory"]["steps"][9]["reward"]["value"] += 1e-9

    changed = tampered(tmp_path / "record", tmp_path / "tampered.jsonl", change)
    name = list(read_episodes(changed))[40].id
    ran = run(str(changed), "--target", f"{WORLDS}:Dice")
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[0] == f"{name} differs at step 10, reward.value"
    assert ran.stdout.splitlines()[-1].endswith(": 49 agree, 1 differ")
    assert run(str(changed), "--target", f"{WORLDS}:Dice", "--episode", name, "--json").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((f"{WORLDS}:Dice",), 0, "1 episode, 11 steps: 1 agree"),
        ((f"{WORLDS}:Dice", "--set", "loaded=true"), 1, "differs at step 8, result.content[0].text"),
        ((f"{WORLDS}:Dice", "--limit", "0"), 2, "there is no episode to replay"),
        ((f"{WORLDS}:Dice", "--episode", "x"), 2, "there is no such episode to replay"),
        ((f"{WORLDS}:Nothing",), 2, "there is no 'Nothing'"),
        (("http://127.0.0.1:1",), 2, "is the URL of a server, but this command needs the environment itself"),
        ((f"{WORLDS}:Forgetful",), 1, "recorded with Dice 0.1.0, replayed with Forgetful 0.1.0"),
    ],
    ids=["agrees", "set", "limit", "episode", "target", "url", "version"],
)
def test_the_exit_status_says_what_came_of_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, said: str
) -> None:
    recorded(tmp_path, 4)
    assert execute(["trajectories", "replay", str(tmp_path), "--target", *arguments]) == status
    shown = capfd.readouterr()
    assert said in shown.out + shown.err


def test_what_a_writer_left_unfinished_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record"
    recorded(record, 4, 5)
    (segment,) = record.glob("episodes-*")
    segment.write_bytes(segment.read_bytes()[:-10])
    assert execute(["trajectories", "replay", str(record), "--target", f"{WORLDS}:Dice"]) == 0
    shown = capfd.readouterr()
    assert "1 episode, 11 steps: 1 agree" in shown.out and f"{segment.name}: skipped the last " in shown.err
    assert (
        execute(
            ["trajectories", "rescore", str(record), "--rubric", f"{__file__}:OfTheEnd", "--out", str(tmp_path / "new")]
        )
        == 0
    )
    assert f"{segment.name}: skipped the last " in capfd.readouterr().err


def test_a_record_that_is_not_there_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["trajectories", "replay", str(tmp_path / "none"), "--target", f"{WORLDS}:Dice"]) == 2
    assert "there is no such record" in capfd.readouterr().err
