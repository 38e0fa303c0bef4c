"""The contract of MyEnv, its rules, and its tasks."""

from __future__ import annotations

from mcpenv.extensions.contract import EnvironmentContract
from mcpenv.extensions.validation.tasks import validate

from my_env import environment


class TestMyEnv(EnvironmentContract):
    factory = environment.MyEnv
    examples = {"put": {"bin": "letters"}}


def test_every_task_is_sound() -> None:
    tasks = environment.MyEnv.tasks
    assert tasks is not None
    report = validate(environment.MyEnv, tasks)
    assert [problem for task in report.tasks for problem in task.problems] == []
    assert all(task.has_oracle for task in report.tasks)


def test_half_of_the_items_is_half_of_the_reward() -> None:
    with environment.MyEnv() as env:
        env.reset(task="two-letters")
        env.call_tool("put", {"bin": "letters"})
        env.call_tool("put", {"bin": "parcels"})
        assert env.end().info["return"] == 0.5


def test_an_unknown_bin_is_refused() -> None:
    with environment.MyEnv() as env:
        env.reset(task="two-letters")
        step = env.call_tool("put", {"bin": "attic"})
        assert step.error is not None and "there are letters, parcels, fragile" in step.error.message
