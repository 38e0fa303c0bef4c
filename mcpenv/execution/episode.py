"""The episode of an environment instance: its state, its step count, its trajectory, and its end."""

from __future__ import annotations

import itertools
import math
import secrets
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from mcpenv.tasks.assignment import Assignment, copied
from mcpenv.tools.outputs import KeptOutputs
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.observations import CallToolObservation, Observation
from mcpenv_client.types.records import PLAIN_TYPES, Fork, Reward, StepRecord, Trajectory
from mcpenv_client.types.status import COMPLETED, COMPLETED_DATA, Status
from mcpenv_client.types.tools import ToolErrorType, unchecked
from mcpenv_client.types.values import to_plain
from mcpenv_client.wire.protocol import EpisodeState, Event, next_state

from .notifications import Ending, Watchers
from .snapshots.snapshot import HeldEpisode

if TYPE_CHECKING:
    from mcpenv.environment import MCPEnvironment

TIME_LIMIT = "time_limit"
"""The reason of an episode's end after its task's time limit."""

DROPPED_PART, DROPPED_MOST = 64, 256
"""The size of a batch of dropped records: this fraction of the maximum, and at most this number. Dropping moves all
remaining records. After each step that would take longer than the step."""

_RECORD_BYTES = 1_000
"""The bytes of a record without its arguments and its result."""

_ITEM_BYTES = 64
"""The bytes of an argument, or of a value in a list or an object, in addition to its text in JSON."""

_MEDIA = 8
"""The divisor of the size of images and audio. An episode has many of them, and the environment makes them."""

_SMALL = frozenset({bool, int, float, type(None)})

OVER = "The episode is over."
"""The text that an agent reads when it calls a tool after the end."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The arguments of the first ``finish(...)`` call of a step or a reset."""

    reward: Reward | None
    truncated: bool
    reason: str | None

    def problems(self, by: str) -> list[str]:
        """Return why the episode is worth nothing, if its reward is 0 or less, as sentences."""
        if self.reward is None or self.reward.value > 0:
            return []
        because = "" if self.reason is None else f": {self.reason}"
        return [f"{by} ended the episode with reward {self.reward.value:g}{because}"]


