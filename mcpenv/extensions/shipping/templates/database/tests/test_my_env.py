"""The contract of MyEnv, its rules, and its tasks."""

from __future__ import annotations

import pytest
from mcpenv.extensions.contract import EnvironmentContract
from mcpenv.extensions.validation.tasks import validate

from my_env import environment


class TestMyEnv(EnvironmentContract):
    factory = environment.MyEnv
    examples = {"lend": {"book": 1, "reader": 3}, "take_back": {"book": 2, "reader": 1}}


def test_every_task_is_sound() -> None:
    tasks = environment.MyEnv.tasks
    assert tasks is not None
    report = validate(environment.MyEnv, tasks)
    assert [problem for task in report.tasks for problem in task.problems] == []
    assert all(task.has_oracle for task in report.tasks)


@pytest.mark.parametrize(
    ("book", "reader", "said"),
    [
        (2, 3, "every copy of Rivers of Glass is lent"),
        (2, 1, "every copy"),
        (4, 2, "Bo has Salt and Signal already"),
        (1, 2, "Bo has 1 books, and may have 1"),
        (9, 1, "there is no book 9"),
        (1, 9, "there is no reader 9"),
    ],
)
def test_the_tools_keep_the_rules(book: int, reader: int, said: str) -> None:
    with environment.MyEnv() as env:
        env.reset()
        step = env.call_tool("lend", {"book": book, "reader": reader})
        assert step.error is not None and said in step.error.message


def test_another_loan_than_the_asked_one_scores_nothing() -> None:
    with environment.MyEnv() as env:
        env.reset(task="lend-one")
        env.call_tool("lend", {"book": 3, "reader": 3})
        assert env.end().info["return"] == 0.0
