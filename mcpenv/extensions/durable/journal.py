"""The journal of one session: each step is in the store before it is answered, or soon after."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_json

from mcpenv.environment import MCPEnvironment
from mcpenv.execution.execution import Execution
from mcpenv.extensions.records.replay import Outside, answer_step, cut_off
from mcpenv.server.sessions.idempotency import REQUEST
from mcpenv.server.sessions.session import Session
from mcpenv.trajectories.recorder import own_observation
from mcpenv_client.errors import ErrorCode
from mcpenv_client.types.json_types import plain, writer_of_class
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import StepRecord, ToolCall, ToolCalled, ToolOutcome, Trajectory, call_data
from mcpenv_client.types.status import StatusCode
from mcpenv_client.types.tools import ToolErrorType, ToolFailure
from mcpenv_client.wire.protocol import MAX_BEHIND, encode_reply, observation_data

from .record_note import RecordNote
from .snapshots import JournalSnapshots
from .store import Entry, KeptSession, Settings, Store
from .writing import SessionWriter

BEHIND = "behind"
"""The mode in which steps are written after they are answered, and its key in the info of a reset."""


class EpisodeJournal:
    """The journal of the episodes of one session.

    Args:
        store: where it is written.
        kept: the session as the store has it.
        give_up: called once, with the reason, when this server can no longer continue the session.
        told: as `JournalSnapshots` has it, of all sessions of the server.

    Attributes:
        writer: of its entries.
        record_note: of the current episode.
        snapshots: of its episodes.
        goes_on: False after a step that was cut off, which cannot be played again, until the state is saved.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        execution: Execution,
        kept: KeptSession,
        give_up: Callable[[str], None],
        told: set[str] | None = None,
    ) -> None:
        def given_up(why: str) -> None:
            self._execution.episode.handed_over = True  # it is recorded where it goes on
            give_up(why)

        self.writer = SessionWriter(store, settings, kept, given_up)
        self.record_note = RecordNote(execution, self.writer, settings.patience_s)
        self.snapshots = JournalSnapshots(settings, execution, set() if told is None else told)
        self.goes_on = True
        self._outside = Outside(execution)
        self._episode_id: str | None = None
        self._settings = settings
        self._execution = execution
        self._begun_by: tuple[str, bytes] | None = None
        self._keeps_requests = True
        self._intent: asyncio.Future[None] | None = None

    async def begin(
        self,
        execution: Execution,
        handle: str,
        observation: Observation | None,
        request: tuple[str, bytes] | None,
        *,
        new: bool = False,
    ) -> None:
        """Write an episode as it stands, in place of the session's last one.

        Args:
            execution: the instance that has it.
            handle: the episode's handle.
            observation: the answer to the request that began it; None if a step began it.
            request: the id of that request, and the digest of its body; None if it had no id.

        Raises:
            SessionLost: it cannot be written.
        """
        await self.writer.flush()
        await self.record_note.over(wait=False)
        self.record_note = RecordNote(execution, self.writer, self._settings.patience_s)
        self._execution, self.goes_on = execution, True
        self._outside = Outside(execution)
        trajectory = _trajectory_of(execution)
        if observation is not None and self._settings.writes == BEHIND:
            observation.info[BEHIND] = MAX_BEHIND
        # A restored or forked episode has steps already.
        steps = [Entry(step.call.step, body_of(step)) for step in trajectory.steps]
        first = []
        if request is not None and observation is not None:
            first = [Entry(0, None, *request, _observed(observation, request[0]))]
        self._begun_by, self._keeps_requests = request, request is not None
        self.snapshots.begin(execution)
        saved = await self.snapshots.taken(at_once=self.snapshots.exports)
        kept = replace(
            self.writer.kept, handle=handle, header=header_of(trajectory), over=trajectory.done, steps=len(steps)
        )
        self._episode_id = trajectory.episode_id
        await self.writer.begin(kept, [*first, *steps, *saved], new=new)
        if trajectory.done:
            self.note_recorded()

    async def step_begun(self, call: ToolCall) -> None:
        """Write that a call is about to run whose effects are outside: it must not run a second time.

        Raises:
            SessionLost: it cannot be written, or another server continues the episode.
        """
        self.writer.check()
        if self._episode_id not in (None, self._execution.episode.id):
            # A reset has failed, and this step has begun an episode of its own.
            await self.begin(self._execution, "", None, None)
        if call.name in await self._outside.names():
            await self.writer.caught_up()
            await self.writer.flush()
            entry = self._asked(Entry(call.step, b"[null,%b]" % _writer(ToolCall).to_json(call, fallback=plain)))
            # What is begun is completed also if the caller is cancelled.
            self._intent = asyncio.ensure_future(self.writer.announce(entry))
            await asyncio.shield(self._intent)

    async def step_over(self, record: StepRecord) -> None:
        """Write a step.

        Raises:
            SessionLost: it cannot be written, or another server continues the episode.
        """
        execution = self._execution
        if self._intent is not None and not self._intent.done():
            self._intent.cancel()  # the tool has not run
            await asyncio.wait({self._intent})
        self.writer.check()
        if execution.closing and record.status.code is StatusCode.CANCELLED:
            return  # it was not answered: the client asks for it again, and it runs where the session continues
        entry = self._asked(Entry(record.call.step, body_of(record)))
        if entry.request_id is not None:
            entry = replace(entry, reply=self.reply_to(record, entry.request_id))
        trajectory = _trajectory_of(execution)
        outside = record.call.name in await self._outside.names()
        cut = cut_off(record) and not outside
        saved = await self.snapshots.taken(at_once=cut or trajectory.done)
        self.goes_on = bool(saved) or (self.goes_on and not cut)
        # What has acted outside does not run again, so its result must not be lost with this server.
        await self._write([entry, *saved], header_of(trajectory) if trajectory.done else None, at_once=outside)

    async def ended(self, observation: Observation) -> None:
        """Write that the orchestrator has ended the episode.

        Args:
            observation: the answer.

        Raises:
            SessionLost: it cannot be written.
        """
        entry = self._asked(Entry(self._execution.episode.step_count + 1, None))
        if entry.request_id is not None:
            entry = replace(entry, reply=_observed(observation, entry.request_id))
        saved = await self.snapshots.taken(at_once=True)
        await self._write([entry, *saved], header_of(_trajectory_of(self._execution)))

    async def answer_unknown(self, session: Session, entry: Entry) -> None:
        """Take a step for a call of which a server was lost: it may have run, and is not run again."""
        _, call = _INTENT.validate_json(entry.body or b"")
        why = f"The server was lost during this call of {call.name}. It may have run, and is not repeated."
        outcome = ToolOutcome(error=ToolFailure(error_type=ToolErrorType.TRANSPORT_ERROR, message=why))
        request = None if entry.request_id is None else (entry.request_id, entry.digest or b"")
        token = REQUEST.set(request)
        try:
            record = await answer_step(session.execution, StepRecord(call, outcome))
        finally:
            REQUEST.reset(token)
        if request is not None:
            session.replies.answered(*request, self.reply_to(record, request[0]))

    @property
    def unwritten(self) -> int:
        """The number of writes that the store does not have yet."""
        return self.writer.unwritten

    def note_recorded(self) -> None:
        """Write, once the record has the episode, which is over, that it does."""
        self.record_note.begin(_trajectory_of(self._execution).episode_id)

    def _asked(self, entry: Entry) -> Entry:
        """Return an entry with the request that runs in this task, if it has an id.

        The steps that a branch plays again belong to the request that began it, which has one reply.
        """
        request = REQUEST.get()
        return entry if request in (None, self._begun_by) else replace(entry, request_id=request[0], digest=request[1])

    async def _write(self, entries: list[Entry], header: bytes | None, *, at_once: bool = False) -> None:
        if header is not None:
            self.note_recorded()
        # An agent's call has no id by which its client could ask for it again, and a fork's client keeps no messages.
        asked = entries[0].request_id is not None and self._keeps_requests
        behind = self._settings.writes == BEHIND and asked and not at_once
        await self.writer.write(entries, header, behind=behind)

    def reply_to(self, record: StepRecord, request_id: str) -> str:
        """Return the text with which the request is answered."""
        episode = self._execution.episode
        if record.fault is not None:
            error = record.outcome.error
            message = "the step failed" if error is None else error.message
            known = record.fault if record.fault in set(ErrorCode) else ErrorCode.EXECUTION_ERROR.value
            data: dict[str, Any] = {"message": message, "code": known, "status": record.status.to_plain()}
            return encode_reply("error", data, request_id)
        if isinstance(record.outcome.value, Observation) and record.outcome.result is None:
            data = observation_data(episode.observation_of(record))
        else:
            data = call_data(ToolCalled(record, episode.info_of(record)))
        return encode_reply("observation", data, request_id)


