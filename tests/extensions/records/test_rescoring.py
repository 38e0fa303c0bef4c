"""Rescoring: a new rubric over old records gives what it would have given then."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from record_worlds import AsksTheWorld, Dice, FewRolls, play

from mcpenv import (
    Discounted,
    Misuse,
    OverSteps,
    Reward,
    Rubric,
    ToolCall,
    ToolOutcome,
    Trajectory,
    Verified,
    WeightedSum,
)
from mcpenv.cli import execute
from mcpenv.extensions.records.rescoring import rescore
from mcpenv.trajectories import RecordedEpisode, Recorder, read_episodes

WORLDS = Path(__file__).parents[2] / "record_worlds.py"


class Scored(Dice):
    """The game, scored by a rubric alone."""

    def score(self, call: ToolCall, outcome: ToolOutcome) -> None:
        return None


class Sum(Rubric):
    """Async, and of what the tool returned."""

    async def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        await asyncio.sleep(0)
        return float(outcome.value) if call.name == "roll" and outcome.error is None else None


def recorded(folder: Path, env: Dice, *seeds: int) -> list[RecordedEpisode]:
    with Recorder(folder) as recorder:
        recorder.attach(env)
        for seed in seeds:
            play(env, seed)
        env.reset(seed=1)
        env.call_tool("roll")
        env.end(reason="stopped")
        env.reset(seed=1)
        env.call_tool("roll")
        env.close()
    return list(read_episodes(folder))


@pytest.mark.parametrize(
    "rubric",
    [
        FewRolls(most=50),
        WeightedSum({"few": FewRolls(most=9), "sum": Sum()}, weights={"few": 2.0, "sum": 0.5}),
        OverSteps(Sum()),
        Discounted(FewRolls(), discount=0.5),
    ],
    ids=lambda rubric: type(rubric).__name__,
)
def test_an_episode_scored_later_has_the_rewards_of_one_scored_while_it_ran(tmp_path: Path, rubric: Rubric) -> None:
    env = Scored()
    env.rubric = rubric
    then = recorded(tmp_path / "then", env, 1, 2)
    unscored = recorded(tmp_path / "unscored", Scored(), 1, 2)
    for scored, plain in zip(then, unscored, strict=True):
        # What the game itself gave for winning is no rubric's.
        won = sum(10.0 for step in scored.trajectory.steps if step.reason == "enough")
        later = asyncio.run(rescore(plain.trajectory, rubric))
        assert later.total_reward == pytest.approx(scored.trajectory.total_reward - won)
        for step, before in list(zip(later.steps, scored.trajectory.steps, strict=True))[:-1]:
            assert step.reward == before.reward
        assert later.end_reward == scored.trajectory.end_reward


def test_an_episode_that_came_to_no_end_is_not_scored_at_its_end(tmp_path: Path) -> None:
    *_, closed = recorded(tmp_path, Scored())
    later = asyncio.run(rescore(closed.trajectory, FewRolls()))
    assert closed.ending == "closed" and later.total_reward == 0.25 and later.end_reward is None


def test_the_old_trajectory_stays_as_it_is(tmp_path: Path) -> None:
    (episode, *_) = recorded(tmp_path, Dice(), 1)
    before = episode.line()
    asyncio.run(rescore(episode.trajectory, FewRolls()))
    assert episode.line() == before


def test_a_verification_of_then_can_be_weighed_anew() -> None:
    trajectory = Trajectory("e", terminated=True, verified=Reward(0.5, {"verified": 0.5}))
    later = asyncio.run(rescore(trajectory, WeightedSum({"verified": Verified()}, weights={"verified": 4.0})))
    assert later.total_reward == 2.0 and later.end_reward is not None
    assert asyncio.run(rescore(trajectory, FewRolls(most=-1))).total_reward == 0.0


def test_a_rubric_that_asks_for_its_environment_says_that_it_is_gone(tmp_path: Path) -> None:
    (episode, *_) = recorded(tmp_path, Dice(), 1)
    with pytest.raises(Misuse, match="only in an episode"):
        asyncio.run(rescore(episode.trajectory, AsksTheWorld()))


# -- the command


def test_new_records_have_the_new_rewards_and_keep_the_old_ones(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old = recorded(tmp_path / "old", Dice(), 1, 2)
    out = tmp_path / "new"
    command = ["trajectories", "rescore", str(tmp_path / "old"), "--rubric", f"{WORLDS}:few_rolls", "--out", str(out)]
    assert execute(command) == 0
    shown = capfd.readouterr().out
    new = list(read_episodes(out))
    assert [each.id for each in new] == [each.id for each in old]
    for before, after in zip(old, new, strict=True):
        kept = after.extra["rescored"]
        assert kept["rubric"] == f"{WORLDS}:few_rolls"
        assert kept["before"]["total_reward"] == before.trajectory.total_reward
        assert [reward and reward["value"] for reward in kept["before"]["steps"]] == [
            step.reward and step.reward.value for step in before.trajectory.steps
        ]
        assert after.trajectory.total_reward == asyncio.run(rescore(before.trajectory, FewRolls(50))).total_reward
        assert after.tools == before.tools and (out / "tools" / f"{after.tools}.json").exists()
    mean = sum(each.trajectory.total_reward for each in new) / len(new)
    assert shown.splitlines()[0] == f"4 of 4 episodes rescored to {out}"
    assert shown.splitlines()[-1] == f"  return after: mean {mean:g} of 4 scored"
    assert execute([*command[:-1], str(tmp_path / "json"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["return_after"]["mean"] == pytest.approx(mean)


def test_a_replay_of_a_rescored_record_says_why_it_differs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "old", Dice(), 1)
    rubric = f"{WORLDS}:few_rolls"
    assert (
        execute(["trajectories", "rescore", str(tmp_path / "old"), "--rubric", rubric, "--out", str(tmp_path / "new")])
        == 0
    )
    capfd.readouterr()
    assert execute(["trajectories", "replay", str(tmp_path / "new"), "--target", f"{WORLDS}:Dice"]) == 1
    said = (
        f"3 of those that differ rescored by {rubric}: the recorded rewards are the rubric's, not the environment's\n"
    )
    assert said in capfd.readouterr().out
    assert execute(["trajectories", "replay", str(tmp_path / "new"), "--target", f"{WORLDS}:Dice", "--json"]) == 1
    assert {each["rescored_by"] for each in json.loads(capfd.readouterr().out)["replayed"]} == {rubric}
    assert execute(["trajectories", "replay", str(tmp_path / "old"), "--target", f"{WORLDS}:Dice"]) == 0
    assert "rescored" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("rubric", "status", "said"),
    [
        ("AsksTheWorld", 1, "a rubric has an environment only in an episode"),
        ("FewRolls", 0, ""),
        ("Dice", 2, "it returned a Dice, not a Rubric"),
        ("PIXEL", 2, "it is a str, neither a rubric"),
        ("nothing", 2, "there is no 'nothing'"),
    ],
)
def test_the_exit_status_of_rescore_says_what_came_of_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], rubric: str, status: int, said: str
) -> None:
    recorded(tmp_path / "old", Dice(), 1)
    command = [
        "trajectories",
        "rescore",
        str(tmp_path / "old"),
        "--rubric",
        f"{WORLDS}:{rubric}",
        "--out",
        str(tmp_path / "new"),
    ]
    assert execute(command) == status
    assert said in capfd.readouterr().err


def test_a_record_is_not_rescored_onto_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, Dice(), 1)
    assert (
        execute(["trajectories", "rescore", str(tmp_path), "--rubric", f"{WORLDS}:few_rolls", "--out", str(tmp_path)])
        == 2
    )
    assert "--out is the record itself" in capfd.readouterr().err
