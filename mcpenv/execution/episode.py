"""The episode: its state, its count, its trajectory, and when it is over."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mcpenv.rewards.reward import Finish
from mcpenv.tasks.assignment import Assignment, copied
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Fork, Reward, StepRecord, Trajectory
from mcpenv_client.types.values import to_plain
from mcpenv_client.wire.protocol import EpisodeState, Event, next_state

from .notifications import Ending, Watchers
from .snapshots.snapshot import HeldEpisode

TIME_LIMIT = "time_limit"
"""Why an episode ended whose task has a time, which is over."""

DROPPED_PART, DROPPED_MOST = 64, 256
"""Records that are dropped at once: that part of those that are held, and so many at most. What stays is moved each
time, which for each step would take longer than the step."""


class Episode:
    """The episodes of one environment instance, one after the other.

    Attributes:
        orchestrated: whether somebody resets, scores and ends episodes. If not, the instance is a world in use: it is
            reset once, and nothing ends but the session.
        state: where it stands.
        id: the running episode's, None before the first.
        step_count: steps of this episode so far.
        trajectory: its record.
        kept: what tools kept by ``ctx.set_state``; a reset begins with nothing.
        reset_number: the number of the episode whose reset made what the instance works on; -1 while nobody knows.
        number: how many episodes were opened, so that what a handed-in server's tools keep can be told apart.
        first: the observation of the reset.
        last: what the orchestrator was answered when it ended the episode; None if a step did, or nothing has yet.
        handed_over: the record of the running or last episode has gone where records go.
        watchers: who waits for the end.
        reset_finish: what ``finish(...)`` inside reset said.
        scored: whether the reset, a step or the end had a reward; until then the return is None, and not 0.
    """

    __slots__ = (
        "_opened_at",
        "first",
        "handed_over",
        "id",
        "kept",
        "last",
        "number",
        "orchestrated",
        "reset_finish",
        "reset_number",
        "scored",
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
        self.number = 0
        self.reset_number = 0
        self.reset_finish: Finish | None = None
        self.first: Observation | None = None
        self.last: Observation | None = None
        self.handed_over = False
        self.scored = False
        self.watchers = Watchers()
        self._opened_at = 0.0

    def open(self, assigned: Assignment, episode_id: str | None, implicit: bool, *, instead: str = "reset") -> None:
        """Before the author's reset, or a restore: a new id, count 0, state NEW until it has returned.

        Args:
            instead: why the episode before is over, if it did not come to its end.
        """
        self.state = next_state(self.state, Event.RESET_FAILED)
        self._stop_clock(instead)
        self.watchers.tell(Ending.SUPERSEDED)
        self.id = episode_id or secrets.token_hex(16)
        self.step_count = 0
        self.kept = {}
        self.number += 1
        self.reset_finish = None
        self.last = None
        self.handed_over = False
        self.scored = False
        self._opened_at = time.monotonic()
        options = copied(assigned.options)
        if assigned.task is not None and options.get("task") is assigned.task:
            del options["task"]  # it stands beside them
        self.trajectory = Trajectory(
            self.id, assigned.seed, options, implicit_reset=implicit, started_at=time.time(), task=assigned.task
        )

    def opened(self, observation: Observation) -> Observation:
        """After the author's reset: RUNNING, or DONE if the body said so. Returns what the orchestrator gets."""
        self.state = next_state(self.state, Event.RESET)
        trajectory, said = self.trajectory, self.reset_finish
        assert trajectory is not None
        update: dict[str, Any] = {"info": {**observation.info, **self.info(None)}}
        if trajectory.task is not None:
            update["metadata"] = {"prompt": trajectory.task.prompt, **observation.metadata}
            update["info"]["task"] = trajectory.task.name
        if self.orchestrated:
            if said is not None:
                update["truncated" if said.truncated else "terminated"] = True
                if observation.reward is None and said.reward is not None:
                    update["reward"] = said.reward.value
            observation = observation.model_copy(update=update)
            if observation.done:
                self._end(observation.terminated, observation.truncated, said.reason if said else None)
        else:
            observation = observation.model_copy(update=update)
        if self.orchestrated and observation.reward is not None:
            trajectory.total_reward += observation.reward
            self.scored = True
        self.first = observation
        trajectory.observation = _plain(observation)
        return observation

    def resumed(self, held: HeldEpisode, step: int, kept: dict[str, Any]) -> None:
        """After a restore: where the snapshot's episode stood, under the id that `open` gave."""
        assert self.trajectory is not None
        then, episode_id = held.trajectory, self.trajectory.episode_id
        self.trajectory = replace(
            then, episode_id=episode_id, steps=[*then.steps], forked_from=Fork(then.episode_id, step)
        )
        self.step_count, self.kept, self.reset_finish = step, kept, None
        self.scored = held.scored
        self._opened_at = time.monotonic() - held.elapsed_s
        self.first = _renamed(held.first, episode_id)
        self.last = None if held.last is None else _renamed(held.last, episode_id)
        self.state = next_state(self.state, Event.RESET)
        if then.done:
            self.state = next_state(self.state, Event.END)
            self.watchers.tell(Ending.DONE)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the reset."""
        return time.monotonic() - self._opened_at

    @property
    def earned(self) -> float | None:
        """The sum of the rewards so far; None if there was none."""
        return self.trajectory.total_reward if self.scored and self.trajectory is not None else None

    def count_step(self) -> None:
        """One more step.

        Raises:
            EpisodeDone, SessionLost: this state has no steps.
        """
        if self.state is not EpisodeState.RUNNING:
            self.state = next_state(self.state, Event.STEP)
        self.step_count += 1

    def uncount_step(self) -> None:
        """It was none: the tool asked its client for input."""
        self.step_count -= 1

    def judge(
        self, record: StepRecord, finish: Finish | None, terminal: bool, cut_short: str | None, limit: int | None
    ) -> None:
        """Decide whether this step ends the episode.

        Args:
            terminal: the tool was declared to end the episode.
            cut_short: why the world cannot go on, if it cannot.
            limit: ``max_steps``; the task may have a lower one.
        """
        if not self.orchestrated:
            return
        outcome = record.outcome
        if finish is not None:
            record.truncated, record.terminated, record.reason = finish.truncated, not finish.truncated, finish.reason
        elif terminal and outcome.result is not None and not outcome.result.is_error:
            record.terminated = True
        elif (own := outcome.observation) is not None and own.done:
            record.terminated, record.truncated = own.terminated, own.truncated
        if record.terminated or record.truncated:
            return
        record.reason = cut_short or self._limit_reached(limit)
        record.truncated = record.reason is not None

    def with_last(self, record: StepRecord) -> Trajectory:
        """A copy of the trajectory as it will be when ``record``, which ends the episode, is in it."""
        trajectory = self.trajectory
        assert trajectory is not None
        return replace(
            trajectory,
            steps=[*trajectory.steps, record],
            total_reward=trajectory.total_reward + (0.0 if record.reward is None else record.reward.value),
            terminated=record.terminated,
            truncated=record.truncated,
            reason=record.reason,
        )

    def as_ended(self, truncated: bool, reason: str | None) -> Trajectory:
        """A copy of the trajectory as it will be when the orchestrator has ended the episode."""
        assert self.trajectory is not None
        return replace(
            self.trajectory,
            steps=list(self.trajectory.steps),
            terminated=not truncated,
            truncated=truncated,
            reason=reason,
        )

    def end(self, reward: Reward | None, truncated: bool, reason: str | None, fault: str | None = None) -> None:
        """The orchestrator has ended the episode.

        Args:
            fault: the wire's code of the error with which judging the end failed.
        """
        trajectory = self.trajectory
        assert trajectory is not None
        trajectory.end_reward, trajectory.fault = reward, fault
        if reward is not None:
            trajectory.total_reward += reward.value
            self.scored = True
        info: dict[str, Any] = {"episode_id": trajectory.episode_id}
        if fault is None:
            info["return"] = self.earned
        else:
            info["fault"] = fault  # nobody knows what it is worth
        if reward is not None and reward.components:
            info["reward"] = dict(reward.components)
        if reason is not None:
            info["reason"] = reason
        self.last = Observation(
            reward=None if reward is None else reward.value, terminated=not truncated, truncated=truncated, info=info
        )
        self._end(not truncated, truncated, reason)

    def add(self, record: StepRecord, keep: int) -> Sequence[StepRecord]:
        """Keep a step that was judged; the episode ends with it if it said so.

        Args:
            keep: how many records to hold; a few more are, until they are dropped together.

        Returns:
            The records that are held no more.
        """
        if not self.orchestrated:
            return ()
        trajectory = self.trajectory
        assert trajectory is not None
        dropped: Sequence[StepRecord] = ()
        if record.reward is not None:
            trajectory.total_reward += record.reward.value
            self.scored = True
        steps = trajectory.steps
        steps.append(record)
        over = len(steps) - keep
        if over > 0 and over > min(keep // DROPPED_PART, DROPPED_MOST):
            dropped = steps[:over]
            del steps[:over]  # moves all that stay
            trajectory.dropped += over
        if (record.terminated or record.truncated) and self.state is EpisodeState.RUNNING:
            self._end(record.terminated, record.truncated, record.reason)
        return dropped

    def cut_short(self, reason: str) -> None:
        """The world cannot go on, for a reason that was no step."""
        if self.orchestrated and self.state is EpisodeState.RUNNING:
            self._end(False, True, reason)

    def give_up(self, reason: str) -> None:
        """Nobody will bring it to its end."""
        self._stop_clock(reason)

    def close(self, reason: str) -> None:
        """No more of anything."""
        self.state = next_state(self.state, Event.CLOSE)
        self._stop_clock(reason)
        self.watchers.tell(Ending.CLOSED)

    def info(self, record: StepRecord | None) -> dict[str, Any]:
        """The framework's part of an observation; empty where there are no episodes."""
        trajectory = self.trajectory
        if not self.orchestrated or trajectory is None:
            return {}
        info: dict[str, Any] = {"episode_id": trajectory.episode_id}
        if record is not None:
            if record.fault is not None and record.done:
                info["fault"] = record.fault  # nobody knows what the episode is worth
            else:
                info["return"] = trajectory.total_reward if self.scored else None
            if record.reward is not None and record.reward.components:
                info["reward"] = dict(record.reward.components)
            if record.reason is not None:
                info["reason"] = record.reason
            if trajectory.implicit_reset and record.call.step == 1:
                info["reset"] = "implicit"
        return info

    def _limit_reached(self, max_steps: int | None) -> str | None:
        """Which limit the step under way has reached."""
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

    def _end(self, terminated: bool, truncated: bool, reason: str | None) -> None:
        self.state = next_state(self.state, Event.END)
        assert self.trajectory is not None
        self.trajectory.terminated, self.trajectory.truncated = terminated, truncated
        self._stop_clock(reason)
        self.watchers.tell(Ending.DONE)

    def _stop_clock(self, reason: str | None) -> None:
        if self.trajectory is not None and self.trajectory.ended_at is None:
            self.trajectory.ended_at = time.time()
            self.trajectory.reason = reason


def _renamed(observation: Observation, episode_id: str) -> Observation:
    """An observation of the episode before, as one of its continuation, which has an address of its own."""
    info = {name: value for name, value in observation.info.items() if name != "mcp_url"}
    return observation.model_copy(update={"info": {**info, "episode_id": episode_id}})


def _plain(observation: Observation) -> dict[str, Any] | None:
    try:
        plain: dict[str, Any] = to_plain(observation, "observation", exclude={"info"})
    except NotSerializable:
        return None  # whoever it is sent to is told
    return plain
