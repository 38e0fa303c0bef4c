"""The puzzles of RLVE: the generators' own answers, no answer, levels and splits. They need the package."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from imported_environments import check_that_no_answer_runs, module_of

from mcpenv.extensions.validation.tasks.play import at_random, oracle, play


@pytest.fixture(scope="module")
def rlve() -> Any:
    return module_of("rlve")


@pytest.mark.world
@pytest.mark.timeout(300)
def test_each_generators_own_answer_scores_1_and_no_answer_0(rlve: Any) -> None:
    tasks = rlve.RLVEEnvironment.get_tasks("test", 0, len(rlve.NAMES))
    assert len({task.family for task in tasks}) == 371 and sum(task.oracle is None for task in tasks) == 64
    assert Counter(tag for task in tasks for tag in task.tags) == {"construction": 190, "value": 181}
    with rlve.RLVEEnvironment() as env:
        assert [task.id for task in tasks if task.oracle and play(env, task, oracle(task)).score != 1.0] == []
        assert [task.id for task in tasks if play(env, task).score != 0.0] == []
        assert [task.id for task in tasks if play(env, task, at_random(task, 3, 1)).score != 0.0] == []


@pytest.mark.world
@pytest.mark.timeout(300)
def test_a_puzzle_is_that_of_the_package_and_leaves_the_random_numbers_of_others_alone(rlve: Any) -> None:
    random.seed(7)
    before = random.getstate()
    found = {name: rlve.puzzle(name, 3, 11) for name in rlve.NAMES[::7]}
    assert random.getstate() == before
    for name, made in found.items():
        controller = rlve.CONTROLLERS[name]()
        controller.update()
        controller.update()
        theirs = rlve.GENERATORS[name]()
        theirs.seed = 11
        theirs.parameter = dict(random.Random(11).choice(controller.get_parameter_list()))
        sys.modules[type(theirs).__module__].random = random  # type: ignore[attr-defined]
        random.seed(11)
        theirs._generate()
        assert made.prompt_generator() == theirs.prompt_generator(), name


@pytest.mark.world
@pytest.mark.timeout(300)
def test_answers_are_harder_to_guess_with_each_level(rlve: Any) -> None:
    rates = []
    for level in range(1, rlve.LEVELS + 1):
        right = tried = 0
        for name in rlve.NAMES[::4]:
            drawn = [rlve.drawn(random.Random(seed), name, level, "train") for seed in range(16)]
            made = [each for _, found, each, _ in drawn if found == level]
            answers = Counter(str(each.parameter.get("reference_answer")) for each in made[:12])
            if made and "None" not in answers:
                guess = answers.most_common(1)[0][0]
                right += sum(each.verifier(f"<answer>{guess}</answer>")["accuracy"] for each in made[12:])
                tried += len(made[12:])
        rates.append(right / tried)
    assert rates == sorted(rates, reverse=True) and rates[0] > 0.25 and rates[-1] < 0.12


@pytest.mark.world
@pytest.mark.timeout(300)
def test_no_puzzle_is_in_both_splits_and_a_level_without_one_gives_way_to_the_next(rlve: Any) -> None:
    tasks = {split: rlve.RLVEEnvironment.get_tasks(split, 0, 2 * len(rlve.NAMES)) for split in ("train", "test")}
    assert not {task.prompt for task in tasks["train"]} & {task.prompt for task in tasks["test"]}
    levels = Counter(task.level for task in tasks["test"])
    assert set(levels) == {1, 2, 3, 4, 5} and min(levels.values()) > 130
    few = rlve.NAMES.index("ClearSymmetry")
    assert few % rlve.LEVELS < 2 and tasks["test"][few].level > 3


@pytest.mark.world
def test_a_wrong_answer_has_no_reward_and_a_grade_and_there_is_one_try(rlve: Any) -> None:
    task = rlve.RLVEEnvironment.get_task("test", rlve.NAMES.index("Sorting"))
    right = task.oracle[0].arguments["text"].split()
    with rlve.RLVEEnvironment() as env:
        assert env.reset(task=task).prompt == task.prompt
        answered: Any = env.call_tool("answer", {"text": " ".join(right[::-1])})
        assert answered.done and answered.reward == 0.0
        assert -1.0 <= answered.info["reward"]["verified/graded"] < 1.0


@pytest.mark.world
@pytest.mark.timeout(300)
def test_no_generator_runs_an_answer_as_python(rlve: Any, tmp_path: Path) -> None:
    check_that_no_answer_runs(rlve.RLVEEnvironment, len(rlve.NAMES), tmp_path)
