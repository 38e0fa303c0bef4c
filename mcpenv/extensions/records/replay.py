"""The replay of a recorded episode: run its calls again and compare the results with the record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.execution.episode import TIME_LIMIT, Finish
from mcpenv.execution.execution import STATE_ABANDONED, Execution
from mcpenv.execution.step import Step
from mcpenv.execution.step import step as take_step
from mcpenv.redaction import redact_named
from mcpenv.tasks.assignment import Assignment, Wanted
from mcpenv.trajectories.episode import NOT_RECORDED, OBSERVATIONS, RESCORED, RecordedEnvironment, RecordedEpisode
from mcpenv.trajectories.recorder import own_observation
from mcpenv_client.errors import (
    CapacityReached,
    EpisodeDone,
    ErrorCode,
    InvalidMessage,
    McpenvError,
    SessionLost,
    WireError,
)
from mcpenv_client.fingerprint import (
    Facts,
    canonical,
    facts_of_end,
    facts_of_reset,
    facts_of_step,
    first_difference,
)
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Fork, StepRecord, ToolOutcome, Trajectory
from mcpenv_client.types.starts import Recorded, Start
from mcpenv_client.types.state import State
from mcpenv_client.types.tools import Tool, ToolErrorType
from mcpenv_client.wire.protocol import ActionTypes, action_type

_BRIEF = 120
"""Maximum characters of a value in a message."""

_UNTIMELY = (ToolErrorType.TIMEOUT, ToolErrorType.TRANSPORT_ERROR)
"""Errors that depend on timing, not on the call."""

_UNTIMELY_FAULTS = (ErrorCode.CANCELLED.value, ErrorCode.TIMEOUT.value)


class Verdict(StrEnum):
    """The outcome of a replay."""

    AGREES = "agrees"
    """The whole episode was run again, with equal results."""
    PARTLY = "partly"
    """Not all steps could be run again; those that could had equal results."""
    NOT_REPLAYABLE = "not_replayable"
    """No step could be run again."""
    DIFFERS = "differs"
    """A result differed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between record and replay.

    Attributes:
        step: the number of the step; 0: the reset; None: the end.
        field: the path in the step's facts, such as ``result.content[0].text``.
        recorded, replayed: the two values, plain JSON data.
    """

    step: int | None
    field: str
    recorded: Any
    replayed: Any

    @property
    def place(self) -> str:
        """The name of the step for a reader."""
        return {None: "the end", 0: "the reset"}.get(self.step, f"step {self.step}")

    def __str__(self) -> str:
        """Return it as a clause, with both values in brief."""
        return f"{self.place} differs in {self.field}: recorded {_brief(self.recorded)}, now {_brief(self.replayed)}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of replaying one episode.

    Attributes:
        steps: number of steps that were run again and had equal results.
        why: the reason why not all steps were run; None if all were.
        rescored_by: the rubric that gave the recorded rewards, if they are not the environment's own; else None.
        recorded_hash, replayed_hash: the SHA-256 of the compared facts, in hexadecimal.
    """

    episode_id: str
    verdict: Verdict
    steps: int
    difference: Difference | None
    why: str | None
    rescored_by: str | None
    recorded_hash: str
    replayed_hash: str


def replay(env: MCPEnvironment, episode: RecordedEpisode) -> Replayed:
    """Reset ``env`` as recorded, run the recorded calls and compare the results. Blocks. Pass a new instance.

    The replay stops before a call that timed out, was cancelled or was lost, because the state of the world after it
    is unknown. Listings of tools are not recorded and so not replayed.
    """
    return env._execution.blocking.run(replayed(env._execution, episode))


async def replayed(
    execution: Execution, episode: RecordedEpisode, answered: Answered | None = None, after: int | None = None
) -> Replayed:
    """Do the same as `replay` on the event loop of the caller.

    Args:
        answered: returns the tools that are not run again: their steps have the recorded results.
        after: the number of steps that the instance's episode has already; None: it is reset.
    """
    return await _Replay(execution, episode, answered=answered).run(after)


Answered = Callable[[], Awaitable[Collection[str]]]

Reset = Callable[[int | None, str | None, Wanted], Awaitable[Execution]]
"""Resets with a seed, an episode id and the rest of the assignment, and returns the instance that has the episode."""


