"""The scores of tau2's own code: its initializers, tools and scorers, on a list of calls, without mcpenv."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelName
from inspect_ai.model._call_tools import tool_params
from inspect_ai.scorer import CORRECT, Target
from inspect_ai.solver import TaskState
from inspect_ai.tool import ToolCall, ToolDef, ToolError
from inspect_ai.util import Store, store_as
from inspect_ai.util._store import init_subtask_store
from inspect_evals.tau2.airline.scorer import airline_scorer
from inspect_evals.tau2.airline.tools import all_airline_tools
from inspect_evals.tau2.banking.scorer import banking_scorer
from inspect_evals.tau2.banking.solver import banking_initializer
from inspect_evals.tau2.banking.tools import all_banking_agent_tools
from inspect_evals.tau2.banking.user_tools import all_banking_user_tools
from inspect_evals.tau2.common.agents import StoredAgentState
from inspect_evals.tau2.common.metadata import Tau2MetaData
from inspect_evals.tau2.retail.scorer import retail_scorer
from inspect_evals.tau2.retail.tools import all_retail_tools
from inspect_evals.tau2.telecom.scorer import telecom_scorer
from inspect_evals.tau2.telecom.solver import telecom_initializer
from inspect_evals.tau2.telecom.tools import all_telecom_agent_tools
from inspect_evals.tau2.telecom.user_tools import all_telecom_user_tools

from mcpenv.extensions.tau2.domains import Call, Task

AGENT = "Agent"

DIFFERS = {
    "banking": {
        f"task_{number:03}" for number in (1, 2, 3, 6, 7, 23, 24, 25, 44, 47, 48, 51, 58, 59, 63, 64, 66, 67, 68, 69)
    }
}
"""Tasks whose reference actions tau2's own code of inspect-evals scores 0, by domain.

Inspect makes 100000.0 of the income 100000 that the task wants. In task_051 the episode changes the data of the task,
from which the scorer makes the expected database.
"""

OWN: dict[str, tuple[list[Any], list[Any], Callable[[], Any], Callable[[], Any] | None]] = {
    "retail": (all_retail_tools, [], retail_scorer, None),
    "airline": (all_airline_tools, [], airline_scorer, None),
    "telecom": (all_telecom_agent_tools, all_telecom_user_tools, telecom_scorer, telecom_initializer),
    "banking": (all_banking_agent_tools, all_banking_user_tools, banking_scorer, banking_initializer),
}


async def _nothing(*given: Any, **named: Any) -> Any:
    raise AssertionError("no model is asked")


async def _score(domain: str, task: Task, calls: list[Call], said: list[str]) -> float:
    agent, user, scorer, initializer = OWN[domain]
    init_subtask_store(Store())
    metadata = Tau2MetaData(instance=AGENT, task=task).model_dump()
    state = TaskState(
        model=ModelName("none/none"),
        sample_id=task.id,
        epoch=1,
        input="",
        messages=[ChatMessageUser(content=text) for text in said],
        metadata=metadata,
    )
    if initializer is not None:
        state = await initializer()(state, _nothing)
    agent_state = store_as(StoredAgentState, AGENT)
    tools = {ToolDef(tool).name: tool for tool in (make() for make in [*agent, *user])}
    for call in calls:
        name = call.name if call.name in tools else f"banking_{call.name}"
        made = ToolCall(id=name, function=name, arguments=dict(call.arguments))
        message = ChatMessageAssistant(content="", tool_calls=[made])
        (agent_state if call.side == "assistant" else state).messages.append(message)
        try:
            await tools[name](**tool_params(dict(call.arguments), tools[name]))
        except ToolError:
            continue  # an answer for the agent
    return float((await scorer()(state, Target(""))).value == CORRECT)


def own_score(domain: str, task: Task, calls: list[Call], said: list[str]) -> float:
    """Return the score of an episode with these calls, and these messages of the agent to the user."""
    return asyncio.run(_score(domain, task, calls, said))
