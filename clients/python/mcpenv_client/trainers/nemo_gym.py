"""Rows for NeMo Gym with ``mcpenv run TARGET --wire nemo-gym`` as resources server.

Needs no package of NeMo Gym.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcpenv_client.errors import ToolNotExpressible
from mcpenv_client.formats.tool_formats import tools_for
from mcpenv_client.pool.instances import Target

from .sessions import Sessions


def rows(
    target: Target,
    split: str = "train",
    *,
    num_tasks: int | None = None,
    system: str | None = None,
    mask_failed_steps: bool = True,
    settings: Sequence[str] = (),
    client: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return one row of a dataset for each task: its prompt, the tools for the model, and the task's identification.

    Args:
        target: the URL of a server or an environment in this process, as `Sessions` takes it.
        split: the split of the tasks.
        num_tasks: the maximum of rows.
        system: a system message before each prompt.
        mask_failed_steps: mask a sample after a step that failed by no fault of the agent. False: rows say that the
            server shall not.
        settings: settings of the target, in this process.
        client: arguments of `EnvClient`, for a URL.

    Raises:
        ToolNotExpressible: a tool has a name that models cannot call, so that ``/{tool}`` would not be found.
        ValueError: there are no tasks, or one has no prompt of its own.
        WireError, ConnectionFailed, PoolError: the environment cannot list its tools or tasks.
    """
    tasks, tools = Sessions(target, settings, client).listed(split, num_tasks)
    offered = tools_for("openai", tools)
    unfit = {own: f"models call it {name}; rename it" for name, own in offered.names.items() if own != name}
    if unfit:
        raise ToolNotExpressible("nemo-gym", unfit)
    listed = [{"type": "function", "strict": False, **entry["function"]} for entry in offered.listed]
    before = [] if system is None else [{"role": "system", "content": system}]
    made = []
    for task in tasks:
        if not task["prompt"][0]["content"]:
            raise ValueError(f"the task {task['task_id']!r} has no prompt; a row must have one, before the reset")
        params = {"input": [*before, *task["prompt"]], "tools": listed}
        made.append(
            {
                "responses_create_params": params,
                **{name: value for name, value in task.items() if name != "prompt"},
                **({} if mask_failed_steps else {"mask_failed_steps": False}),
            }
        )
    return made