class Episode:
    """The episodes of one environment instance, one after the other.

    Attributes:
        orchestrated: True if an orchestrator resets, scores and ends episodes. Otherwise the instance is reset once,
            and only the session ends.
        state: the state of the episode.
        id: the id of the running episode; None before the first.
        step_count: the number of steps of this episode so far.
        trajectory: its record.
        kept: the values stored by ``ctx.set_state``; empty after a reset.
        outputs: the long outputs that are kept; none after a reset.
        reset_number: the `number` at the reset that made the present state of the instance; -1 if unknown.
        number: the number of episodes opened. It distinguishes the state of a mounted server's tools.
        first: the observation of the reset.
        last: the observation for the orchestrator that ended the episode; None if a step ended it, or it has not ended.
        handed_over: True if the sink has received the record of the running or last episode.
        watchers: the coroutines that wait for the end.
        reset_finish: the arguments of ``finish(...)`` inside the reset.
        scored: True if the reset, a step or the end had a reward. Until then the return is None, not 0.
        sizes: the approximate bytes of each record in the trajectory, and `kept_bytes` their sum.
    """

    __slots__ = (
        "_opened_at",
        "_rest",
        "first",
        "handed_over",
        "id",
        "kept",
        "kept_bytes",
        "last",
        "number",
        "orchestrated",
        "outputs",
        "reset_finish",
        "reset_number",
        "scored",
        "sizes",
        "state",
        "step_count",
        "trajectory",
        "watchers",
    )

    def __init__(self) -> None:
        self.orchestrated = True
        self.state = EpisodeState.NEW
        self.id: str | None = None
        self.step_count = 0
        self.trajectory: Trajectory | None = None
        self.kept: dict[str, Any] = {}
        self.outputs = KeptOutputs()
        self.number = 0
        self.reset_number = 0
        self.reset_finish: Finish | None = None
        self.first: Observation | None = None
        self.last: Observation | None = None
        self.handed_over = False
        self.scored = False
        self._rest = 0.0
        self.sizes: deque[int] = deque()
        self.kept_bytes = 0
        self.watchers = Watchers()
        self._opened_at = 0.0

    def open(self, assigned: Assignment, episode_id: str | None, implicit: bool) -> None:
        """Open an episode before the author's reset or a restore: a new id, count 0, state NEW until it has returned.

        The caller has called `give_up` for the previous episode.
        """
        self.state = next_state(self.state, Event.RESET_FAILED)
        self.watchers.tell(Ending.SUPERSEDED)
        self.id = episode_id or secrets.token_hex(16)
        self.step_count = 0
        self.kept = {}
        self.outputs = KeptOutputs()
        self.number += 1
        self.reset_finish = None
        self.last = None
        self.handed_over = False
        self.scored = False
        self._rest = 0.0
        self.sizes, self.kept_bytes = deque(), 0
        self._opened_at = time.monotonic()
        options = copied(assigned.options)
        if assigned.task is not None and options.get("task") is assigned.task:
            del options["task"]  # the trajectory has it in a field of its own
        self.trajectory = Trajectory(
            self.id, assigned.seed, options, implicit_reset=implicit, started_at=time.time(), task=assigned.task
        )

    def opened(self, observation: Observation) -> Observation:
        """Begin the episode after the author's reset: RUNNING, or DONE if the body ended it.

        Returns:
            The observation for the orchestrator.
        """
        self.state = next_state(self.state, Event.RESET)
        trajectory, said = self.trajectory, self.reset_finish
        assert trajectory is not None
        update: dict[str, Any] = {"info": dict(observation.info)}
        if self.orchestrated:
            update["info"]["episode_id"] = trajectory.episode_id
        if trajectory.task is not None:
            update["metadata"] = {"prompt": trajectory.task.prompt, **observation.metadata}
            update["info"]["task"] = trajectory.task.name
        if self.orchestrated:
            if said is not None:
                update["truncated" if said.truncated else "terminated"] = True
                if problems := said.problems("the reset"):
                    trajectory.problems = problems
                    update["info"]["problems"] = [*problems]
                if observation.reward is None and said.reward is not None:
                    update["reward"] = said.reward.value
            observation = observation.model_copy(update=update)
            self._earn(observation.reward)
            if observation.terminated or observation.truncated:
                self._end(observation.terminated, observation.truncated, said.reason if said else None)
                observation.info["return"] = self.earned
                self.add_status(observation.info)
        else:
            observation = observation.model_copy(update=update)
        self.first = observation
        try:
            trajectory.observation = to_plain(observation, "observation", exclude={"info"})
        except NotSerializable:
            trajectory.observation = None  # the caller that encodes the observation reports the error
        return observation

    def resumed(self, held: HeldEpisode, step: int, kept: dict[str, Any]) -> None:
        """Continue a snapshot's episode after a restore, in its state and under the id that `open` assigned."""
        assert self.trajectory is not None
        then, episode_id = held.trajectory, self.trajectory.episode_id
        siblings = then.forked_from is not None and then.forked_from.step == step  # it has not gone on since its fork
        origin = then.forked_from if siblings else Fork(then.episode_id, step)
        self.trajectory = replace(then, episode_id=episode_id, steps=[*then.steps], forked_from=origin)
        self.step_count, self.kept, self.reset_finish = step, kept, None
        self.sizes = deque(bytes_of(step) for step in then.steps)
        self.kept_bytes = sum(self.sizes)
        if held.outputs is not None:
            self.outputs = held.outputs.copy()
        self.scored, self._rest = held.scored, held.rest
        self._opened_at = time.monotonic() - held.elapsed_s
        self.first = _renamed(held.first, episode_id)
        self.last = None if held.last is None else _renamed(held.last, episode_id)
        self.state = next_state(self.state, Event.RESET)
        if then.done:
            self.state = next_state(self.state, Event.END)
            self.watchers.tell(Ending.DONE)

    def last_ran_after(self, when: float) -> bool:
        """Return True if the episode runs, or ended after ``when`` (seconds since the epoch)."""
        if self.state is EpisodeState.RUNNING:
            return True
        ended_at = None if self.trajectory is None else self.trajectory.ended_at
        return self.state is EpisodeState.DONE and ended_at is not None and ended_at >= when

    @property
    def rest(self) -> float:
        """What rounding has taken from the sum of the rewards; a snapshot keeps it."""
        return self._rest

    @property
    def done(self) -> bool | None:
        """True if the episode is over; None before the first reset."""
        return None if self.state is EpisodeState.NEW else self.state is EpisodeState.DONE

    @property
    def elapsed_s(self) -> float:
        """The seconds since the reset."""
        return time.monotonic() - self._opened_at

    @property
    def earned(self) -> float | None:
        """The sum of the rewards so far; None if there was none."""
        return self.trajectory.total_reward if self.scored and self.trajectory is not None else None

    def count_step(self) -> int:
        """Count one more step, and return its number.

        Raises:
            EpisodeDone, SessionLost: no step is allowed in this state.
        """
        if self.state is not EpisodeState.RUNNING:
            self.state = next_state(self.state, Event.STEP)
        self.step_count += 1
        return self.step_count

    def uncount_step(self) -> None:
        """Undo `count_step`, because the tool asked its client for input."""
        self.step_count -= 1

    def judge(
        self, record: StepRecord, finish: Finish | None, terminal: bool, env: MCPEnvironment, *, abandoned: bool
    ) -> bool:
        """Decide whether this step ends the episode. If so, mark the record as the end and return True.

        Args:
            terminal: True if the tool was declared to end the episode.
            env: the environment, which has limits; the task may have a lower limit of steps.
            abandoned: True if code that could not be stopped still runs, so that the episode cannot continue.
        """
        if not self.orchestrated:
            return False
        outcome = record.outcome
        own = None if type(outcome.value) in PLAIN_TYPES else outcome.observation
        if finish is not None:
            record.truncated, record.terminated, record.reason = finish.truncated, not finish.truncated, finish.reason
            assert self.trajectory is not None
            self.trajectory.problems = finish.problems(f"the tool {record.call.name!r}")
        elif terminal and outcome.result is not None and not outcome.result.is_error:
            record.terminated = True
        elif own is not None and own.done:
            record.terminated, record.truncated = own.terminated, own.truncated
        if record.terminated or record.truncated:
            return True
        error = outcome.error
        if abandoned:
            record.reason = "a tool could not be stopped"
        elif error is not None and error.error_type is ToolErrorType.TIMEOUT and not env.SURVIVES_TIMEOUT:
            record.reason = "timeout"
        else:
            record.reason = self._limit_reached(env.max_steps)
        record.truncated = record.reason is not None
        return record.truncated

    def with_last(self, record: StepRecord) -> Trajectory:
        """Return a copy of the trajectory that includes ``record``, which ends the episode."""
        trajectory = self.trajectory
        assert trajectory is not None
        return replace(
            trajectory,
            steps=[*trajectory.steps, record],
            total_reward=self._plus(0.0 if record.reward is None else record.reward.value)[0],
            terminated=record.terminated,
            truncated=record.truncated,
            reason=record.reason,
        )

    def as_ended(self, truncated: bool, reason: str | None) -> Trajectory:
        """Return a copy of the trajectory as it will be after the orchestrator's end."""
        assert self.trajectory is not None
        return replace(
            self.trajectory,
            steps=list(self.trajectory.steps),
            terminated=not truncated,
            truncated=truncated,
            reason=reason,
        )

    def take_verification(self, ended: Trajectory) -> None:
        """Set what verification found in a copy of the trajectory that was made for it."""
        trajectory = self.trajectory
        assert trajectory is not None
        trajectory.verified, trajectory.problems = ended.verified, ended.problems
        trajectory.changes, trajectory.evidence = ended.changes, ended.evidence

    def end(
        self,
        reward: Reward | None,
        truncated: bool,
        reason: str | None,
        fault: str | None = None,
        status: Status | None = None,
    ) -> None:
        """End the episode at the orchestrator's request.

        Args:
            fault: the wire code of the error with which scoring the end failed.
            status: the status of the episode if scoring the end failed.
        """
        trajectory = self.trajectory
        assert trajectory is not None
        trajectory.end_reward, trajectory.fault = reward, fault
        trajectory.status = trajectory.status or status
        self._earn(None if reward is None else reward.value)
        info: dict[str, Any] = {"episode_id": trajectory.episode_id}
        if fault is None:
            info["return"] = self.earned
        else:
            info["fault"] = fault  # the worth is unknown
        if reward is not None and reward.components:
            info["reward"] = dict(reward.components)
        if trajectory.problems:
            info["problems"] = [*trajectory.problems]
        if reason is not None:
            info["reason"] = reason
        self.last = Observation(
            reward=None if reward is None else reward.value, terminated=not truncated, truncated=truncated, info=info
        )
        self._end(not truncated, truncated, reason)
        self.add_status(self.last.info)

    def add(self, record: StepRecord, keep: int, keep_bytes: int) -> Sequence[StepRecord]:
        """Add a scored step to the trajectory. A record that is marked as the end ends the episode.

        Args:
            keep: maximum number of records. Batches of dropped records let the number exceed it by a few.
            keep_bytes: maximum bytes of all records but the last.

        Returns:
            The records that were dropped.
        """
        if not self.orchestrated:
            return ()
        trajectory = self.trajectory
        assert trajectory is not None
        self._earn(None if record.reward is None else record.reward.value)
        if record.fault is not None and (trajectory.status is None or trajectory.status.usable):
            trajectory.status = record.status  # the return is unknown from here on
        steps = trajectory.steps
        steps.append(record)
        size = bytes_of(record)
        self.sizes.append(size)
        self.kept_bytes += size
        over = len(steps) - keep
        if over <= min(keep // DROPPED_PART, DROPPED_MOST):
            over = 0
        left = self.kept_bytes - sum(itertools.islice(self.sizes, over)) if over > 0 else self.kept_bytes
        while left > keep_bytes and over < len(steps) - 1:
            left -= self.sizes[over]
            over += 1
        dropped: Sequence[StepRecord] = ()
        if over > 0:
            dropped = steps[:over]
            del steps[:over]  # moves all remaining records
            for _ in range(over):
                self.sizes.popleft()
            self.kept_bytes = left
            trajectory.dropped += over
        # Several concurrent steps may be marked as the end. The first that is added ends the episode.
        if (record.terminated or record.truncated) and self.state is EpisodeState.RUNNING:
            self._end(record.terminated, record.truncated, record.reason)
        return dropped

    def cut_short(self, reason: str) -> None:
        """Truncate the episode outside a step, because it cannot continue."""
        if self.orchestrated and self.state is EpisodeState.RUNNING:
            self._end(False, True, reason)

    def give_up(self, reason: str | None) -> None:
        """Stop the clock of the episode and set its reason, unless it has ended."""
        if self.trajectory is not None and self.trajectory.ended_at is None:
            self.trajectory.ended_at = time.time()
            self.trajectory.reason = reason
            if self.trajectory.status is None:
                self.trajectory.status = self.trajectory.ending_status()

    def close(self) -> None:
        """Close the episode for good. The caller has called `give_up`."""
        self.state = next_state(self.state, Event.CLOSE)
        self.watchers.tell(Ending.CLOSED)

    # -- observations for the orchestrator

    def info_of(self, record: StepRecord | None) -> dict[str, Any]:
        """Return the framework's part of the observation of a step; empty without an orchestrator.

        Args:
            record: the step; None for the reset.
        """
        trajectory = self.trajectory
        if not self.orchestrated or trajectory is None:
            return {}
        info: dict[str, Any] = {"episode_id": trajectory.episode_id}
        if self.state is EpisodeState.DONE:
            self.add_status(info)
        if record is not None:
            info["status"] = {**COMPLETED_DATA} if record.status is COMPLETED else record.status.to_plain()
            if record.fault is not None and record.done:
                info["fault"] = record.fault  # the worth is unknown
            else:
                info["return"] = trajectory.total_reward if self.scored else None
            if record.reward is not None and record.reward.components:
                info["reward"] = dict(record.reward.components)
            if record.done and trajectory.problems:
                info["problems"] = [*trajectory.problems]
            if record.reason is not None:
                info["reason"] = record.reason
            if trajectory.implicit_reset and record.call.step == 1:
                info["reset"] = "implicit"
        return info

    def observation_of(self, record: StepRecord) -> Observation:
        """Return the observation of a step, with its reward, end and info."""
        outcome, info = record.outcome, self.info_of(record)
        reward = None if record.reward is None else record.reward.value
        own = None if type(outcome.value) in PLAIN_TYPES else outcome.observation
        if own is not None and outcome.result is None:
            update = {"reward": reward, "terminated": record.terminated, "truncated": record.truncated}
            return own.model_copy(update={**update, "info": {**own.info, **info}})
        fields = {
            "reward": reward,
            "terminated": record.terminated,
            "truncated": record.truncated,
            "metadata": {},
            "info": info,
            "tool_name": record.call.name,
            "result": outcome.result,
            "error": outcome.error,
        }
        return unchecked(CallToolObservation, fields)

    def latest(self) -> Observation:
        """Return the last observation of the running episode, as ``wait`` answers it."""
        trajectory = self.trajectory
        if trajectory is None:
            return Observation()
        if self.last is not None:
            return self.last
        if trajectory.steps:
            observation = self.observation_of(trajectory.steps[-1])
        else:
            observation = self.first if self.first is not None else Observation(info=self.info_of(None))
        info = dict(observation.info)
        self.add_status(info)
        # With concurrent tools, another step than the last may have ended the episode, or none may have.
        return observation.model_copy(
            update={"terminated": trajectory.terminated, "truncated": trajectory.truncated, "info": info}
        )

    def add_status(self, info: dict[str, Any]) -> None:
        """Add the status of the episode to an observation's info, if the episode is over."""
        if self.state is EpisodeState.DONE and self.trajectory is not None and self.trajectory.status is not None:
            info["episode_status"] = self.trajectory.status.to_plain()

    def _limit_reached(self, max_steps: int | None) -> str | None:
        """Return the limit that the running step has reached, or None."""
        assert self.trajectory is not None
        limits = None if self.trajectory.task is None else self.trajectory.task.limits
        if max_steps is not None and self.step_count >= max_steps:
            return "max_steps"
        if limits is None:
            return None
        if limits.max_steps is not None and self.step_count >= limits.max_steps:
            return "max_steps"
        if limits.timeout_s is not None:
            return TIME_LIMIT if self.elapsed_s >= limits.timeout_s else None
        return None

    def _earn(self, reward: float | None) -> None:
        if reward is not None:
            assert self.trajectory is not None
            self.trajectory.total_reward, self._rest = self._plus(reward)
            self.scored = True

    def _plus(self, reward: float) -> tuple[float, float]:
        """Return the sum with one more reward, and what rounding takes from it.

        Two floats are added as in Dekker 1971, doi:10.1007/BF01397083.
        """
        assert self.trajectory is not None
        before = self.trajectory.total_reward
        total = before + reward
        if not math.isfinite(total):
            return total, 0.0
        part = total - before
        rest = self._rest + ((before - (total - part)) + (reward - part))
        rounded = total + rest
        return rounded, rest - (rounded - total)

    def _end(self, terminated: bool, truncated: bool, reason: str | None) -> None:
        self.state = next_state(self.state, Event.END)
        assert self.trajectory is not None
        self.trajectory.terminated, self.trajectory.truncated = terminated, truncated
        self.give_up(reason)
        self.watchers.tell(Ending.DONE)


def _renamed(observation: Observation, episode_id: str) -> Observation:
    """Return an observation of the previous episode under the id and the address of its continuation."""
    info = {name: value for name, value in observation.info.items() if name != "mcp_url"}
    return observation.model_copy(update={"info": {**info, "episode_id": episode_id}})


def bytes_of(record: StepRecord) -> int:
    """Return the approximate memory of a record, with an eighth of its images and audio."""
    call, outcome = record.call, record.outcome
    size = _RECORD_BYTES + len(call.name)
    for name, value in call.arguments.items():
        size += _ITEM_BYTES + len(name)
        if type(value) not in _SMALL:
            size += _bytes_of(value)
    if record.logs:
        size += sum(_RECORD_BYTES + _bytes_of(entry.message) for entry in record.logs)
    if outcome.error is not None:
        size += sys.getsizeof(outcome.error.message) + _bytes_of(outcome.error.errors)
    elif type(outcome.value) is str:
        size += sys.getsizeof(outcome.value)
    elif (outcome.value is None or type(outcome.value) not in _SMALL) and outcome.result is not None:
        size += _bytes_of(outcome.result.structured_content) + _bytes_of(outcome.result.meta)
        for block in outcome.result.content:
            whole = sum(map(_bytes_of, block.values()))
            size += whole // _MEDIA if block.get("type") in ("image", "audio") else whole
    return size


def _bytes_of(value: Any) -> int:
    """Return the approximate memory of a value. Long texts take no more time than short ones."""
    kind = type(value)
    if kind is str or kind is bytes:
        return sys.getsizeof(value)
    if kind in _SMALL or not value:
        return 0
    try:
        text = to_json(value, fallback=repr)
    except ValueError:  # a lone surrogate, or a value that contains itself
        return sys.getsizeof(repr(value))
    return len(text) + _ITEM_BYTES * (text.count(b",") + text.count(b"[") + text.count(b"{"))
