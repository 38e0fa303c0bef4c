"""One step: admit the call, run its tool, score it, and settle it into the episode.

A step is the call of a tool or an action of the environment's own. Every step of every plane takes this path.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged

from mcpenv.errors import Misuse
from mcpenv.failures import environment_failure, step_status
from mcpenv.tasks.assignment import Wanted
from mcpenv.tracing import StepTrace
from mcpenv_client.errors import EpisodeDone, ErrorCode, ExecutionError, InvalidMessage, NotSerializable, WireError
from mcpenv_client.types.actions import Action
from mcpenv_client.types.json_types import SCALARS
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Plane, StepRecord, ToolCall, ToolOutcome
from mcpenv_client.types.status import TOOL_RAISED, Stage, Status, StatusCode
from mcpenv_client.types.tools import ToolErrorType, ToolFailure
from mcpenv_client.types.values import refuse_unrecordable
from mcpenv_client.wire.protocol import EpisodeState, Event, next_state

from .current_step import NOT_SCORED, Step, current, inside
from .ending import hand_over
from .episode import OVER
from .instance import Instance
from .reset import reset
from .scoring import Scoring
from .tool_call import InputRequired, TimedOut

if TYPE_CHECKING:
    from .execution import AgentCall

Run = Callable[[Step], Awaitable[ToolOutcome]]
"""Runs the tool or the own action of a step.

Raises:
    TimedOut: the deadline passed.
    ExecutionError, OperationTimeout: the own action failed.
    InputRequired, MCPError: the MCP client must be asked; the call is not a step.
