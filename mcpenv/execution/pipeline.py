"""The pipeline of one step: run, score and record it. `Execution` holds the lock meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from mcp.shared.exceptions import MCPError

from mcpenv.failures import environment_failure, step_status
from mcpenv.tracing import StepTrace
from mcpenv_client.errors import ErrorCode, WireError
from mcpenv_client.types.actions import Action
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Reward, StepRecord, ToolOutcome
from mcpenv_client.types.status import TOOL_RAISED, Stage, Status, StatusCode
from mcpenv_client.types.tools import ToolErrorType, ToolFailure

from .concurrency.lock import Lock
from .observer import Observer
from .scoring import Scoring
from .sink import EpisodeSink
from .step import NOT_SCORED, Step, current
from .tool_call import InputRequired, Site, TimedOut

Run = Callable[[Step], Awaitable[ToolOutcome]]
"""Runs the tool or the own action of a step."""


class Instance(Site, Protocol):
    """The environment instance that takes steps."""

    scoring: Scoring | None
    lock: Lock
    sink: EpisodeSink | None
    observer: Observer | None
    traces: bool


async def run_action(at: Instance, action: Action, step: Step) -> ToolOutcome:
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


class Pipeline:
    """One step on its way: run, score, decide whether the episode ends with it, record.

    Args:
        at: the instance. `close` may empty it while a tool that could not be stopped still runs.
        run: runs the tool or the action.
        terminal: True if the tool is declared to end the episode.
    """

    def __init__(self, at: Instance, step: Step, run: Run, terminal: bool = False) -> None:
        self._env, self._scoring = at.env, at.scoring
        self._at = at
        self._step = step
        self._run = run
        self._terminal = terminal
        self._started_at, self._clock = time.time(), time.perf_counter()
        self._ran = False
        self._record: StepRecord | None = None  # set once the end of the episode is decided

    async def take(self) -> StepRecord:
        """Take the step.

        Raises:
            ExecutionError, OperationTimeout: user code other than the tool failed. The step is recorded with its fault.
            InputRequired, MCPError: the MCP client must be asked; there was no step.
        """
        if not self._at.traces:
            return await self._take()
        at, call = self._at, self._step.call
        label = at.session_id if at.observer is None else at.observer.label
        with StepTrace(call, label, at.episode.id) as self._step.trace:
            return await self._take()

    async def _take(self) -> StepRecord:
        token = current.set(self._step)
        try:
            record = await self._run_and_score()
        except (InputRequired, MCPError):
            self._at.episode.uncount_step()
            raise
        except BaseException as error:
            if self._record is None and not isinstance(error, WireError | asyncio.CancelledError):
                raise
            self._add(self._failed(error))
            raise
        finally:
            current.reset(token)
        self._add(record)
        return record

    async def _run_and_score(self) -> StepRecord:
        step, scoring = self._step, self._scoring
        outcome = await self._outcome()
        self._ran = True
        if outcome.error is not None:
            step.status = step_status(outcome.error)
        if step.client is not None:
            step.client.stoppable = False
        reward = None
        if scoring is not None:
            reward = await scoring.of_step(step, outcome)
        elif step.fault is not None:
            raise step.fault
        record = self._new_record(outcome, reward)
        self._judge(record)
        self._record = record
        if record.done and scoring is not None and scoring.owes_end:
            step.settled = True
            if self._at.user_code.abandoned:
                record.fault = ErrorCode.TIMEOUT.value  # the code that still runs may change the world
                if record.status.code is not StatusCode.ENV_ERROR:
                    record.status = Status(StatusCode.ENV_ERROR, Stage.SCORE, True, "timeout")
            else:
                record.reward = await self._with_end(scoring, record)
        return record

    async def _outcome(self) -> ToolOutcome:
        trace = self._step.trace
        try:
            if trace is None:
                return await self._run(self._step)
            with trace.tool(InputRequired, MCPError):
                outcome = await self._run(self._step)
                trace.tool_over(outcome)
                return outcome
        except TimedOut as late:
            # A score would run beside the tool that could not be stopped.
            self._step.score = None if self._at.user_code.abandoned else NOT_SCORED
            return self._failure(ToolErrorType.TIMEOUT, str(late))

    async def _with_end(self, scoring: Scoring, record: StepRecord) -> Reward | None:
        """Return the reward of the step that ends the episode, with the reward of the end."""
        scoring.ended = True
        await self._at.lock.alone()  # concurrent tools would change the world that is scored
        ended = self._at.episode.with_last(record)
        of_end = await scoring.of_end(ended)
        assert self._at.episode.trajectory is not None
        self._at.episode.trajectory.verified = ended.verified
        return scoring.total(record.reward, of_end)

    def _failed(self, error: BaseException) -> StepRecord:
        """Return the record of a step that an error of the environment or a cancellation cut short."""
        kind = ToolErrorType.EXECUTION_ERROR if isinstance(error, WireError) else ToolErrorType.TRANSPORT_ERROR
        outcome = self._failure(kind, str(error) or "The call was cancelled.")
        if isinstance(error, WireError):
            self._step.status = error.status or TOOL_RAISED
        else:
            self._step.status = Status(StatusCode.CANCELLED, Stage.SCORE if self._ran else Stage.TOOL, True)
        cut = self._new_record(outcome)
        if isinstance(error, WireError):
            cut.fault = error.code.value
        decided, scoring = self._record, self._scoring
        if decided is None:
            self._judge(cut)
            if cut.done and cut.fault is None and scoring is not None and scoring.owes_end:
                cut.fault = ErrorCode.CANCELLED.value
            return cut
        # The episode is over although scoring its end failed. It is not scored a second time.
        cut.terminated, cut.truncated, cut.reason = decided.terminated, decided.truncated, decided.reason
        if cut.fault is None:
            cut.fault = ErrorCode.CANCELLED.value
        return cut

    def _new_record(self, outcome: ToolOutcome, reward: Reward | None = None) -> StepRecord:
        step = self._step
        return StepRecord(step.call, outcome, reward, started_at=self._started_at, logs=step.logs, status=step.status)

    def _judge(self, record: StepRecord) -> None:
        """Decide whether the episode ends with the step."""
        cut_short = self._cut_short(record.outcome)
        self._at.episode.judge(record, self._step.finish, self._terminal, cut_short, self._env.max_steps)

    def _cut_short(self, outcome: ToolOutcome) -> str | None:
        """Return the reason why the world cannot continue after the step; None if it can."""
        if self._at.user_code.abandoned:
            return "a tool could not be stopped"
        timed_out = outcome.error is not None and outcome.error.error_type is ToolErrorType.TIMEOUT
        return "timeout" if timed_out and not self._env.SURVIVES_TIMEOUT else None

    def _failure(self, kind: ToolErrorType, message: str) -> ToolOutcome:
        failure = ToolFailure(error_type=kind, message=message)
        return ToolOutcome(error=failure, duration_s=time.perf_counter() - self._clock)

    def _add(self, record: StepRecord) -> None:
        """Add the step to the trajectory, and spill the records that it no longer holds."""
        episode, sink = self._at.episode, self._at.sink
        dropped = episode.add(record, self._env.max_kept_steps)
        if self._at.observer is not None:
            self._at.observer.step_over(record)
        if self._step.trace is not None:
            self._step.trace.over(record)
        if dropped and sink is not None and episode.trajectory is not None:
            sink.spill(episode.trajectory, dropped)
