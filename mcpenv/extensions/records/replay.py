"""The replay of a recorded episode: run its calls again and compare the results with the record."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.execution.episode import TIME_LIMIT
from mcpenv.execution.execution import STATE_ABANDONED, Execution
from mcpenv.redaction import redact_named
from mcpenv.tasks.assignment import Assignment
from mcpenv.trajectories.episode import NOT_RECORDED, OBSERVATIONS, RESCORED, RecordedEpisode
from mcpenv.trajectories.recorder import own_observation
from mcpenv_client.errors import EpisodeDone, ErrorCode, McpenvError, WireError
from mcpenv_client.fingerprint import (
    Facts,
    canonical,
    facts_of_end,
    facts_of_reset,
    facts_of_step,
    first_difference,
)
from mcpenv_client.types.records import StepRecord, Trajectory
from mcpenv_client.types.tools import ToolErrorType
from mcpenv_client.wire.protocol import ActionTypes, action_type

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
    return env._execution.blocking.run(_Replay(env, episode).run())


class _Differs(Exception):
    def __init__(self, difference: Difference) -> None:
        self.difference = difference


class _Stops(Exception):
    pass


class _Replay:
    def __init__(self, env: MCPEnvironment, episode: RecordedEpisode) -> None:
        self._env = env
        self._episode = episode
        self._recorded = episode.trajectory
        self._observations: dict[str, Any] = episode.extra.get(OBSERVATIONS, {})
        self._actions = ActionTypes(env.action_types)
        self._own = {action_type(cls) for cls in env.action_types}
        self._steps = 0
        self._hashes = hashlib.sha256(), hashlib.sha256()

    async def run(self) -> Replayed:
        difference, why = None, None
        try:
            await self._reset()
            for step in self._recorded.steps:
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

    @property
    def _execution(self) -> Execution:
        return self._env._execution

    @property
    def _now(self) -> Trajectory:
        trajectory = self._execution.episode.trajectory
        assert trajectory is not None
        return trajectory

    async def _reset(self) -> None:
        recorded = self._recorded
        if recorded.dropped:
            raise _Stops(f"the record lacks its first steps: {recorded.dropped}")
        for lost in self._episode.extra.get(NOT_RECORDED, ()):
            raise _Stops(f"{lost['path']} could not be recorded: {lost['why']}")
        taken = self._env.author_hooks.options
        episode_id = None if recorded.implicit_reset else recorded.episode_id
        try:
            options = taken.revived(recorded.options)
            if recorded.task is not None and taken.declares("task"):
                options["task"] = recorded.task
            taken.check(options)
            await self._execution.begin(Assignment(recorded.task, recorded.seed, options), episode_id)
        except McpenvError as error:
            raise _Differs(Difference(0, "error", None, str(error))) from error
        self._compare(0, facts_of_reset(recorded), facts_of_reset(self._now))

    async def _step(self, step: StepRecord) -> None:
        number, error = step.call.step, step.outcome.error
        if step.reason == TIME_LIMIT:
            raise _Stops(f"step {number} was the last because the task's time limit was reached")
        if (error is not None and error.error_type in _UNTIMELY) or step.fault in _UNTIMELY_FAULTS:
            raise _Stops(f"step {number} was cut off: {error.message if error is not None else step.fault}")
        try:
            await self._call(step)
        except EpisodeDone as done:
            raise _Differs(Difference(number, "state", "running", "over")) from done
        except WireError as failed:
            if not self._now.steps or self._now.steps[-1].call.step != number:
                raise _Differs(Difference(number, "fault", step.fault, failed.code.value)) from failed
        replayed = self._now.steps[-1]
        self._compare(
            number,
            facts_of_step(step, self._observations.get(str(number))),
            facts_of_step(replayed, own_observation(replayed)),
        )

    async def _call(self, step: StepRecord) -> None:
        call, execution = step.call, self._execution
        if call.name in self._own and call.name not in execution.tools.by_mode[execution.mode]:
            action = self._actions.parse({**call.arguments, "type": call.name})
            await execution.act(action, plane=call.plane, principal=call.principal)
        else:
            await execution.call_tool(call.name, dict(call.arguments), plane=call.plane, principal=call.principal)

    async def _end(self) -> None:
        recorded = self._recorded
        if recorded.reason == STATE_ABANDONED:
            raise _Stops("the episode was cut short by code that could not be stopped")
        if recorded.done and not self._now.done:
            # No call ended the episode, so the orchestrator did.
            try:
                await self._execution.end(truncated=recorded.truncated, reason=recorded.reason)
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
