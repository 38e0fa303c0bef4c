"""Continue a kept session: load its state if it was saved, play the rest of its journal, and compare each result."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import ConfigDict, TypeAdapter

from mcpenv.execution.execution import Execution
from mcpenv.execution.snapshots import Snapshot
from mcpenv.extensions.records.replay import Outside, Verdict, replayed
from mcpenv.server.sessions.session import Session
from mcpenv.trajectories.episode import OBSERVATIONS, RecordedEnvironment, RecordedEpisode
from mcpenv.trajectories.recorder import own_observation
from mcpenv_client.errors import SessionLost
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import StepRecord, Trajectory, summed

from .journal import environment_of
from .snapshots import way_of
from .store import OBJECT, RECORDED, SNAPSHOT, Claimant, Entry, KeptSession, Store

logger = logging.getLogger("mcpenv")

LACKS_A_STEP = "the episode cannot be continued here: its journal lacks a step before its last one"

_HEADER = TypeAdapter(Trajectory)
_BODY = TypeAdapter(tuple[StepRecord, object])


class _Seen(Observation):
    """An environment's own observation, as it was written."""

    model_config = ConfigDict(extra="allow")


async def rerun(session: Session, kept: KeptSession, entries: Sequence[Entry]) -> Entry | None:
    """Play the journal in a new session, which then has the replies of the last one. See `continue_kept`."""
    unknown = await continue_kept(session.execution, kept, entries)
    for entry in entries:
        if entry.request_id is not None and entry.digest is not None and entry.reply is not None:
            session.replies.answered(entry.request_id, entry.digest, entry.reply)
    return unknown


async def continue_kept(execution: Execution, kept: KeptSession, entries: Sequence[Entry]) -> Entry | None:
    """Continue a kept episode in a new instance: load its state if it was saved, and play the rest of its journal.

    Steps are not counted again for those who observe the instance.

    Returns:
        The entry of a call that may have run, and must not run again; None if there is none.

    Raises:
        SessionLost: a result differs, or a step cannot be repeated. The text names the first difference.
    """
    intents = [entry for entry in entries if entry.number < SNAPSHOT and entry.body and not entry.is_step]
    last = max((entry.number for entry in entries if entry.is_step), default=0)
    if any(intent.number <= last for intent in intents) or len(intents) > 1:
        raise SessionLost(LACKS_A_STEP)
    recorded = episode_of(kept, entries)
    if [step.call.step for step in recorded.steps] != [*range(1, len(recorded.steps) + 1)]:
        raise SessionLost(LACKS_A_STEP)
    seen = {str(step.call.step): own_observation(step) for step in recorded.steps}
    observations = {number: observation for number, observation in seen.items() if observation is not None}
    if not kept.over:
        recorded.total_reward = summed(recorded.reward_values)
    episode = RecordedEpisode(recorded, RecordedEnvironment("", None), extra={OBSERVATIONS: observations})
    observer, execution.observer = execution.observer, None
    sink = execution.sink
    if kept.over:
        execution.sink = None  # it is recorded as it was, if at all
    try:
        after = await _loaded(execution, recorded, entries)
        result = await replayed(execution, episode, Outside(execution).names, after)
    finally:
        execution.observer, execution.sink = observer, sink
    if result.difference is not None:
        why = "The environment is not deterministic, or has changed"
        outside, until = await Outside(execution).names(), result.difference.step
        for step in recorded.steps:
            if step.call.name in outside and (until is None or step.call.step < until):
                why = (
                    f"The call of {step.call.name} in step {step.call.step} acts on the outside, and was not made "
                    "again. If it changes the environment too, define save_state and load_state"
                )
                break
        raise SessionLost(f"the episode cannot be continued here: {result.difference}. {why}")
    if result.verdict is not Verdict.AGREES:
        raise SessionLost(f"the episode cannot be continued here: {result.why}")
    now = execution.episode.trajectory
    assert now is not None
    now.started_at, now.forked_from, now.ended_at = recorded.started_at, recorded.forked_from, recorded.ended_at
    if now.steps:
        now.steps[:] = recorded.steps[-len(now.steps) :]  # with the times at which they were taken
    if kept.over:
        if sink is not None and all(entry.number != RECORDED for entry in entries):
            # The server that ended it was lost before.
            sink.episode_over(recorded, execution.episode.outputs.all())
        execution.episode.handed_over = True
    return intents[0] if intents else None


def episode_of(kept: KeptSession, entries: Sequence[Entry]) -> Trajectory:
    """Return a kept episode with all of its steps."""
    trajectory = _HEADER.validate_json(kept.header)
    for step, observation in steps_of(entries):
        if observation is not None:  # as the recorder looks for it
            value = _Seen.model_validate(observation)
            step = replace(step, outcome=replace(step.outcome, value=value))
        trajectory.steps.append(step)
    trajectory.dropped = 0  # the journal has all of them
    return trajectory


async def continue_from(store: Store, session_id: str, execution: Execution) -> None:
    """Claim an episode of a store, and continue it in an instance that has no session.

    Raises:
        SessionLost: as `continue_kept`, or the store does not have it.
    """
    kept = await store.claim(session_id, Claimant("no server", "", environment_of(type(execution.env))), None)
    if kept is None:
        raise SessionLost("the store does not have this episode")
    await continue_kept(execution, kept, await store.entries(session_id))


async def _loaded(execution: Execution, recorded: Trajectory, entries: Sequence[Entry]) -> int | None:
    """Load the last snapshot into the instance; return the number of its steps, None if all of them are played.

    Raises:
        SessionLost: the class has its state saved, and it cannot be loaded.
    """
    body = next((entry.body for entry in entries if entry.number == SNAPSHOT), None)
    if body is not None and body.startswith(OBJECT):
        logger.warning(
            "an episode is played again as a whole: its snapshot is elsewhere, and there is no snapshots=URL"
        )
        body = None
    if body is None:
        return None
    try:
        # The store belongs to the operator of these servers, who alone can write there.
        snapshot: Snapshot = pickle.loads(body)
        trajectory = replace(snapshot.episode.trajectory, steps=recorded.steps[: snapshot.step])
        held = replace(snapshot.episode, trajectory=trajectory)
        await execution.restore(replace(snapshot, episode=held), same=True)
    except Exception as error:  # a class may have been renamed
        if way_of(execution) == "export":
            raise SessionLost(f"the episode cannot be continued here: its state cannot be loaded: {error}") from error
        logger.warning("an episode is played again as a whole: its snapshot cannot be loaded: %s", error)
        return None
    return snapshot.step


def steps_of(entries: Sequence[Entry]) -> Iterator[tuple[StepRecord, object]]:
    """Yield the steps that were taken, each with the observation of an environment's own action, or None."""
    for entry in entries:
        if entry.is_step and entry.body is not None:
            yield _BODY.validate_json(entry.body)
