"""An episode that proves that a server works: one task by its oracle, or one call."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from mcpenv_client import EnvClient
from mcpenv_client.errors import InvalidMessage, McpenvError
from mcpenv_client.scores import reaches
from mcpenv_client.types.tasks import Task

TIMEOUT_S = 120.0


class SmokeFailed(McpenvError):
    """Raised if the episode did not go as it must."""


@dataclass(frozen=True)
class Smoke:
    """What was seen.

    Attributes:
        environment: the name that the server states.
        task: the id of the task; None without one.
        calls: the number of calls. 0 if no tool could be called without arguments.
        reward: the return of the episode; None if it was not scored.
        seconds: from the connection to the end.
    """

    environment: str
    task: str | None
    calls: int
    reward: float | None
    seconds: float

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return asdict(self)


def smoke_episode(url: str, token: str | None) -> Smoke:
    """Play one episode: the oracle of the first task that has one; else one call of a tool that takes no arguments.

    Args:
        url: the control plane.
        token: the control token; None for a server without one.

    Raises:
        SmokeFailed: the oracle did not reach the full score, or a call of it failed.
        McpenvError: the server cannot be reached, or refused something.
    """
    headers = None if token is None else {"Authorization": f"Bearer {token}"}
    began = time.monotonic()
    with EnvClient(url, headers=headers, message_timeout_s=TIMEOUT_S).sync() as env:
        name = str(env.metadata()["name"])
        task = _task_of(env)
        options: dict[str, Any] = {} if task is None else {"task": task}
        env.reset(**options)
        calls = [] if task is None else [(call.tool_name, call.arguments) for call in task.oracle or ()]
        if not calls:
            free = [tool.name for tool in env.list_tools() if not tool.input_schema.get("required")]
            calls = [(tool, {}) for tool in free[:1]]
        done = False
        for number, (tool, arguments) in enumerate(calls, 1):
            result = env.call_tool(tool, arguments)
            if result.error is not None and task is not None and task.oracle:
                raise SmokeFailed(f"call {number} of the oracle of {task.id} ({tool}) failed: {result.error.message}")
            done = result.done
            if done:
                break
        end = result if done else env.end()
    reward = end.info.get("return")
    if task is not None and task.oracle and (reward is None or not reaches(reward, task.reward_range[1])):
        raise SmokeFailed(f"the oracle of {task.id} got {reward}, and not {task.reward_range[1]:g}")
    return Smoke(name, None if task is None else task.id, len(calls), reward, round(time.monotonic() - began, 3))


def _task_of(env: Any) -> Task | None:
    """Return the first task with an oracle, or else the first; None if the environment has no tasks."""
    try:
        splits = env.splits()
    except InvalidMessage:
        return None
    firsts = [env.get_task(split, 0) for split in splits if env.num_tasks(split)]
    return next((task for task in firsts if task.oracle), firsts[0] if firsts else None)
