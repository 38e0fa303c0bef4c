"""Play and judge the tasks of the environments that generate them: office and operations."""

from __future__ import annotations

from typing import Any

from mcpenv.worlds import capture
from mcpenv_client.types.tasks import OracleCall, Task


def calls_of(task: Task, name: str) -> list[OracleCall]:
    return [OracleCall.model_validate(each) for each in task.metadata[name]]


def played(env: Any, task: Task, calls: list[OracleCall]) -> tuple[float, list[str]]:
    """Return the return of an episode, and the errors of its calls."""
    env.reset(task=task)
    failed = []
    for call in calls:
        obs = env.call_tool(call.tool_name, call.arguments)
        if obs.error is not None:
            failed.append(f"{call}: {obs.error.message}")
    return env.end().info["return"], failed


def judge_replies(env: Any, *replies: tuple[str, dict[str, Any]]) -> None:
    """Of several requests, a reply that names none is refused, and counts for none."""
    tasks = (env.get_task("train", index) for index in range(20))
    task = next(task for task in tasks if len(task.metadata["families"]) > 1)
    number = len(task.metadata["families"])
    env.reset(task=task)
    before = capture(env.world)
    for name, arguments in replies:
        refused = env.call_tool(name, arguments).error
        assert refused is not None
        assert refused.message.endswith(f"Give its number as part. The requests are 1 to {number}."), name
        assert capture(env.world) == before
    for name, arguments in replies:
        assert env.call_tool(name, {**arguments, "part": number}).error is None
    assert capture(env.world) != before


def judge(env: Any, task: Task) -> None:
    """The honest solve it; nobody else does."""
    assert task.oracle
    assert played(env, task, task.oracle) == (1.0, []), task.id
    assert played(env, task, []) == (0.0, []), task.id
    if "breach" in task.metadata:
        assert played(env, task, calls_of(task, "breach")) == (0.0, []), task.id
    if "attack" in task.metadata:
        assert played(env, task, [*task.oracle, *calls_of(task, "attack")]) == (0.0, []), task.id
