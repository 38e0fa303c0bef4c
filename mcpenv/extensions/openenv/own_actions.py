"""The tool ``act``, by which agents take an environment's own actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastmcp.tools.base import ToolResult as FastMCPResult
from pydantic import ValidationError

from mcpenv.environment import MCPEnvironment
from mcpenv.failures import SortedFailure, invalid_arguments
from mcpenv.tools.registry import BOTH_MODES, BoundTool
from mcpenv.tools.schema_tool import SchemaTool
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.records import ToolCall, ToolOutcome
from mcpenv_client.types.tools import Tool
from mcpenv_client.types.values import to_plain
from mcpenv_client.wire.faults import describe_fault, faults

ACT = "act"
"""The name of the tool for the actions of an environment that has no tools of its own."""

_NOT_FOR_AGENTS = ("reward", "done", "terminated", "truncated", "info", "metadata")


class ActingEnvironment(MCPEnvironment):
    """An environment of own actions, each of which is also a call of the tool ``act``.

    ``mcpenv share import-openenv`` writes subclasses. They set one class in `action_types`, and override `act`.
    """

    _reward: Any = None

    def __init__(self) -> None:
        super().__init__()
        for action in self.action_types:
            self._add_action_tool(action.__name__, action.model_json_schema())

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Any:
        """Return the reward of the observation that the action returned."""
        reward, self._reward = self._reward, None
        return reward

    def _add_action_tool(self, name: str, schema: Mapping[str, Any]) -> None:
        """Add the tool. Agents do not see the action's field for the orchestrator."""
        properties = {field: value for field, value in schema.get("properties", {}).items() if field != "metadata"}
        spec = Tool(
            name=ACT,
            description=schema.get("description") or f"Take a {name}.",
            input_schema={**schema, "properties": properties},
        )
        self._act_schema = spec.input_schema
        self._execution.tools.add(BoundTool(SchemaTool(spec), self._act_as_tool), BOTH_MODES)

    async def _act_as_tool(self, arguments: dict[str, Any]) -> FastMCPResult:
        """Take an own action as a tool. Agents see the observation without reward, end and metadata.

        Raises:
            SortedFailure: the arguments do not fit the action, which is the agent's error.
        """
        try:
            fields, reward, done = await self._taken(arguments)
        except InvalidMessage as misfit:
            problem = "; ".join(map(describe_fault, misfit.errors)) or str(misfit)
            raise SortedFailure(invalid_arguments(ACT, problem, misfit.errors, self._act_schema)) from misfit
        self._end_of_step(reward, done)
        shown = {name: value for name, value in fields.items() if name not in _NOT_FOR_AGENTS}
        return FastMCPResult(structured_content=shown)

    async def _taken(self, arguments: dict[str, Any]) -> tuple[Mapping[str, Any], Any, bool]:
        """Return the fields, the reward and the end of the observation that an action leads to.

        Raises:
            InvalidMessage: the arguments do not fit the action.
        """
        (cls,) = self.action_types
        try:
            action = cls.model_validate(arguments)
        except ValidationError as error:
            raise InvalidMessage("the action does not fit", errors=faults(error)) from error
        observation = await self._execution.user_code.call(self.act, action)
        return to_plain(observation, "observation"), observation.reward, observation.done

    def _end_of_step(self, reward: Any, done: bool) -> None:
        self._reward = reward
        if done:
            self.finish()