class CannotBranch(InvalidMessage):
    """Raised if a recorded episode cannot be opened at a step here. Over the wire it is an `InvalidMessage`.

    Attributes:
        difference: the first difference from the record; None if the record itself cannot be played that far. Its
            fields are also in the entry of ``errors``.
    """

    def __init__(self, message: str, difference: Difference | None = None) -> None:
        place = [] if difference is None else ["steps", difference.step or 0, difference.field]
        fault: dict[str, Any] = {"loc": place, "msg": message, "type": "cannot_branch"}
        if difference is not None:
            fault |= {"type": "differs", "recorded": difference.recorded, "replayed": difference.replayed}
        super().__init__(message, errors=[fault])
        self.difference = difference


async def open_at(execution: Execution, episode: RecordedEpisode, step: int, reset: Reset | None = None) -> Execution:
    """Begin an episode as recorded, and run its calls up to a step. The episode then goes on as one of its own.

    The calls are compared with the record like those of `replay`. They are the first steps of the new episode, and are
    neither recorded nor counted before all of them have come out the same. `Trajectory.forked_from` names the recorded
    episode and the step. Calls of tools that act on the outside are made, too: the environment may need them.

    Args:
        execution: the instance. If it is refused, its episode is over, and not recorded.
        step: the number of steps to run; 0 opens the episode after its reset.
        reset: begins the episode; None: the instance itself.

    Returns:
        The instance that has the episode: another one if ``reset`` has replaced it.

    Raises:
        CannotBranch: a result differs, or the record cannot be played that far.
    """
    replaying = _Replay(execution, episode, reset)
    with _refusing(episode.trajectory, step):
        await replaying.to(step)
    return replaying.execution


async def look_at(
    execution: Execution, episode: RecordedEpisode, step: int, reset: Reset | None = None
) -> tuple[Execution, list[State]]:
    """Run a recorded episode up to a step, to look at its world. Nothing is recorded, and the episode is over then.

    Calls of tools that act on the outside are not made: their steps have the recorded results.

    Args:
        execution, episode, reset: as for `open_at`.
        step: the number of steps to run. The episode may be over after them.

    Returns:
        The instance, as `open_at`, and the states of the environment before and after the step. For 0 only the one
        after the reset.

    Raises:
        CannotBranch: as `open_at`.
    """
    replaying = _Replay(execution, episode, reset)
    states: list[State] = []
    with _refusing(episode.trajectory, step):
        await replaying.to(step, states)
    return replaying.execution, states


def refuse_other_steps(recorded: Trajectory, step: int) -> None:
    """Raise `CannotBranch` if there is no such step."""
    if not 0 <= step <= len(recorded.steps):
        raise CannotBranch(f"the episode {recorded.episode_id} has {len(recorded.steps)} steps, and so no step {step}")


@contextmanager
def _refusing(recorded: Trajectory, step: int) -> Iterator[None]:
    """Raise `CannotBranch` if there is no such step, or the steps differ in the block, or cannot be run."""
    refuse_other_steps(recorded, step)
    try:
        yield
    except _Stops as stops:
        raise CannotBranch(f"{_where(recorded, step)}: {stops}") from None
    except _Differs as differs:
        found = differs.difference
        why = "The environment has changed, or does not depend on its seed and calls alone"
        raise CannotBranch(f"{_where(recorded, step)}: {found}. {why}", found) from None


async def open_start(execution: Execution, start: Start, reset: Reset | None = None) -> Execution:
    """Open the episode of a `Start` with a trajectory, as `open_at`. Raises as that, and ValueError without one."""
    return await open_at(execution, _recorded(start), start.step, reset)


def _recorded(start: Start) -> RecordedEpisode:
    return RecordedEpisode(start.trajectory, RecordedEnvironment(""), extra={OBSERVATIONS: start.observations})


def branch(env: MCPEnvironment, record: Trajectory | Recorded | Start, step: int) -> Observation:
    """Begin an episode of ``env`` that continues a recorded one after a step, and return its last observation.

    `MCPEnvironment.fork` then makes siblings of it, without running the calls again. Blocks.

    Args:
        record: a recorded episode, or its trajectory.
        step: the number of steps that both have in common.

    Raises:
        CannotBranch: a result of those steps differs from the record, or they cannot be run again.
        ValueError: the record has no such step, or is over after it.
    """
    return env._execution.blocking.run(branch_async(env, record, step))


async def branch_async(env: MCPEnvironment, record: Trajectory | Recorded | Start, step: int) -> Observation:
    """Begin an episode that continues a recorded one, as `branch`, on a running event loop."""
    return (await open_start(env._execution, Start(record, step))).episode.latest()


