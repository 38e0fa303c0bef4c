"""The contract of MyEnv, its server, and its tasks."""

from __future__ import annotations

from mcpenv.extensions.contract import EnvironmentContract
from mcpenv.extensions.validation.tasks import validate

from my_env import environment


class TestMyEnv(EnvironmentContract):
    factory = environment.MyEnv
    examples = {"add_item": {"name": "milk"}, "remove_item": {"name": "milk"}}


def test_every_task_is_sound() -> None:
    tasks = environment.MyEnv.tasks
    assert tasks is not None
    report = validate(environment.MyEnv, tasks, random_seeds=1)
    assert [problem for task in report.tasks for problem in task.problems] == []
    assert all(task.has_oracle for task in report.tasks)


def test_each_episode_begins_with_an_empty_list() -> None:
    with environment.MyEnv() as env:
        env.reset(task="apples")
        env.call_tool("add_item", {"name": "tea"})
        assert env.end().info["return"] == 0.0
        env.reset(task="apples")
        env.call_tool("add_item", {"name": "apples", "quantity": 3})
        assert env.end().info["return"] == 1.0


def test_the_server_refuses_what_is_not_there() -> None:
    with environment.MyEnv() as env:
        env.reset(task="apples")
        step = env.call_tool("remove_item", {"name": "tea"})
        assert step.result is not None and step.result.is_error and step.text == "'tea' is not on the list"
