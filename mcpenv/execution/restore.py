"""Take and restore snapshots of an environment instance. The caller holds the lock."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mcpenv.tasks.assignment import Assignment, assignment_of
from mcpenv_client.errors import InvalidMessage, NotSupported
from mcpenv_client.types.records import Trajectory
from mcpenv_client.types.tools import Mode
from mcpenv_client.wire.protocol import EpisodeState, Event, next_state

from .ending import hand_over
from .instance import Instance
from .reset import run_reset
from .scoring import Scoring
from .snapshots.snapshot import HeldEpisode, HeldState, Snapshot, class_name, size_of
from .snapshots.state import InstanceState


def refuse_without_episodes(instance: Instance) -> None:
    """Raise if the instance has no episodes, which snapshots need.

    Raises:
        NotSupported: in production mode, or in a session without an orchestrator.
    """
    if instance.mode is Mode.PRODUCTION:
        raise NotSupported("snapshots are for simulation, and this environment is used in production mode")
    if not instance.episode.orchestrated:
        raise NotSupported("snapshots are of episodes, and this environment has none: it is never reset")


async def take_snapshot(instance: Instance, timeout_s: float | None) -> Snapshot:
    """Return a snapshot of the episode in its present state.

    Raises:
        NotSupported: a part of the episode cannot be saved.
        InvalidMessage: there is no episode yet.
        ExecutionError: user code raised.
        OperationTimeout: user code passed its deadline.
    """
    env, user_code, episode, scoring = instance.env, instance.user_code, instance.episode, instance.scoring
    if episode.state is EpisodeState.NEW:
        raise InvalidMessage("there is no episode to save yet; reset first")
    next_state(episode.state, Event.SNAPSHOT)
    assert episode.trajectory is not None and episode.first is not None and scoring is not None
    if instance.server is not None and not instance.hooks.saves_state:
        raise NotSupported(
            f"{type(env).__name__} cannot be saved: the state of its mounted FastMCP server is unknown. "
            "Define save_state and load_state"
        )
    save: Callable[[], Any] = env.save_state
    if inspect.iscoroutinefunction(save):
        saved = await user_code.stage("save_state", save, timeout_s)
        save = lambda: saved  # noqa: E731
    # Later steps must not get into the snapshot's list.
    trajectory = replace(episode.trajectory, steps=[*episode.trajectory.steps])
    state, size = await user_code.stage(
        "save_state", lambda: user_code.call(_held, instance, scoring, save, trajectory), timeout_s
    )
    held = HeldEpisode(
        trajectory,
        episode.first,
        episode.last,
        scoring.verifies,
        scoring.before,
        episode.elapsed_s,
        episode.scored,
        (instance.session_id, episode.reset_number),
        instance.tools.save(),
        None if instance.sink is None else instance.sink.spilled(trajectory),
        episode.outputs.copy(),
        episode.rest,
    )
    cls = type(env)
    size += state.bytes + episode.outputs.bytes + (0 if held.spilled is None else held.spilled.bytes)
    return Snapshot(class_name(cls), cls.VERSION, trajectory.episode_id, episode.step_count, size, state, held)


async def restore(instance: Instance, snapshot: Snapshot, timeout_s: float | None, same: bool = False) -> None:
    """Continue the snapshot's episode in a new episode of the instance; in the ``same`` one if another server had it.

    Reading the snapshot changes nothing. Once writing has begun, a failure leaves the environment NEW.

    Raises:
        NotSupported: the snapshot does not fit the instance.
        ExecutionError, OperationTimeout: user code failed.
    """
    held, episode = snapshot.episode, instance.episode
    next_state(episode.state, Event.RESET)
    assigned = assignment_of(held.trajectory, declares_task=instance.hooks.options.declares("task"))
    same_reset = held.reset_of == (instance.session_id, episode.reset_number)
    episode_id = snapshot.episode_id if same else None
    if not same_reset:  # this instance lacks the objects that the reset made
        _open_instead(instance, assigned, episode_id)
        await run_reset(instance, assigned, episode.id, timeout_s)
    scoring = Scoring(instance)
    await scoring.resume(held, timeout_s)
    put = _Put(instance, snapshot, scoring)
    await put.read(timeout_s)
    # As late as possible: until here, a failure leaves the running episode as it is.
    if same_reset:
        _open_instead(instance, assigned, episode_id)
    # If `write` fails, no snapshot must match the state that it leaves.
    reset_number, episode.reset_number = episode.reset_number, -1
    await put.write(timeout_s)
    instance.scoring, episode.reset_number = scoring, reset_number
    episode.resumed(held, snapshot.step, put.kept)
    if same and episode.trajectory is not None:
        episode.trajectory.forked_from = held.trajectory.forked_from
    if instance.sink is not None and held.spilled is not None and episode.trajectory is not None:
        instance.sink.resume(episode.trajectory, held.spilled)


def _open_instead(instance: Instance, assigned: Assignment, episode_id: str | None) -> None:
    """End the running episode and open the new one. The environment is NEW until the restore is complete."""
    hand_over(instance, "restored")
    instance.episode.open(assigned, episode_id, implicit=False)


class _Put:
    """Put the state of a snapshot into an instance, in two steps: `read` makes the objects, `write` installs them.

    Attributes:
        kept: the values that tools had kept by ``ctx.set_state``.
    """

    def __init__(self, instance: Instance, snapshot: Snapshot, scoring: Scoring) -> None:
        self._instance = instance
        self._held = snapshot.state
        self._episode = snapshot.episode
        self._scoring = scoring
        self._state: InstanceState | None = None
        self._parts: dict[str, Any] = {}
        self.kept: dict[str, Any] = {}

    async def read(self, timeout_s: float | None) -> None:
        """Make the objects from the snapshot's bytes.

        Raises:
            NotSupported: the snapshot does not fit the instance.
            ExecutionError, OperationTimeout: user code failed.
        """
        user_code = self._instance.user_code
        await user_code.stage("load_state", lambda: user_code.call(self._read), timeout_s)

    async def write(self, timeout_s: float | None) -> None:
        """Replace the instance's state by these objects.

        Raises:
            NotSupported: the instance lacks a tool.
            ExecutionError, OperationTimeout: user code failed.
        """
        instance, user_code, state = self._instance, self._instance.user_code, self._state
        assert state is not None
        if self._episode.reset_of[0] == instance.session_id:
            instance.tools.load(self._episode.toolbox)
        await user_code.stage("load_state", lambda: user_code.call(state.put, self._held, self._parts), timeout_s)
        load = instance.env.load_state
        await user_code.stage("load_state", lambda: user_code.call(load, self._parts["state"]), timeout_s)
        state.arrange_tools(self._held)

    def _read(self) -> None:
        self._state = InstanceState(self._instance, self._scoring.rubrics)
        self._parts = self._state.read(self._held)
        self.kept = self._parts["kept"]


def _held(
    instance: Instance, scoring: Scoring, save: Callable[[], Any], trajectory: Trajectory
) -> tuple[HeldState, int]:
    """Pickle the state, in the thread of user code."""
    state = InstanceState(instance, scoring.rubrics).hold(save, instance.episode.kept)
    return state, size_of(trajectory, scoring.before)