def as_recorded(trajectory: Trajectory, env: MCPEnvironment, **more: Any) -> RecordedEpisode:
    """Return the record of an episode that an instance of the class of ``env`` played in this process.

    Args:
        more: further fields of the record.
    """
    seen = {str(step.call.step): own for step in trajectory.steps if (own := own_observation(step)) is not None}
    extra = {OBSERVATIONS: seen} if seen else {}
    return RecordedEpisode(trajectory, RecordedEnvironment(env.exposed_name(), env.VERSION), extra=extra, **more)


def _where(recorded: Trajectory, step: int) -> str:
    return f"the episode {recorded.episode_id} cannot be opened at step {step}"


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}…"


def cut_off(step: StepRecord) -> bool:
    """Return True if a timeout, a cancellation or a lost connection ended a step: the world after it is unknown."""
    error = step.outcome.error
    return (error is not None and error.error_type in _UNTIMELY) or step.fault in _UNTIMELY_FAULTS


async def answer_step(execution: Execution, step: StepRecord) -> StepRecord:
    """Take a recorded step with its recorded outcome: the tool is not run, and the step is scored as ever."""

    async def run(now: Step) -> ToolOutcome:
        if step.done:
            now.finish = Finish(None, step.truncated, step.reason)
        return step.outcome

    call = step.call
    return await take_step(execution, call.name, dict(call.arguments), run, plane=call.plane, principal=call.principal)


class _Differs(Exception):
    def __init__(self, difference: Difference) -> None:
        self.difference = difference


class _Stops(Exception):
    pass


