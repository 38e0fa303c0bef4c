"""Call an own tool: check the arguments, run the tool in its thread or loop, and convert its result."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable
from contextlib import nullcontext
from types import AsyncGeneratorType
from typing import Any

from fastmcp.exceptions import ToolError
from fastmcp.server.context import set_context
from fastmcp.server.dependencies import resolve_dependencies
from fastmcp.tools.base import ToolResult as FastMCPResult
from mcp.shared.exceptions import MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY, InputRequiredResult
from pydantic import ValidationError

from mcpenv.failures import (
    UnexpectedFailure,
    environment_failure,
    execution_failure,
    invalid_arguments,
    unknown_tool,
    unusable_result,
)
from mcpenv.tools.registry import BoundTool
from mcpenv.tools.results import outcome_of
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.records import Plane, ToolOutcome
from mcpenv_client.types.status import REFUSED_CALL
from mcpenv_client.types.tools import ToolErrorType, ToolFailure
from mcpenv_client.wire.faults import describe_faults, faults

from .context import AmbientContext, EnvironmentContext
from .current_step import Step
from .instance import Instance
from .user_code import Deadline


class InputRequired(Exception):
    """Raised if a tool asks its MCP client for input (2026-07-28). This part of the call is not a step."""

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__("input required")
        self.result = result


class TimedOut(Exception):
    """Raised if a tool passed its deadline."""

    def __init__(self, name: str, limit_s: float | None, incident: str | None = None) -> None:
        super().__init__(f"{name}: no result within {limit_s:g} s" + (f" (incident {incident})" if incident else ""))


def run_tool(at: Instance, tool: BoundTool | None, scores: bool, step: Step) -> Awaitable[ToolOutcome]:
    """Run the own tool of a step.

    Args:
        tool: the tool; None if this mode has no tool of that name.
        scores: True to call a sync `score` after a sync tool, in the same thread. Its result is ``step.score``.

    Raises:
        as `ToolRun.run`.
    """
    return _refused(step) if tool is None else ToolRun(at, tool, step, scores=scores).run(step.call.arguments)


async def _refused(step: Step) -> ToolOutcome:
    at = step.owner
    return ToolOutcome(error=unknown_tool(step.call.name, list(at.tools.by_mode[at.mode])))


class ToolRun:
    """One run of an own tool. The arguments are as for `run_tool`."""

    __slots__ = ("_at", "_cancelled", "_clock", "_scores", "_step", "_tool")

    def __init__(self, at: Instance, tool: BoundTool, step: Step, *, scores: bool = False) -> None:
        self._at = at
        self._tool = tool
        self._step = step
        self._scores = scores
        self._cancelled = False
        self._clock = time.perf_counter()

    async def run(self, arguments: dict[str, Any]) -> ToolOutcome:
        """Run the tool.

        Raises:
            TimedOut: the deadline passed.
            InputRequired, MCPError: the MCP client must be asked; the call is not a step.
        """
        step = self._step
        kind, user_code = self._tool.kind, self._at.user_code
        try:
            args, kwargs = kind.validate(arguments)
        except ValidationError as error:
            problem, schema = describe_faults(error), kind.spec.input_schema
            return ToolOutcome(error=invalid_arguments(kind.name, problem, faults(error), schema))
        except BaseException as error:  # a user's validator may raise anything; pydantic converts only ValueError
            if user_code.lets_through(error):
                raise
            return self._failed(error)
        limit_s = user_code.limit(step.timeout_s, kind.timeout_s)
        try:
            with Deadline(limit_s):
                if kind.injected:
                    return await self._run_injected(limit_s, args, kwargs)
                context = AmbientContext()
                context._mcpenv_step = step
                with set_context(context):
                    if kind.is_async:
                        return await self._run_async(args, kwargs)
                    outcome, awaitable = await user_code.hand_over(
                        limit_s, self._run_sync, args, kwargs, client=step.client
                    )
                    return await self._run_async(args, kwargs, awaitable) if outcome is None else outcome
        except TimeoutError:
            # A sync tool may still run in its thread, and `_run_sync` must not score it after the step.
            self._cancelled = True
            raise TimedOut(kind.name, limit_s, user_code.incident) from None
        except asyncio.CancelledError:
            self._cancelled = True
            raise

    async def _run_injected(self, limit_s: float | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolOutcome:
        kind, user_code, step = self._tool.kind, self._at.user_code, self._step
        given = {**dict(zip(kind.parameter_names, args, strict=False)), **kwargs}
        context = EnvironmentContext(step)
        try:
            with set_context(context):
                async with context, resolve_dependencies(kind.twin, given) as resolved:
                    outcome, awaitable = None, None
                    if not kind.is_async:
                        outcome, awaitable = await user_code.hand_over(
                            limit_s, self._run_sync, (), resolved, client=step.client
                        )
                    return await self._run_async((), resolved, awaitable) if outcome is None else outcome
        except (InputRequired, MCPError):
            raise
        except BaseException as error:  # a dependency failed, not the tool
            if user_code.lets_through(error):
                raise
            return self._failed(error)

    async def _run_async(self, args: tuple[Any, ...], kwargs: dict[str, Any], awaitable: Any = None) -> ToolOutcome:
        """Call an async tool, or await the awaitable that a sync tool returned."""
        try:
            value = self._tool.fn(*args, **kwargs) if awaitable is None else awaitable
            value = [item async for item in value] if isinstance(value, AsyncGeneratorType) else await value
        except BaseException as error:  # the tool's boundary: SystemExit of a tool ends no server
            if self._at.user_code.lets_through(error):
                raise
            return self._failed(error)
        return self._outcome_of(value)

    def _run_sync(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ToolOutcome | None, Any]:
        """Call a sync tool, and a sync `score` after it. Return the outcome, or None and the awaitable to await."""
        inline, trace = self._at.user_code.runner.inline, self._step.trace
        try:
            value = self._tool.fn(*args, **kwargs)
            # A generator runs while it is read, so read it where the tool's code belongs.
            if inspect.isgenerator(value):
                value = list(value)
        except BaseException as error:
            if inline and isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise
            outcome = self._failed(error)
        else:
            if inspect.isawaitable(value) or isinstance(value, AsyncGeneratorType):
                return None, value  # to be awaited on the event loop, not in this thread
            outcome = self._outcome_of(value)
        if self._scores and not self._cancelled:  # after a cancellation the step is over
            try:
                with nullcontext() if trace is None else trace.score(outcome):
                    self._step.score = self._step.env.score(self._step.call, outcome)
            except BaseException as error:
                if inline and isinstance(error, KeyboardInterrupt | GeneratorExit):
                    raise
                # Raised later: here it would pass the boundary that makes it a failure of the tool.
                failure = environment_failure("score", error)
                failure.__cause__ = error
                self._step.score, self._step.fault = None, self._step.fault or failure
        return outcome, None

    def _outcome_of(self, value: Any) -> ToolOutcome:
        kind, duration_s = self._tool.kind, time.perf_counter() - self._clock
        if isinstance(value, InputRequiredResult):
            return asked_for_input(self._step, value)
        if isinstance(value, FastMCPResult) and value.is_error:
            self._step.status = REFUSED_CALL
        try:
            return outcome_of(kind, value, duration_s)
        except (NotSerializable, ToolError) as error:
            failure = unusable_result(kind.name, str(error))
        except BaseException as error:  # serializers are user code too
            if self._at.user_code.runner.inline and isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise
            raised = execution_failure(kind.name, error, self._at.mode)
            failure = UnexpectedFailure(error_type=raised.error_type, message=raised.message)
        return ToolOutcome(error=failure, duration_s=duration_s)

    def _failed(self, error: BaseException) -> ToolOutcome:
        if isinstance(error, MCPError) and error.error.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
            if self._step.call.plane is Plane.AGENT:
                raise error  # for the MCP client unchanged: the request cannot be served
            error = ToolError(error.error.message)
        failure = execution_failure(self._tool.kind.name, error, self._at.mode)
        return ToolOutcome(error=failure, duration_s=time.perf_counter() - self._clock)


def asked_for_input(step: Step, asked: InputRequiredResult) -> ToolOutcome:
    """Return the failure of a tool that asks for input without an MCP client.

    Raises:
        InputRequired: there is an MCP client.
    """
    if step.call.plane is Plane.AGENT:
        raise InputRequired(asked)
    message = "The tool asks its MCP client for input, but this call did not come from one."
    return ToolOutcome(error=ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=message))
