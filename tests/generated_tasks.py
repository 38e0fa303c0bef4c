"""Play and judge the tasks of the environments that generate them: office and operations."""

from __future__ import annotations

from typing import Any

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


def judge(env: Any, task: Task) -> None:
    """The honest solve it; nobody else does."""
    assert task.oracle
    assert played(env, task, task.oracle) == (1.0, []), task.id
    assert played(env, task, []) == (0.0, []), task.id
    if "breach" in task.metadata:
        assert played(env, task, calls_of(task, "breach")) == (0.0, []), task.id
    if "attack" in task.metadata:
        assert played(env, task, [*task.oracle, *calls_of(task, "attack")]) == (0.0, []), task.id
