"""The puzzles of reasoning-gym: the own answers of its generators, and no answer. They need the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from imported_environments import check_that_no_answer_runs, module_of

from mcpenv.extensions.validation.tasks.play import oracle, play

NO_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Generators that name no answer; they judge any."""


@pytest.fixture(scope="module")
def gym() -> Any:
    return module_of("reasoning_gym")


@pytest.mark.world
@pytest.mark.timeout(600)
def test_each_generators_own_answer_scores_1_and_no_answer_0(gym: Any) -> None:
    tasks = gym.ReasoningGymEnvironment.get_tasks("test", 0, len(gym.NAMES))
    assert len(tasks) == 94 and all(task.family == task.options["generator"] for task in tasks)
    tags = {task.family: task.tags for task in tasks}
    assert tags["leg_counting"] == ["arithmetic"] and tags["sudoku"] == ["games"] and all(map(len, tags.values()))
    assert {task.options["generator"] for task in tasks if task.oracle is None} == NO_ANSWER
    with gym.ReasoningGymEnvironment() as env:
        scores = {task.options["generator"]: play(env, task, oracle(task)).score for task in tasks if task.oracle}
        assert [name for name, score in scores.items() if score != 1.0] == [] and len(scores) == 89
        assert [task.id for task in tasks if play(env, task).score != 0.0] == []


@pytest.mark.world
def test_a_wrong_answer_is_worth_less_than_the_right_one_and_there_is_one_try(gym: Any) -> None:
    task = gym.ReasoningGymEnvironment.get_task("test", gym.NAMES.index("leg_counting"))
    with gym.ReasoningGymEnvironment() as env:
        assert env.reset(task=task).prompt == task.prompt
        answered = env.call_tool("answer", {"text": "a thousand"})
        assert answered.done and answered.reward is not None and answered.reward < 0.5


WRONG = ["", "nan", "-", "[]", "{}", '{"a": 1}', '[{"a": 1}]', "[null]", "9" * 5000, "1e999", "[" * 2000, "no idea"]


@pytest.mark.world
@pytest.mark.timeout(600)
def test_a_wrong_answer_of_any_form_is_no_failure_and_not_solved(gym: Any) -> None:
    tasks = gym.ReasoningGymEnvironment.get_tasks("test", 0, len(gym.NAMES))
    with gym.ReasoningGymEnvironment() as env:
        for task in tasks:
            right = [call.arguments["text"] for call in task.oracle or []]
            for text in (each for each in WRONG if each not in right):
                env.reset(task=task)
                answered = env.call_tool("answer", {"text": text})
                assert answered.error is None and answered.reward is not None, (task.id, text)
                assert answered.reward < 1.0, (task.id, text)


@pytest.mark.world
@pytest.mark.timeout(600)
def test_no_generator_runs_an_answer_as_python(gym: Any, tmp_path: Path) -> None:
    check_that_no_answer_runs(gym.ReasoningGymEnvironment, len(gym.NAMES), tmp_path)