"""


async def step(
    at: Instance,
    name: str,
    arguments: dict[str, Any],
    run: Run,
    *,
    plane: Plane = Plane.PROCESS,
    principal: str | None = None,
    timeout_s: float | None = None,
    shared: bool = False,
    terminal: bool = False,
    episode_id: str | None = None,
    client: AgentCall | None = None,
) -> StepRecord:
    """Take one step.

    Args:
        name, arguments: the tool or the own action, for the record.
        run: runs it.
        shared: True if other shared steps may run at the same time.
        terminal: True if a successful step ends the episode.
        plane, principal, timeout_s, episode_id, client: as `Execution.call_tool` has them.

    Raises:
        Misuse: the caller is code of this environment.
        InvalidMessage: the arguments are nested too deep for a record.
        RateLimited: too many calls wait already.
        SessionLost: the session ends.
        EpisodeDone: the episode is over, or is not ``episode_id``.
        ExecutionError, OperationTimeout: user code other than the tool failed. The step is recorded with its fault.
        InputRequired, MCPError: the MCP client must be asked; there was no step.
    """
    shared = shared or (at.env.CONCURRENT_CALLS and not at.episode.orchestrated)
    if not SCALARS.issuperset(map(type, arguments.values())):
        try:
            refuse_unrecordable(arguments, "arguments")
        except NotSerializable as error:
            raise InvalidMessage(str(error)) from None
    admit(at, Event.STEP)
    with await at.lock.hold(shared=shared, limit=at.max_calls):
        if at.user_code.abandoned:  # while this call waited
            admit(at, Event.STEP)
        episode = at.episode
        try:
            # -- admit: begin an episode if none has begun, and count the step
            # A reset may have acquired the lock before this call.
            if episode_id is not None and episode_id != episode.id:
                raise EpisodeDone(OVER)
            if episode.state is EpisodeState.NEW:
                unasked = Wanted({}, at.hooks.options, at.tasks).found(None)
                await reset(at, unasked, None, None, implicit=True)
            env, scores = at.env, at.scoring
            if scores is not None and scores.ended:
                raise EpisodeDone("the episode is over, reset to begin another")
            call = ToolCall(name, arguments, episode.count_step(), plane, principal)
            now = Step(at, call, env, episode.kept, timeout_s, client, terminal)
            record: StepRecord | None = None
            token = current.set(now)
            at.logs = now.logs
            if client is not None:
                # A step that was cut off cannot be played again by another server.
                client.stoppable = at.journal is None
            try:
                # -- run
                if at.journal is not None:
                    await at.journal.step_begun(call)
                try:
                    outcome = await (_traced(now, run) if at.traces else run(now))
                except TimedOut as late:
                    # A score would run at the same time as a tool that could not be stopped.
                    now.score = None if at.user_code.abandoned else NOT_SCORED
                    outcome = _failure(now, ToolErrorType.TIMEOUT, str(late))
                now.ran, now.tool_s = True, outcome.duration_s
                if outcome.error is not None:
                    now.status = step_status(outcome.error)
                # The tool may have changed the world, so score and record the step even if the client disconnects.
                if client is not None:
                    client.stoppable = False
                # -- score
                reward = None
                if scores is not None:
                    reward = await scores.of_step(now, outcome)
                elif now.fault is not None:
                    raise now.fault
                if env.long_outputs is not None:
                    outcome = env.long_outputs.cut(call, outcome, episode.outputs)
                made = StepRecord(call, outcome, reward, started_at=now.started_at, logs=now.logs, status=now.status)
                if episode.judge(made, now.finish, terminal, env, abandoned=at.user_code.abandoned):
                    now.decided = made
                    if scores is not None and scores.owes_end:
                        await _score_end(at, scores, now, made)
                record = made
                return record
            except (InputRequired, MCPError):
                # No step was taken: the client must answer first, or cannot.
                episode.uncount_step()
                raise
            except BaseException as error:
                # Ctrl-C in process is no outcome. A decided end is recorded even then, so as not to be scored twice.
                if now.decided is not None or isinstance(error, WireError | asyncio.CancelledError):
                    record = _failed(now, scores, error)
                raise
            finally:
                # -- settle: the episode, the observer and the sink get the record
                current.reset(token)
                if record is not None and now.ran:
                    record.scoring_s = max(0.0, time.perf_counter() - now.clock - now.tool_s)
                if now.trace is not None:
                    now.trace.over(record)
                if record is not None:
                    dropped = episode.add(record, env.max_kept_steps, env.max_kept_bytes)
                    if at.observer is not None:
                        at.observer.step_over(record)
                    if dropped and at.sink is not None and episode.trajectory is not None:
                        at.sink.spill(episode.trajectory, dropped)
                    if at.journal is not None:
                        await at.journal.step_over(record)
        finally:
            at.last_active = time.monotonic()
            if episode.state is EpisodeState.DONE or at.tools.version != at.told_version:
                settle(at)


def admit(at: Instance, event: Event) -> None:
    """Refuse an operation that may not run. Call this before waiting for the lock, and again with the lock.

    Args:
        event: of the episode's state table.

    Raises:
        Misuse: the caller is code of this environment.
        ExecutionError: code that could not be stopped still runs here.
        EpisodeDone, SessionLost: as above, if the state of the episode refuses the operation anyway.
    """
    if current.get() is not None:
        refuse_inside(at)
    if at.user_code.abandoned:
        if at.episode.state is not EpisodeState.NEW:
            next_state(at.episode.state, event)
        incident = at.user_code.incident
        raise ExecutionError(
            f"code that could not be stopped still runs in this environment (incident {incident}); "
            "begin with a new one",
            incident=incident,
        )


def refuse_inside(at: Instance) -> None:
    """Raise `Misuse` if the caller is code of this environment."""
    if inside(at):
        raise Misuse(
            "this environment is in the middle of a step: its own tools and reset cannot step, reset or close it; "
            "call the function itself"
        )


def settle(at: Instance) -> None:
    """Complete an operation that still holds the lock: pass on an ended episode, and announce changed tools."""
    # Concurrent steps all belong to the episode, which is complete when the last of them has ended.
    if at.episode.state is EpisodeState.DONE and at.lock.holders == 1:
        hand_over(at)
    if at.tools.version != at.told_version:
        at.told_version = at.tools.version
        at.subscribers.tell(ToolsListChanged())


async def run_action(at: Instance, action: Action, now: Step) -> ToolOutcome:
    """Take one of the environment's own actions.

    Raises:
        ExecutionError: the action raised, or returned no observation.
        OperationTimeout: the action passed its deadline.
    """
    clock = time.perf_counter()
    observation = await at.user_code.stage("act", lambda: at.user_code.call(at.env.act, action), now.timeout_s)
    if not isinstance(observation, Observation):
        raise environment_failure("act", TypeError(f"act returned {type(observation).__name__}, not an Observation"))
    duration_s = time.perf_counter() - clock
    # The author may return the same observation again, with other contents. What has no copy is kept as it is.
    with suppress(Exception):
        observation = observation.model_copy(deep=True)
    return ToolOutcome(None, None, observation, duration_s)


async def _traced(now: Step, run: Run) -> ToolOutcome:
    """Begin the spans of the step, and run its tool in one of them."""
    at = now.owner
    now.trace = StepTrace(now.call, at.session_id if at.observer is None else at.observer.label, at.episode.id)
    with now.trace.tool(InputRequired, MCPError):
        outcome = await run(now)
        now.trace.tool_over(outcome)
        return outcome


async def _score_end(at: Instance, scores: Scoring, now: Step, record: StepRecord) -> None:
    """Add the reward of the end to the record of the step that ends the episode."""
    now.settled = True  # from here on `finish` is refused, as the end is decided
    if at.user_code.abandoned:
        record.fault = ErrorCode.TIMEOUT.value  # the code that still runs may change the world
        if record.status.code is not StatusCode.ENV_ERROR:
            record.status = Status(StatusCode.ENV_ERROR, Stage.SCORE, True, "timeout")
        return
    scores.ended = True
    await at.lock.alone()  # concurrent tools would change the world that is scored
    ended = at.episode.with_last(record)
    of_end = await scores.of_end(ended)
    at.episode.take_verification(ended)
    record.reward = scores.total(record.reward, of_end)


def _failed(now: Step, scores: Scoring | None, error: BaseException) -> StepRecord:
    """Return the record of a step that an error of the environment or a cancellation cut short."""
    at = now.owner
    if isinstance(error, WireError):
        outcome = _failure(now, ToolErrorType.EXECUTION_ERROR, str(error))
        now.status, fault = error.status or TOOL_RAISED, error.code.value
    else:
        outcome = _failure(now, ToolErrorType.TRANSPORT_ERROR, str(error) or "The call was cancelled.")
        now.status, fault = Status(StatusCode.CANCELLED, Stage.SCORE if now.ran else Stage.TOOL, True), None
    record = StepRecord(now.call, outcome, started_at=now.started_at, logs=now.logs, status=now.status, fault=fault)
    decided = now.decided
    if decided is not None:
        # The episode is over although scoring its end failed. It is not scored a second time.
        record.terminated, record.truncated, record.reason = decided.terminated, decided.truncated, decided.reason
        unscored = True
    else:
        # The close ends the episode, for its own reason.
        abandoned = at.user_code.abandoned and not at.closing
        ends = at.episode.judge(record, now.finish, now.terminal, now.env, abandoned=abandoned)
        unscored = ends and scores is not None and scores.owes_end
    if unscored and record.fault is None:
        record.fault = ErrorCode.CANCELLED.value
    return record


def _failure(now: Step, kind: ToolErrorType, message: str) -> ToolOutcome:
    failure = ToolFailure(error_type=kind, message=message)
    return ToolOutcome(error=failure, duration_s=time.perf_counter() - now.clock)


__all__ = ["Run", "Step", "admit", "current", "refuse_inside", "run_action", "settle", "step"]
