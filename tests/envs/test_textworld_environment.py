"""Text games of TextWorld: solutions, idle and random agents, levels, forks. They need the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from imported_environments import module_of

from mcpenv.extensions.generated_worlds import measure
from mcpenv.extensions.validation.tasks.play import at_random, oracle, play

FILE = Path(__file__).resolve().parents[2] / "envs" / "textworld_mcp" / "environment.py"


@pytest.fixture(scope="module")
def textworld() -> Any:
    return module_of("textworld")


@pytest.mark.world
@pytest.mark.timeout(300)
def test_solutions_score_1_and_idle_and_random_agents_0(textworld: Any) -> None:
    with textworld.TextWorldEnvironment() as env:
        for task in textworld.TextWorldEnvironment.get_tasks("test", 0, 50):
            assert task.tags == sorted({call.arguments["command"].split()[0] for call in task.oracle})
            assert len(task.oracle) <= textworld.SHAPES[task.level - 1][2]
            scores = [play(env, task, each).score for each in (oracle(task), None, at_random(task, 1, 30))]
            assert scores == [1.0, 0.0, 0.0], task.id


@pytest.mark.world
@pytest.mark.timeout(300)
def test_an_agent_that_makes_mistakes_solves_less_with_each_level(textworld: Any) -> None:
    with textworld.TextWorldEnvironment() as env:
        scores = measure(env, (), 20)
    assert [scores[level][0] for level in range(1, 6)] == [1.0] * 5
    middle = [scores[level][3] for level in range(1, 6)]  # 20 % mistakes
    assert middle[0] > middle[2] > middle[4]


@pytest.mark.world
def test_the_goal_does_not_tell_the_way_and_other_names_are_refused_in_words(textworld: Any) -> None:
    with textworld.TextWorldEnvironment() as env:
        task = textworld.TextWorldEnvironment.get_task("test", 4)
        goal = env.reset(task=task).prompt.split("\n\n")[0]
        first = task.oracle[0].arguments["command"]
        assert first not in goal
        refused: Any = env.call_tool("do", {"command": "take the moon"})
        assert refused.result.text.startswith("You cannot do that here: take the moon\nYou are in the ")
        before: Any = env.call_tool("do", {"command": "look"})
        assert refused.result.text.endswith(before.result.text)
        after: Any = env.call_tool("do", {"command": f"  {first.upper()} "})
        assert after.result.text != before.result.text


@pytest.mark.world
def test_a_fork_in_the_middle_is_played_on_by_itself(textworld: Any) -> None:
    with textworld.TextWorldEnvironment() as env:
        task = textworld.TextWorldEnvironment.get_task("test", 3)
        env.reset(task=task)
        first, *others = task.oracle
        env.call_tool(first.tool_name, first.arguments)
        with env.fork() as other:
            for call in others:
                last: Any = other.call_tool(call.tool_name, call.arguments)
            assert last.done and last.reward == 1.0
        assert env.end().info["return"] == 0.0


@pytest.mark.world
@pytest.mark.timeout(300)
def test_a_seed_makes_the_same_game_in_every_process() -> None:
    code = (
        "import runpy, sys; E = runpy.run_path(sys.argv[1]); "
        "plays = [E['Play'](level, 7) for level in (1, 3, 5)]; "
        "print([(each.facts(), each.solution(), each.seen(), each.game.objective) for each in plays])"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code, str(FILE)],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1 and "go " in texts.pop()