_INTENT = TypeAdapter(tuple[None, ToolCall])


async def begin_journal(
    store: Store, session_id: str, execution: Execution, observation: Observation
) -> EpisodeJournal:
    """Begin the journal of an episode that no server has, under an id of its own in the store.

    Args:
        observation: the answer to the reset that began the episode.
    """
    kept = KeptSession(session_id, "", environment_of(type(execution.env)), "", "", b"")
    journal = EpisodeJournal(store, Settings(""), execution, kept, lambda why: None)
    await journal.begin(execution, "", observation, None, new=True)
    execution.journal = journal
    return journal


def environment_of(cls: type[MCPEnvironment]) -> str:
    """Return name and version of an environment, as the store has them."""
    return json.dumps([cls.exposed_name(), cls.VERSION])


def _observed(observation: Observation, request_id: str) -> str:
    return encode_reply("observation", observation_data(observation), request_id)


def _trajectory_of(execution: Execution) -> Trajectory:
    trajectory = execution.episode.trajectory
    assert trajectory is not None
    return trajectory


def header_of(trajectory: Trajectory) -> bytes:
    """Return a trajectory without its steps as JSON."""
    return _writer(Trajectory).to_json(replace(trajectory, steps=[]), fallback=plain)


def body_of(step: StepRecord) -> bytes:
    """Return a step and the observation of an environment's own action as JSON."""
    return b"[%b,%b]" % (_writer(StepRecord).to_json(step, fallback=plain), to_json(own_observation(step)))


_writer = functools.cache(writer_of_class)
