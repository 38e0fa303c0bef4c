"""An own tool's call on its way through a handed-in server, whose middleware stands between the step and the tool."""

from __future__ import annotations

from typing import Any

from mcp_types import InputRequiredResult

from mcpenv_client.records import LogEntry
from mcpenv_client.tools import ToolErrorType, ToolFailure, ToolResult

from .step import Step
from .tool_run import InputRequired, Site, TimedOut, ToolRun
from .toolbox import Visible


class OwnCall:
    """Runs the own tool when the server has let the call through.

    Attributes:
        logs: where messages of the call go.
        number: the step's number.
        ran: whether the tool itself was reached (middleware may answer in its place).
        value: what it returned.
    """

    def __init__(self, site: Site, own: Visible, step: Step) -> None:
        self._site = site
        self._own = own
        self._step = step
        self.logs: list[LogEntry] = step.logs
        self.number = step.call.step
        self.ran = False
        self.value: Any = None

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolResult | ToolFailure | InputRequiredResult:
        """Run the own tool of that name."""
        tool = self._own.get(name)
        if tool is None:
            return ToolFailure(error_type=ToolErrorType.TOOL_NOT_FOUND, message=f"Unknown tool: {name!r}")
        try:
            outcome, _ = await ToolRun(self._site, tool).run(self._step, arguments)
        except InputRequired as asked:
            return asked.result
        except TimedOut as late:
            return ToolFailure(error_type=ToolErrorType.TIMEOUT, message=str(late))
        self.ran, self.value = True, outcome.value
        answer = outcome.error or outcome.result
        assert answer is not None
        return answer
