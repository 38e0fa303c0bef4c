"""Continue a kept session: load its state if it was saved, play the rest of its journal, and compare each result."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import TypeAdapter

from mcpenv.execution.snapshots import Snapshot
from mcpenv.extensions.records.replay import Verdict, replayed
from mcpenv.server.sessions.session import Session
from mcpenv.trajectories.episode import OBSERVATIONS, RecordedEnvironment, RecordedEpisode
from mcpenv_client.errors import McpenvError, SessionLost
from mcpenv_client.types.records import StepRecord, Trajectory, summed

from .journal import Outside
from .store import SNAPSHOT, Entry, KeptSession

_HEADER = TypeAdapter(Trajectory)
_BODY = TypeAdapter(tuple[StepRecord, object])


async def rerun(session: Session, kept: KeptSession, entries: Sequence[Entry]) -> Entry | None:
    """Play the journal in a new session.

    Steps are not counted again for those who observe the session.

    Returns:
        The entry of a call that may have run, and must not run again; None if there is none.

    Raises:
        SessionLost: a result differs, or a step cannot be repeated. The text names the first difference.
    """
    execution = session.execution
    recorded = _HEADER.validate_json(kept.header)
    observations: dict[str, object] = {}
    for step, observation in steps_of(entries):
        recorded.steps.append(step)
        if observation is not None:
            observations[str(step.call.step)] = observation
    recorded.dropped = 0  # the journal has all of them
    if not kept.over:
        recorded.total_reward = summed(recorded.reward_values)
    episode = RecordedEpisode(recorded, RecordedEnvironment("", None), extra={OBSERVATIONS: observations})
    observer, execution.observer = execution.observer, None
    sink = execution.sink
    if kept.over:
        execution.sink = None  # the server that ended it has recorded it
    try:
        after = await _loaded(session, recorded, entries)
        result = await replayed(execution, episode, Outside(execution).names, after)
    finally:
        execution.observer, execution.sink = observer, sink
    if result.difference is not None:
        found = result.difference
        where = "the reset" if found.step == 0 else "the end" if found.step is None else f"step {found.step}"
        raise SessionLost(
            f"the episode cannot be continued here: {where} gave another {found.field} than before "
            f"({_shown(found.recorded)}, now {_shown(found.replayed)}). The environment is not deterministic, or has "
            "changed"
        )
    if result.verdict is not Verdict.AGREES:
        raise SessionLost(f"the episode cannot be continued here: {result.why}")
    now = execution.episode.trajectory
    assert now is not None
    now.started_at, now.forked_from, now.ended_at = recorded.started_at, recorded.forked_from, recorded.ended_at
    if now.steps:
        now.steps[:] = recorded.steps[-len(now.steps) :]  # with the times at which they were taken
    if kept.over:
        execution.episode.handed_over = True
    for entry in entries:
        if entry.request_id is not None and entry.digest is not None and entry.reply is not None:
            session.replies.answered(entry.request_id, entry.digest, entry.reply)
    return next((each for each in entries if each.number < SNAPSHOT and each.body and not each.is_step), None)


async def _loaded(session: Session, recorded: Trajectory, entries: Sequence[Entry]) -> int:
    """Load the last snapshot into the instance; return the number of its steps, 0 if there is none."""
    body = next((entry.body for entry in entries if entry.number == SNAPSHOT), None)
    if body is None:
        return 0
    # The store belongs to the operator of these servers, who alone can write there.
    snapshot: Snapshot = pickle.loads(body)
    trajectory = replace(snapshot.episode.trajectory, steps=recorded.steps[: snapshot.step])
    held = replace(snapshot.episode, trajectory=trajectory)
    try:
        await session.execution.restore(replace(snapshot, episode=held), same=True)
    except McpenvError as error:
        raise SessionLost(f"the episode cannot be continued here: its state cannot be loaded: {error}") from error
    return snapshot.step


def steps_of(entries: Sequence[Entry]) -> Iterator[tuple[StepRecord, object]]:
    """Yield the steps that were taken, each with the observation of an environment's own action, or None."""
    for entry in entries:
        if entry.is_step and entry.body is not None:
            yield _BODY.validate_json(entry.body)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
