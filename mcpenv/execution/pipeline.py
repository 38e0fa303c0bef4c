"""The pipeline of one step: run its tool or action, score it, decide whether the episode ends, record it.

`Execution` holds the lock meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, Protocol

from fastmcp.exceptions import ToolError
from fastmcp.server.context import set_context
from fastmcp.server.dependencies import resolve_dependencies
from fastmcp.tools.base import ToolResult as FastMCPResult
from mcp.shared.exceptions import MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY, InputRequiredResult
from pydantic import ValidationError

from mcpenv.failures import UnexpectedFailure, environment_failure, execution_failure, step_status, unusable_result
from mcpenv.tools.context.cutting import cut
from mcpenv.tools.registry import BoundTool, Toolbox
from mcpenv.tools.results import outcome_of
from mcpenv.tracing import StepTrace
from mcpenv_client.errors import ErrorCode, NotSerializable, WireError
from mcpenv_client.types.actions import Action
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Plane, StepRecord, ToolOutcome
from mcpenv_client.types.status import REFUSED_CALL, TOOL_RAISED, Stage, Status, StatusCode
from mcpenv_client.types.tools import Mode, ToolErrorType, ToolFailure
from mcpenv_client.wire.protocol import describe_faults, faults

from .concurrency.lock import Lock
from .context import AmbientContext, EnvironmentContext
from .episode import Episode
from .observer import Observer
from .scoring import Scoring
from .sink import EpisodeSink
from .step import NOT_SCORED, Place, Step, current
from .user_code import UserCode, UserEnvironment

Run = Callable[[Step], Awaitable[ToolOutcome]]
"""Runs the tool or the own action of a step."""


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


class Instance(Site, Protocol):
    """The environment instance that takes steps."""

    scoring: Scoring | None
    lock: Lock
    sink: EpisodeSink | None
    observer: Observer | None
    traces: bool


async def take_step(at: Instance, step: Step, run: Run) -> StepRecord:
    """Take a step.

    Args:
        run: runs the tool or the action.

    Raises:
        ExecutionError, OperationTimeout: user code other than the tool failed. The step is recorded with its fault.
        InputRequired, MCPError: the MCP client must be asked; there was no step.
    """
    if not at.traces:
        return await _take(at, step, run)
    label = at.session_id if at.observer is None else at.observer.label
    with StepTrace(step.call, label, at.episode.id) as step.trace:
        return await _take(at, step, run)


async def _take(at: Instance, step: Step, run: Run) -> StepRecord:
    # `close` may empty the instance while a tool that could not be stopped still runs.
    env, episode, scores = at.env, at.episode, at.scoring
    record: StepRecord | None = None
    token, clock, tool_s = current.set(step), time.perf_counter(), 0.0
    try:
        try:
            outcome = await run(step) if step.trace is None else await _traced(step.trace, step, run)
        except TimedOut as late:
            # A score would run beside the tool that could not be stopped.
            step.score = None if at.user_code.abandoned else NOT_SCORED
            outcome = _failure(step, ToolErrorType.TIMEOUT, str(late))
        step.ran, tool_s = True, outcome.duration_s
        if outcome.error is not None:
            step.status = step_status(outcome.error)
        if step.client is not None:
            step.client.stoppable = False
        reward = None
        if scores is not None:
            reward = await scores.of_step(step, outcome)
        elif step.fault is not None:
            raise step.fault
        if env.long_outputs is not None:
            outcome = cut(step.call, outcome, episode.outputs, env.long_outputs)
        made = StepRecord(step.call, outcome, reward, started_at=step.started_at, logs=step.logs, status=step.status)
        if episode.judge(made, step.finish, step.terminal, env, abandoned=at.user_code.abandoned):
            step.decided = made
            if scores is not None and scores.owes_end:
                await _score_end(at, scores, step, made)
        record = made
        return record
    except (InputRequired, MCPError):
        episode.uncount_step()
        raise
    except BaseException as error:
        if step.decided is not None or isinstance(error, WireError | asyncio.CancelledError):
            record = _failed(at, env, scores, step, error)
        raise
    finally:
        current.reset(token)
        if record is not None:
            if step.ran:
                record.scoring_s = max(0.0, time.perf_counter() - clock - tool_s)
            dropped = episode.add(record, env.max_kept_steps)
            if at.observer is not None:
                at.observer.step_over(record)
            if step.trace is not None:
                step.trace.over(record)
            if dropped and at.sink is not None and episode.trajectory is not None:
                at.sink.spill(episode.trajectory, dropped)


async def _traced(trace: StepTrace, step: Step, run: Run) -> ToolOutcome:
    with trace.tool(InputRequired, MCPError):
        outcome = await run(step)
        trace.tool_over(outcome)
        return outcome


async def _score_end(at: Instance, scores: Scoring, step: Step, record: StepRecord) -> None:
    """Add the reward of the end to the record of the step that ends the episode."""
    step.settled = True
    if at.user_code.abandoned:
        record.fault = ErrorCode.TIMEOUT.value  # the code that still runs may change the world
        if record.status.code is not StatusCode.ENV_ERROR:
            record.status = Status(StatusCode.ENV_ERROR, Stage.SCORE, True, "timeout")
        return
    scores.ended = True
    await at.lock.alone()  # concurrent tools would change the world that is scored
    ended = at.episode.with_last(record)
    of_end = await scores.of_end(ended)
    assert at.episode.trajectory is not None
    at.episode.trajectory.verified = ended.verified
    record.reward = scores.total(record.reward, of_end)


def _failed(at: Instance, env: UserEnvironment, scores: Scoring | None, step: Step, error: BaseException) -> StepRecord:
    """Return the record of a step that an error of the environment or a cancellation cut short."""
    kind = ToolErrorType.EXECUTION_ERROR if isinstance(error, WireError) else ToolErrorType.TRANSPORT_ERROR
    outcome = _failure(step, kind, str(error) or "The call was cancelled.")
    if isinstance(error, WireError):
        step.status = error.status or TOOL_RAISED
    else:
        step.status = Status(StatusCode.CANCELLED, Stage.SCORE if step.ran else Stage.TOOL, True)
    cut = StepRecord(step.call, outcome, started_at=step.started_at, logs=step.logs, status=step.status)
    if isinstance(error, WireError):
        cut.fault = error.code.value
    decided = step.decided
    if decided is None:
        ends = at.episode.judge(cut, step.finish, step.terminal, env, abandoned=at.user_code.abandoned)
        if ends and cut.fault is None and scores is not None and scores.owes_end:
            cut.fault = ErrorCode.CANCELLED.value
        return cut
    # The episode is over although scoring its end failed. It is not scored a second time.
    cut.terminated, cut.truncated, cut.reason = decided.terminated, decided.truncated, decided.reason
    if cut.fault is None:
        cut.fault = ErrorCode.CANCELLED.value
    return cut


def _failure(step: Step, kind: ToolErrorType, message: str) -> ToolOutcome:
    failure = ToolFailure(error_type=kind, message=message)
    return ToolOutcome(error=failure, duration_s=time.perf_counter() - step.clock)


async def run_action(at: Site, action: Action, step: Step) -> ToolOutcome:
    """Take an action of the environment's own.

    Raises:
        ExecutionError: it raised, or returned no observation.
        OperationTimeout: it passed its deadline.
    """
    clock = time.perf_counter()
    observation = await at.user_code.stage("act", lambda: at.user_code.call(at.env.act, action), step.timeout_s)
    if not isinstance(observation, Observation):
        wrong = TypeError(f"act returned a {type(observation).__name__}; return an Observation")
        raise environment_failure("act", wrong)
    return ToolOutcome(None, None, observation, time.perf_counter() - clock)


async def run_tool(at: Site, tool: BoundTool | None, step: Step) -> ToolOutcome:
    """Run the own tool of a step.

    Raises:
        TimedOut: the deadline passed.
        InputRequired, MCPError: the MCP client must be asked; the call is not a step.
    """
    if tool is None:
        message = f"Unknown tool: {step.call.name!r}"
        return ToolOutcome(error=ToolFailure(error_type=ToolErrorType.TOOL_NOT_FOUND, message=message))
    scores = at.episode.orchestrated and not at.env._score_is_async
    return await ToolRun(at, tool, step, scores=scores).run(step.call.arguments)


class ToolRun:
    """One run of an own tool: validate the arguments, call the tool where its code belongs, convert its result.

    Args:
        scores: True to call a sync `score` after a sync tool, in the same thread. Its result is ``step.score``.
    """

    __slots__ = ("_cancelled", "_clock", "_env", "_scores", "_site", "_step", "_tool")

    def __init__(self, site: Site, tool: BoundTool, step: Step, *, scores: bool = False) -> None:
        self._site = site
        self._tool = tool
        self._step = step
        self._env = site.env
        self._scores = scores
        self._cancelled = False
        self._clock = time.perf_counter()

    async def run(self, arguments: dict[str, Any]) -> ToolOutcome:
        """Run the tool.

        Raises:
            TimedOut: the deadline passed.
            InputRequired, MCPError: the MCP client must be asked; the call is not a step.
        """
        kind, user_code = self._tool.kind, self._site.user_code
        try:
            args, kwargs = kind.validate(arguments)
        except ValidationError as error:
            message = f"{kind.name}: invalid arguments: {describe_faults(error)}"
            return ToolOutcome(
                error=ToolFailure(error_type=ToolErrorType.INVALID_ARGS, message=message, errors=faults(error))
            )
        except BaseException as error:  # a user's validator may raise anything; pydantic converts only ValueError
            if user_code.lets_through(error):
                raise
            return self._failed(error)
        deadline = user_code.deadline(self._step.timeout_s, kind.timeout_s)
        try:
            with deadline:
                if kind.injected:
                    return await self._call_injected(deadline.limit_s, args, kwargs)
                with set_context(AmbientContext(self._step)):
                    return await self._call(deadline.limit_s, args, kwargs)
        except TimeoutError:
            self._cancelled = True
            raise TimedOut(kind.name, deadline.limit_s, user_code.incident) from None
        except asyncio.CancelledError:
            self._cancelled = True
            raise

    async def _call_injected(self, limit_s: float | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolOutcome:
        kind = self._tool.kind
        given = {**dict(zip(kind.parameter_names, args, strict=False)), **kwargs}
        context = EnvironmentContext(self._step)
        try:
            with set_context(context):
                async with context, resolve_dependencies(kind.twin, given) as resolved:
                    return await self._call(limit_s, (), resolved)
        except (InputRequired, MCPError):
            raise
        except BaseException as error:  # a dependency failed, not the tool
            if self._site.user_code.lets_through(error):
                raise
            return self._failed(error)

    async def _call(self, limit_s: float | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolOutcome:
        tool, awaitable = self._tool, None
        if not tool.kind.is_async:
            outcome, awaitable = await self._site.user_code.hand_over(
                limit_s, self._call_sync, args, kwargs, client=self._step.client
            )
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
        inline, trace = self._site.user_code.runner.inline, self._step.trace
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
                with nullcontext() if trace is None else trace.score(outcome):
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
            return asked_for_input(self._step, value)
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


def asked_for_input(step: Step, asked: InputRequiredResult) -> ToolOutcome:
    """Return the failure of a tool that asks for input without an MCP client.

    Raises:
        InputRequired: there is an MCP client.
    """
    if step.call.plane is Plane.AGENT:
        raise InputRequired(asked)
    message = "The tool asks its MCP client for input, but this call did not come from one."
    return ToolOutcome(error=ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=message))
