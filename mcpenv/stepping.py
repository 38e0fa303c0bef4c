"""Stepping: one step of an environment instance, from the call to its record. Whose turn it is, `Execution` decides.

validate -> deadline -> run -> convert -> score -> rubric -> verify -> record
"""

from __future__ import annotations

import asyncio
import inspect
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.context import set_context
from mcp.shared.exceptions import MCPError
from mcp_types import InputRequiredResult

from mcpenv_client.actions import Action
from mcpenv_client.errors import ErrorCode, WireError
from mcpenv_client.observations import Observation
from mcpenv_client.records import PLAIN_TYPES, Plane, Reward, StepRecord, ToolOutcome
from mcpenv_client.tools import Mode, ToolErrorType, ToolFailure

from .author import Author, AuthorCode
from .cancellation import InFlight
from .changes import Changes
from .context import EnvironmentContext
from .episode import Episode
from .failures import environment_failure, execution_failure
from .handed_in import HandedIn
from .judging import Judging
from .loops import Home
from .own_call import OwnCall
from .rewards import reward_of, total
from .sink import EpisodeSink
from .step import Step, current
from .tool_run import NOT_SCORED, SCORES, InputRequired, TimedOut, ToolRun, asked_for_input
from .toolbox import BoundTool, Toolbox, Visible

Run = Callable[[Step, dict[str, Any]], Awaitable[tuple[ToolOutcome, Any]]]
"""Runs what was called with these arguments: the outcome, and the score if it was made on the way."""


