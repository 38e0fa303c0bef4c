"""The call of a tool: validate the arguments, run the tool where its code belongs, and convert its result."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from fastmcp.exceptions import ToolError
from fastmcp.server.context import set_context
from fastmcp.server.dependencies import resolve_dependencies
from fastmcp.tools.base import ToolResult as FastMCPResult
from mcp.shared.exceptions import MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY, InputRequiredResult
from pydantic import ValidationError

from mcpenv.errors import InvalidTool, StartupError
from mcpenv.failures import UnexpectedFailure, environment_failure, execution_failure, unusable_result
from mcpenv.tools.registry import BoundTool, Toolbox
from mcpenv.tools.results import outcome_of
from mcpenv.tracing import scoring
from mcpenv_client.errors import NotSerializable, WireError
from mcpenv_client.types.records import LogEntry, Plane, ToolOutcome
from mcpenv_client.types.status import COMPLETED, REFUSED_CALL
from mcpenv_client.types.tools import Mode, ToolErrorType, ToolFailure, ToolResult
from mcpenv_client.wire.protocol import describe_faults

from .context import AmbientContext, EnvironmentContext
from .episode import Episode
from .mounted_server import MountedServer, Visible
from .step import Place, Step
from .user_code import Deadline, UserCode, UserEnvironment


class InputRequired(Exception):
    """The exception for a tool that asks its MCP client for input (2026-07-28). This part of the call is not a step."""

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__("input required")
        self.result = result


class TimedOut(Exception):
    """The exception for a tool that passed its deadline."""

    def __init__(self, name: str, limit_s: float | None, incident: str | None = None) -> None:
        super().__init__(f"{name}: no result within {limit_s:g} s" + (f" (incident {incident})" if incident else ""))


class Site(Place, Protocol):
    """The environment instance whose tools are called."""

    env: UserEnvironment
    user_code: UserCode
    mode: Mode
    tools: Toolbox
    episode: Episode
    mounted: MountedServer | None


async def run_tool(site: Site, tool: BoundTool | None, step: Step) -> ToolOutcome:
    """Run the tool of a step, through the mounted server if there is one.

    A sync `score` of a sync tool runs after it in the same thread; its result is ``step.score``.

    Raises:
        TimedOut: the deadline passed.
        InputRequired, MCPError: the MCP client must be asked; the call is not a step.
    """
    if site.mounted is not None:
        return await _run_through(site, site.mounted, step)
    if tool is None:
        message = f"Unknown tool: {step.call.name!r}"
        return ToolOutcome(error=ToolFailure(error_type=ToolErrorType.TOOL_NOT_FOUND, message=message))
    scores = site.episode.orchestrated and not site.env._score_is_async
    return await _ToolRun(site, tool, step, scores).run(step.call.arguments)


class _ToolRun:
    """One run of an own tool.

    Args:
        scores: True to call `score` in the thread of a sync tool.
    """

    def __init__(self, site: Site, tool: BoundTool, step: Step, scores: bool) -> None:
        self._site = site
        self._tool = tool
        self._step = step
        self._env = site.env
        self._scores = scores
        self._cancelled = False
        self._limit = site.user_code.limit(step.timeout_s, tool.kind.timeout_s)
        self._clock = time.perf_counter()

    async def run(self, arguments: dict[str, Any]) -> ToolOutcome:
        kind = self._tool.kind
        try:
            args, kwargs = kind.validate(arguments)
        except ValidationError as error:
            message = f"{kind.name}: invalid arguments: {describe_faults(error)}"
            return ToolOutcome(error=ToolFailure(error_type=ToolErrorType.INVALID_ARGS, message=message))
        except BaseException as error:  # a user's validator may raise anything; pydantic converts only ValueError
            if self._site.user_code.lets_through(error):
                raise
            return self._failed(error)
        try:
            with Deadline(self._limit):
                if kind.injected:
                    return await self._call_injected(args, kwargs)
                with set_context(AmbientContext(self._step)):
                    return await self._call(args, kwargs)
        except TimeoutError:
            self._cancelled = True
            raise TimedOut(kind.name, self._limit, self._site.user_code.incident) from None
        except asyncio.CancelledError:
            self._cancelled = True
            raise

    async def _call_injected(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolOutcome:
        kind = self._tool.kind
        given = {**dict(zip(kind.parameter_names, args, strict=False)), **kwargs}
        context = EnvironmentContext(self._step)
        try:
            with set_context(context):
                async with context, resolve_dependencies(kind.twin, given) as resolved:
                    return await self._call((), resolved)
        except (InputRequired, MCPError):
            raise
        except BaseException as error:  # a dependency failed, not the tool
            if self._site.user_code.lets_through(error):
                raise
            return self._failed(error)

    async def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolOutcome:
        tool, awaitable = self._tool, None
        if not tool.kind.is_async:
            _set_stoppable(self._step, False)
            outcome, awaitable = await self._site.user_code.hand_over(self._limit, self._call_sync, args, kwargs)
            _set_stoppable(self._step, True)
            if outcome is not None:
                return outcome  # type: ignore[no-any-return]
        try:
            value: Any = tool.fn(*args, **kwargs) if tool.kind.is_async else awaitable
            value = [item async for item in value] if inspect.isasyncgen(value) else await value
        except BaseException as error:  # the tool's boundary: SystemExit of a tool ends no server
            if self._site.user_code.lets_through(error):
                raise
            return self._failed(error)
        return self._outcome_of(value)

    def _call_sync(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ToolOutcome | None, Any]:
        """Call a sync tool, and a sync `score` after it. Return the outcome, or None and the awaitable to await."""
        inline = self._site.user_code.runner.inline
        try:
            value = self._tool.fn(*args, **kwargs)
            if inspect.isgenerator(value):
                value = list(value)
        except BaseException as error:
            if inline and isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise
            outcome = self._failed(error)
        else:
            if inspect.isawaitable(value) or inspect.isasyncgen(value):
                return None, value
            outcome = self._outcome_of(value)
        if self._scores and not self._cancelled:  # after a cancellation the step is over
            try:
                with scoring(self._step.trace, outcome):
                    self._step.score = self._env.score(self._step.call, outcome)
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
            return _asked_for_input(self._step, value)
        if isinstance(value, FastMCPResult) and value.is_error:
            self._step.status = REFUSED_CALL
        try:
            return outcome_of(kind, value, duration_s)
        except NotSerializable as error:
            failure = unusable_result(kind.name, str(error))
        except BaseException as error:  # serializers are user code too
            if self._site.user_code.runner.inline and isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise
            raised = execution_failure(kind.name, error, self._site.mode)
            # Also a `ToolError`, which FastMCP raises for a value that does not fit the tool's output schema.
            failure = UnexpectedFailure(error_type=raised.error_type, message=raised.message)
        return ToolOutcome(error=failure, duration_s=duration_s)

    def _failed(self, error: BaseException) -> ToolOutcome:
        if isinstance(error, MCPError) and error.error.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
            if self._step.call.plane is Plane.AGENT:
                raise error  # for the MCP client unchanged: the request cannot be served
            error = ToolError(error.error.message)
        failure = execution_failure(self._tool.kind.name, error, self._site.mode)
        return ToolOutcome(error=failure, duration_s=time.perf_counter() - self._clock)


async def _run_through(site: Site, server: MountedServer, step: Step) -> ToolOutcome:
    """Run a call through the mounted server and its middleware."""
    clock, limit = time.perf_counter(), site.user_code.limit(step.timeout_s)
    own = _OwnCall(site, server, step)
    try:
        with set_context(EnvironmentContext(step)), Deadline(limit):
            try:
                outcome = await server.call_tool(own.tools, step.call.name, step.call.arguments, own)
            except BaseException as error:  # the boundary of middleware, and of tools that FastMCP runs
                for_client = isinstance(error, MCPError) and step.call.plane is Plane.AGENT
                refused = isinstance(error, WireError | InvalidTool | StartupError)
                if for_client or refused or site.user_code.lets_through(error):
                    raise
                outcome = execution_failure(step.call.name, error, site.mode)
    except TimeoutError:
        raise TimedOut(step.call.name, limit, site.user_code.incident) from None
    duration_s = time.perf_counter() - clock
    if isinstance(outcome, InputRequiredResult):
        return _asked_for_input(step, outcome)
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
        ran: True if the tool itself was reached. Middleware may answer in its place.
        value: the tool's return value.
    """

    def __init__(self, site: Site, server: MountedServer, step: Step) -> None:
        self._site = site
        self._step = step
        self.tools = visible(site, server)
        self.logs: list[LogEntry] = step.logs
        self.number = step.call.step
        self.ran = False
        self.value: Any = None

    async def run_sync(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a sync function of the server where the environment's sync code runs."""
        limit = self._site.user_code.limit(self._step.timeout_s)
        _set_stoppable(self._step, False)
        value = await self._site.user_code.hand_over(limit, partial(fn, *args, **kwargs))
        _set_stoppable(self._step, True)
        return value

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolResult | ToolFailure | InputRequiredResult:
        """Run the own tool of that name."""
        tool = self.tools.get(name)
        if tool is None:
            return ToolFailure(error_type=ToolErrorType.TOOL_NOT_FOUND, message=f"Unknown tool: {name!r}")
        try:
            outcome = await _ToolRun(self._site, tool, self._step, scores=False).run(arguments)
        except InputRequired as asked:
            return asked.result
        except TimedOut as late:
            return ToolFailure(error_type=ToolErrorType.TIMEOUT, message=str(late))
        self.ran, self.value = True, outcome.value
        answer = outcome.error or outcome.result
        assert answer is not None
        return answer


def _set_stoppable(step: Step, stoppable: bool) -> None:
    """Set whether the step ends if its client leaves."""
    if step.client is not None:
        step.client.stoppable = stoppable


def visible(site: Site, server: MountedServer) -> Visible:
    """Return the tools that the mounted server shows."""
    session_id = f"{site.session_id}-{site.episode.number}"
    return Visible(site.tools, site.mode, session_id, site.subscribers, server.modes, server.hidden)


def _asked_for_input(step: Step, asked: InputRequiredResult) -> ToolOutcome:
    """Return the failure of a tool that asks for input without an MCP client.

    Raises:
        InputRequired: there is an MCP client.
    """
    if step.call.plane is Plane.AGENT:
        raise InputRequired(asked)
    message = "The tool asks its MCP client for input, but this call did not come from one."
    return ToolOutcome(error=ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=message))
