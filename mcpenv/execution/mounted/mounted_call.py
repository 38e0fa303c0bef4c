"""The tool call of a step through the mounted server of an environment."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fastmcp.server.context import set_context
from mcp.shared.exceptions import MCPError
from mcp_types import InputRequiredResult

from mcpenv.errors import InvalidTool, StartupError
from mcpenv.execution.context import EnvironmentContext
from mcpenv.execution.current_step import Step
from mcpenv.execution.instance import Instance
from mcpenv.execution.tool_call import InputRequired, TimedOut, ToolRun, asked_for_input
from mcpenv.failures import execution_failure, unknown_tool
from mcpenv_client.errors import WireError
from mcpenv_client.types.json_types import copied
from mcpenv_client.types.records import LogEntry, Plane, ToolOutcome
from mcpenv_client.types.status import COMPLETED, REFUSED_CALL
from mcpenv_client.types.tools import ToolErrorType, ToolFailure, ToolResult

from .mounted_server import MountedServer, Visible


async def run_through(at: Instance, server: MountedServer, step: Step) -> ToolOutcome:
    """Run the tool of a step through the mounted server and its middleware.

    Raises:
        TimedOut: the deadline passed.
        InputRequired, MCPError: the MCP client must be asked; the call is not a step.
    """
    settings = server.tools.of(step.call.name, at.mode)
    limit = None if settings is None else settings.timeout_s
    clock, deadline = time.perf_counter(), at.user_code.deadline(step.timeout_s, limit)
    own = _OwnCall(at, server, step)
    try:
        with set_context(EnvironmentContext(step)), deadline:
            try:
                outcome = await server.call_tool(own.tools, step.call.name, copied(step.call.arguments), own)
            except BaseException as error:  # the boundary of middleware, and of tools that FastMCP runs
                for_client = isinstance(error, MCPError) and step.call.plane is Plane.AGENT
                refused = isinstance(error, WireError | InvalidTool | StartupError)
                if for_client or refused or at.user_code.lets_through(error):
                    raise
                outcome = execution_failure(step.call.name, error, at.mode)
    except TimeoutError:
        raise TimedOut(step.call.name, deadline.limit_s, at.user_code.incident) from None
    duration_s = time.perf_counter() - clock
    if isinstance(outcome, InputRequiredResult):
        return asked_for_input(step, outcome)
    if isinstance(outcome, ToolFailure):
        return ToolOutcome(error=outcome, duration_s=duration_s)
    step.status = REFUSED_CALL if outcome.is_error else COMPLETED  # middleware may have answered for the tool
    return ToolOutcome(outcome, None, own.value if own.ran else outcome.data, duration_s)


class _OwnCall:
    """The call of an own tool that has passed the mounted server's middleware (`mounted_server.Call`).

    Attributes:
        tools: the environment's own tools.
        logs: the messages of the call.
        number: the step's number.
        ran: True if the tool itself ran. Middleware may answer in its place.
        value: the tool's return value.
    """

    def __init__(self, at: Instance, server: MountedServer, step: Step) -> None:
        self._at = at
        self._step = step
        self.tools = visible(at, server)
        self.logs: list[LogEntry] = step.logs
        self.number = step.call.step
        self.ran = False
        self.value: Any = None

    async def run_sync(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a sync function of the server where the environment's sync code runs."""
        limit = self._at.user_code.limit(self._step.timeout_s)
        call = partial(fn, *args, **kwargs)
        return await self._at.user_code.hand_over(limit, call, client=self._step.client)

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolResult | ToolFailure | InputRequiredResult:
        """Run the own tool of that name."""
        tool = self.tools.get(name)
        if tool is None:
            return unknown_tool(name, [each.kind.name for each in self.tools])
        try:
            outcome = await ToolRun(self._at, tool, self._step).run(arguments)
        except InputRequired as asked:
            return asked.result
        except TimedOut as late:
            return ToolFailure(error_type=ToolErrorType.TIMEOUT, message=str(late))
        self.ran, self.value = True, outcome.value
        answer = outcome.error or outcome.result
        assert answer is not None
        return answer


def visible(at: Instance, server: MountedServer) -> Visible:
    """Return the tools that the mounted server shows."""
    session_id = f"{at.session_id}-{at.episode.number}"
    return Visible(at.tools, at.mode, session_id, at.subscribers, server.tools)