class Stepping:
    """An environment instance, its tools and its episode, and how a step of it is taken.

    Attributes:
        environment_type: the name of the instance's class.
        mode: which tools are visible.
        tools: the environment's own tools.
        handed_in: the FastMCP server that the author handed in, if any.
        session_id: names this instance for tools that keep state.
        changes: who is told when its tools, prompts or resources change.
        sink: where episodes go when they are over; None: nowhere.
    """

    __slots__ = (
        "__weakref__",
        "_in_flight",
        "_judging",
        "author",
        "changes",
        "env",
        "environment_type",
        "episode",
        "handed_in",
        "home",
        "mode",
        "session_id",
        "sink",
        "tools",
    )

    def __init__(self, env: Author) -> None:
        self.env = env
        self.environment_type = type(env).__name__
        self.mode = Mode.SIMULATION
        self.tools = Toolbox()
        self.handed_in: HandedIn | None = None
        self.episode = Episode()
        self.author = AuthorCode(self, env.THREAD_AFFINE)
        self.session_id = secrets.token_hex(8)
        self.home = Home()
        self.changes = Changes()
        self.sink: EpisodeSink | None = None
        self._judging: Judging | None = None  # that of the running episode
        self._in_flight = InFlight()

    @property
    def server(self) -> FastMCP | None:
        """The handed-in server."""
        return None if self.handed_in is None else self.handed_in.server

    async def _step(
        self, step: Step, run: Run, tool: BoundTool | None, on_ran: Callable[[], None] | None = None
    ) -> StepRecord:
        """Run, score and record one step.

        Args:
            run: gives the outcome, and the score if it was made on the way.
            on_ran: called when it has, before what comes of it is judged.
        """
        call, env = step.call, self.env  # `close` may come while it runs beside one that could not be stopped
        started_at, clock = time.time(), time.perf_counter()
        token = current.set(step)
        record: StepRecord | None = None
        try:
            try:
                outcome, scored = await run(step, call.arguments)
            except TimedOut as late:
                failure = ToolFailure(error_type=ToolErrorType.TIMEOUT, message=str(late))
                outcome = ToolOutcome(error=failure, duration_s=time.perf_counter() - clock)
                # A score would run beside the tool that could not be stopped.
                scored = None if self.author.stuck else NOT_SCORED
            if on_ran is not None:
                on_ran()
            if scored is NOT_SCORED:
                try:
                    scored = env.score(call, outcome) if self.episode.orchestrated else None
                except BaseException as error:
                    if self.author.lets_through(error):
                        raise
                    raise environment_failure("score", error) from error
            if type(scored) not in SCORES and inspect.isawaitable(scored):
                scored = await self._awaited(scored)
            if step.fault is not None:
                raise step.fault
            judging = self._judging
            of_rubric = None
            if judging is not None and judging.asks_steps and not self.author.stuck:  # beside it nothing is asked
                of_rubric = await judging.of_step(call, outcome)
            alone = of_rubric is None and step.finish is None and type(outcome.value) in PLAIN_TYPES
            if alone and type(scored) is Reward:
                reward: Reward | None = scored  # nothing to add to it, as for nearly every step
            elif alone and type(scored) is float and math.isfinite(scored):
                reward = Reward(scored)
            else:
                reward = self._reward(scored, outcome, of_rubric, step)
            record = StepRecord(call, outcome, reward, False, False, None, started_at, step.logs)
            failed = outcome.error is not None or self.author.stuck
            self.episode.judge(
                record,
                step.finish,
                tool is not None and tool.kind.terminal,
                self._cut_short(env, outcome) if failed else None,
                env.max_steps,
            )
            if (record.terminated or record.truncated) and judging is not None and judging.owes_end:
                step.settled = True
                if self.author.stuck:
                    record.fault = ErrorCode.TIMEOUT.value  # nobody can look at what it still changes
                else:
                    record.reward = await self._with_end(judging, record)
        except (InputRequired, MCPError):
            self.episode.uncount_step()
            raise
        except BaseException as error:
            if record is None and not isinstance(error, WireError | asyncio.CancelledError):
                raise
            kind = ToolErrorType.EXECUTION_ERROR if isinstance(error, WireError) else ToolErrorType.TRANSPORT_ERROR
            failure = ToolFailure(error_type=kind, message=str(error) or "The call was cancelled.")
            outcome = ToolOutcome(error=failure, duration_s=time.perf_counter() - clock)
            cut = StepRecord(call, outcome, None, started_at=started_at, logs=step.logs)
            if isinstance(error, WireError):
                cut.fault = error.code.value
            elif record is not None:  # somebody stopped the scoring of the end, not the tool
                cut.fault = ErrorCode.CANCELLED.value
            if record is not None:  # its end could not be scored; over it is all the same, and nobody answers twice
                cut.terminated, cut.truncated, cut.reason = record.terminated, record.truncated, record.reason
            else:
                terminal = tool is not None and tool.kind.terminal
                self.episode.judge(cut, step.finish, terminal, self._cut_short(env, outcome), env.max_steps)
                if cut.done and cut.fault is None and self._judging is not None and self._judging.owes_end:
                    cut.fault = ErrorCode.CANCELLED.value
            dropped = self.episode.add(cut, env.max_kept_steps)
            if dropped:
                self._spill(dropped)
            raise
        finally:
            current.reset(token)
        dropped = self.episode.add(record, env.max_kept_steps)
        if dropped:
            self._spill(dropped)
        return record

    def _spill(self, dropped: Sequence[StepRecord]) -> None:
        if self.sink is not None and self.episode.trajectory is not None:
            self.sink.spill(self.episode.trajectory, dropped)

    async def _with_end(self, judging: Judging, record: StepRecord) -> Reward | None:
        """The reward of the step that ends the episode, with what the end is worth."""
        judging.begin_end()
        await self._in_flight.alone()  # what runs beside it would change what is looked at
        ended = self.episode.with_last(record)
        of_end = await judging.of_end(ended)
        assert self.episode.trajectory is not None
        self.episode.trajectory.verified = ended.verified
        return judging.total(record.reward, of_end)

    async def _awaited(self, scored: Awaitable[Any]) -> Any:
        try:
            return await scored
        except BaseException as error:
            if self.author.lets_through(error):
                raise
            raise environment_failure("score", error) from error

    def _reward(self, scored: Any, outcome: ToolOutcome, of_rubric: Reward | None, step: Step) -> Reward | None:
        if not self.episode.orchestrated:
            return None
        own, finish = outcome.observation, step.finish
        try:
            reward = scored if scored is None else reward_of(scored)
            if own is None and finish is None and of_rubric is None:
                return reward
            return total(reward, reward_of(own.reward if own else None), of_rubric, finish.reward if finish else None)
        except (TypeError, ValueError) as error:
            raise environment_failure("score", error) from error

    def _cut_short(self, env: Author, outcome: ToolOutcome) -> str | None:
        """Why the world cannot go on after this step, if it cannot."""
        if self.author.stuck:
            return "a tool could not be stopped"
        timed_out = outcome.error is not None and outcome.error.error_type is ToolErrorType.TIMEOUT
        return "timeout" if timed_out and not env.SURVIVES_TIMEOUT else None

    def _run_of(self, tool: BoundTool | None) -> Run:
        if self.handed_in is not None:
            return self._run_through
        if tool is None:
            return _not_found
        score = self.env.score if self.episode.orchestrated and not self.env._score_is_async else None
        return ToolRun(self, tool, score).run

    async def _run_through(self, step: Step, arguments: dict[str, Any]) -> tuple[ToolOutcome, Any]:
        """A call that goes through the handed-in server and its middleware."""
        assert self.handed_in is not None
        clock, limit = time.perf_counter(), self.author.limit(step.timeout_s)
        context = EnvironmentContext(step)
        own = OwnCall(self, self._visible, step)
        try:
            with set_context(context):
                async with asyncio.timeout(limit):
                    try:
                        outcome = await self.handed_in.call_tool(self._visible, step.call.name, arguments, own)
                    except BaseException as error:  # middleware's boundary, and that of tools that FastMCP runs
                        for_client = isinstance(error, MCPError) and step.call.plane is Plane.AGENT
                        if for_client or isinstance(error, WireError) or self.author.lets_through(error):
                            raise
                        outcome = execution_failure(step.call.name, error, self.mode)
        except TimeoutError:
            raise TimedOut(step.call.name, limit) from None
        duration_s = time.perf_counter() - clock
        if isinstance(outcome, InputRequiredResult):
            return asked_for_input(step, outcome), NOT_SCORED
        if isinstance(outcome, ToolFailure):
            return ToolOutcome(error=outcome, duration_s=duration_s), NOT_SCORED
        value = own.value if own.ran else outcome.data
        return ToolOutcome(outcome, None, value, duration_s), NOT_SCORED

    @property
    def _visible(self) -> Visible:
        return Visible(self.tools, self.mode, f"{self.session_id}-{self.episode.number}", self.changes)

    def _run_of_action(self, action: Action) -> Run:
        async def run(step: Step, arguments: dict[str, Any]) -> tuple[ToolOutcome, Any]:
            clock = time.perf_counter()
            observation = await self.author.stage("act", lambda: self.author.call(self.env.act, action), step.timeout_s)
            if not isinstance(observation, Observation):
                wrong = TypeError(f"act returned a {type(observation).__name__}; return an Observation")
                raise environment_failure("act", wrong)
            return ToolOutcome(None, None, observation, time.perf_counter() - clock), NOT_SCORED

        return run


async def _not_found(step: Step, arguments: dict[str, Any]) -> tuple[ToolOutcome, Any]:
    failure = ToolFailure(error_type=ToolErrorType.TOOL_NOT_FOUND, message=f"Unknown tool: {step.call.name!r}")
    return ToolOutcome(error=failure), NOT_SCORED