class Outside:
    """The tools of an instance whose calls must not be repeated.

    Their authors annotate them with ``openWorldHint``, and with neither ``readOnlyHint`` nor ``idempotentHint``.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._version: int | None = None
        self._names: frozenset[str] = frozenset()

    async def names(self) -> frozenset[str]:
        """Return their names. A reset or a step may add some."""
        version = self._execution.tools.version
        if version != self._version:
            tools = await self._execution.list_tools()
            self._names = frozenset(tool.name for tool in tools if acts_outside(tool))
            self._version = version
        return self._names


def acts_outside(tool: Tool) -> bool:
    """Return True if calls of a tool must not be repeated, see `Outside`."""
    hints = tool.annotations or {}
    return hints.get("openWorldHint") is True and not (hints.get("readOnlyHint") or hints.get("idempotentHint"))


class _Replay:
    """One replay.

    Attributes:
        execution: the instance that has the episode.
    """

    def __init__(
        self,
        execution: Execution,
        episode: RecordedEpisode,
        reset: Reset | None = None,
        answered: Answered | None = None,
    ) -> None:
        self.execution = execution
        self._answered = answered
        env = execution.env
        self._begin = self._reset_here if reset is None else reset
        self._episode = episode
        self._recorded = episode.trajectory
        self._observations: dict[str, Any] | None = episode.extra.get(OBSERVATIONS, {})  # None: unknown
        self._actions = ActionTypes(env.action_types)
        self._own = {action_type(cls) for cls in env.action_types}
        self._steps = 0
        self._hashes = hashlib.sha256(), hashlib.sha256()

    async def run(self, after: int | None = None) -> Replayed:
        difference, why = None, None
        try:
            if after is None:
                await self._reset()
                self._compare_reset()
            for step in self._recorded.steps[after or 0 :]:
                await self._step(step)
                self._steps += 1
            await self._end()
        except _Differs as differs:
            difference = differs.difference
        except _Stops as stops:
            why = str(stops)
        if difference is not None:
            verdict = Verdict.DIFFERS
        elif why is None:
            verdict = Verdict.AGREES
        else:
            verdict = Verdict.PARTLY if self._steps else Verdict.NOT_REPLAYABLE
        recorded, replayed = (each.hexdigest() for each in self._hashes)
        rescored: dict[str, Any] = self._episode.extra.get(RESCORED) or {}
        by = rescored.get("rubric")
        return Replayed(self._episode.id, verdict, self._steps, difference, why, by, recorded, replayed)

    async def to(self, number: int, states: list[State] | None = None) -> None:
        """Run the first steps, and let the episode go on from there.

        Args:
            states: gets the last two states, instead of letting the episode go on.
        """
        await self._reset(own_id=True)
        if states is not None:
            self._answered = Outside(self.execution).names  # a look changes nothing
        episode = self.execution.episode
        observer, self.execution.observer = self.execution.observer, None  # it counts steps
        episode.handed_over = True  # what is not opened is not recorded
        opened = False
        try:
            self._compare_reset()
            for at, step in enumerate(self._recorded.steps[:number], 1):
                if states is not None and at == number:
                    states.append(await self.execution.read_state())
                await self._step(step)
            if states is not None:
                states.append(await self.execution.read_state())
                return
            if self._now.done:
                raise _Stops("it is over then")
            self._now.forked_from = Fork(self._recorded.episode_id, number)
            opened = True
        finally:
            self.execution.observer = observer
            if opened:
                episode.handed_over = False
            else:
                episode.cut_short("not_opened")

    async def _reset_here(self, seed: int | None, episode_id: str | None, wanted: Wanted) -> Execution:
        assert wanted.assigned is not None
        await self.execution.begin(wanted.assigned, episode_id)
        return self.execution

    @property
    def _now(self) -> Trajectory:
        trajectory = self.execution.episode.trajectory
        assert trajectory is not None
        return trajectory

    async def _reset(self, *, own_id: bool = False) -> None:
        recorded = self._recorded
        if recorded.dropped:
            raise _Stops(f"the record lacks its first steps: {recorded.dropped}")
        for lost in self._episode.extra.get(NOT_RECORDED, ()):
            raise _Stops(f"{lost['path']} could not be recorded: {lost['why']}")
        taken = self.execution.env.author_hooks.options
        episode_id = None if recorded.implicit_reset or own_id else recorded.episode_id
        try:
            options = taken.revived(recorded.options)
            if recorded.task is not None and taken.declares("task"):
                options["task"] = recorded.task
            taken.check(options)
            wanted = Wanted({}, taken, None)
            wanted.assigned = Assignment(recorded.task, recorded.seed, options)
            self.execution = await self._begin(recorded.seed, episode_id, wanted)
        except (CapacityReached, SessionLost):
            raise  # of a server, which may have room later
        except McpenvError as error:
            raise _Differs(Difference(0, "error", None, str(error))) from error

    def _compare_reset(self) -> None:
        self._compare(0, facts_of_reset(self._recorded), facts_of_reset(self._now))

    async def _step(self, step: StepRecord) -> None:
        number, error = step.call.step, step.outcome.error
        if step.reason == TIME_LIMIT:
            raise _Stops(f"step {number} was the last because the task's time limit was reached")
        answered = self._answered is not None and step.call.name in await self._answered()
        if cut_off(step) and not answered:
            raise _Stops(f"step {number} was cut off: {error.message if error is not None else step.fault}")
        try:
            await self._call(step, answered)
        except EpisodeDone as done:
            raise _Differs(Difference(number, "state", "running", "over")) from done
        except WireError as failed:
            if not self._now.steps or self._now.steps[-1].call.step != number:
                raise _Differs(Difference(number, "fault", step.fault, failed.code.value)) from failed
        self._compare_step(step, self._now.steps[-1])

    def _compare_step(self, step: StepRecord, replayed: StepRecord) -> None:
        number, seen = step.call.step, self._observations
        one, other = (None, None) if seen is None else (seen.get(str(number)), own_observation(replayed))
        self._compare(number, facts_of_step(step, one), facts_of_step(replayed, other))

    async def _call(self, step: StepRecord, answered: bool) -> None:
        call, execution = step.call, self.execution
        if call.name in self._own and call.name not in execution.tools.by_mode[execution.mode]:
            action = self._actions.parse({**call.arguments, "type": call.name})
            await execution.act(action, plane=call.plane, principal=call.principal)
        elif answered:
            await answer_step(execution, step)
        else:
            await execution.call_tool(call.name, dict(call.arguments), plane=call.plane, principal=call.principal)

    async def _end(self) -> None:
        recorded = self._recorded
        if recorded.reason == STATE_ABANDONED:
            raise _Stops("the episode was cut short by code that could not be stopped")
        if recorded.done and not self._now.done:
            # No call ended the episode, so the orchestrator did.
            try:
                await self.execution.end(truncated=recorded.truncated, reason=recorded.reason)
            except WireError as failed:
                if self._now.fault is None:
                    raise _Differs(Difference(None, "fault", recorded.fault, failed.code.value)) from failed
        self._compare(None, facts_of_end(recorded), facts_of_end(self._now))

    def _compare(self, step: int | None, recorded: Facts, replayed: Facts) -> None:
        recorded, replayed = redact_named(recorded), redact_named(replayed)  # a record has no secrets
        one, other = canonical(recorded), canonical(replayed)
        for text, each in zip((one, other), self._hashes, strict=True):
            each.update(hashlib.sha256(text).digest())
        if hashlib.sha256(one).digest() != hashlib.sha256(other).digest():
            found = first_difference(recorded, replayed)
            assert found is not None
            raise _Differs(Difference(step, *found))
