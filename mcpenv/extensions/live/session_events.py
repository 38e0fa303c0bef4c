"""The events of a session for those who watch it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

from mcpenv.server.control.http import PING, PING_S, event
from mcpenv.server.control.session_routes import info_of
from mcpenv.server.sessions.session import Session
from mcpenv.trajectories.recorder import own_observation
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.records import StepRecord, Trajectory
from mcpenv_client.wire.protocol import EpisodeState

BATCH = 32
"""Maximum steps of one write."""

LARGE = 16_384
"""Characters of base64 text above which a step has a reference to an image or audio instead of its data."""

_BEGUN = frozenset({EpisodeState.RUNNING, EpisodeState.DONE})


class Position:
    """The place in a session up to which a watcher has seen it: an episode, and a number of its steps.

    Args:
        text: the id of the last event, as ``EPISODE.STEP``.

    Raises:
        InvalidMessage: it is no such text.
    """

    def __init__(self, text: str) -> None:
        self.episode, _, step = text.rpartition(".")
        if not self.episode or not (step.isascii() and step.isdigit()) or len(step) > 15:
            raise InvalidMessage(f"the last event's id is EPISODE.STEP, as this server sent it, and not {text[:80]!r}")
        self.step = int(step)


def key_of(trajectory: Trajectory) -> str:
    """Return a short name of an episode, with which nobody can join it. An orchestrator may use an id twice."""
    text = f"{trajectory.episode_id} {trajectory.started_at!r}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def begun_trajectory(session: Session) -> Trajectory | None:
    """Return the running or last episode of a session; None before its reset is over."""
    episode = session.execution.episode
    return episode.trajectory if episode.orchestrated and episode.state in _BEGUN else None


def without_steps(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as plain data without its steps."""
    data = replace(trajectory, steps=[]).to_plain()
    del data["steps"]
    return data


def shown_step(session_id: str, episode: str, position: int, step: StepRecord) -> dict[str, Any]:
    """Return a step as plain data, with references to its large contents.

    Args:
        episode: the `key_of` its episode.
        position: its place among the steps of the episode, from 1.
    """
    data = step.to_plain()
    data["position"] = position
    seen = own_observation(step)
    if seen is not None:
        data["observation"] = seen
    result = data["outcome"]["result"]
    if result is not None:
        at = f"sessions/{session_id}/steps/{position}/content"
        result["content"] = [
            _referred(block, f"{at}/{index}?episode={episode}") for index, block in enumerate(result["content"])
        ]
    return data


def _referred(block: dict[str, Any], reference: str) -> dict[str, Any]:
    text = block.get("data")
    if not isinstance(text, str) or len(text) <= LARGE:
        return block
    return {**{name: value for name, value in block.items() if name != "data"}, "ref": reference}


async def events_of(session: Session, last: Position | None) -> AsyncIterator[bytes]:
    """Yield the events of a session until it is closed: its episode, the steps so far, and what follows.

    A watcher that falls behind what the session keeps begins anew. The session never waits for it.

    Args:
        last: the place after which to continue, if the session still has that episode.
    """
    view = _View(session, last)
    with session.live.watching() as news:
        while True:
            news.clear()
            for text in view.news():
                yield text
            if session.live.closed:
                yield event("closed", None, {})
                return
            try:
                async with asyncio.timeout(PING_S):
                    await news.wait()
            except TimeoutError:
                yield PING


class _View:
    """What one watcher has seen of a session."""

    def __init__(self, session: Session, last: Position | None) -> None:
        self._session = session
        self._trajectory: Trajectory | None = None
        self._key = ""
        self._seen = 0
        self._ended = False
        current = begun_trajectory(session)
        if last is not None and current is not None and key_of(current) == last.episode:
            kept = current.dropped <= last.step <= current.dropped + len(current.steps)
            if kept:
                self._follow(current, last.step)

    def news(self) -> Iterator[bytes]:
        """Yield what has happened since. The episode before is told to its end before the next one."""
        while True:
            trajectory = self._trajectory
            if trajectory is not None:
                if trajectory.dropped > self._seen:
                    yield self._begin(trajectory)
                    continue
                steps = self._next(trajectory)
                if steps:
                    yield b"".join(steps)
                    continue
                if trajectory.ended_at is not None and not self._ended:
                    self._ended = True
                    yield event("end", self._id, {"episode": self._key, "trajectory": without_steps(trajectory)})
                    continue
            current = begun_trajectory(self._session)
            if current is None or current is trajectory:
                return
            yield self._begin(current)

    def _begin(self, trajectory: Trajectory) -> bytes:
        self._follow(trajectory, trajectory.dropped)
        session = info_of(self._session).to_plain()
        data = {"session": session, "episode": self._key, "trajectory": without_steps(trajectory)}
        return event("episode", self._id, data)

    def _follow(self, trajectory: Trajectory, seen: int) -> None:
        self._trajectory, self._key, self._seen, self._ended = trajectory, key_of(trajectory), seen, False

    def _next(self, trajectory: Trajectory) -> list[bytes]:
        first = self._seen - trajectory.dropped
        steps = trajectory.steps[first : first + BATCH]
        return [self._step(step) for step in steps]

    def _step(self, step: StepRecord) -> bytes:
        self._seen += 1
        key, position, session = self._key, self._seen, self._session

        def made() -> bytes:
            data = {"episode": key, "step": shown_step(session.id, key, position, step)}
            return event("step", f"{key}.{position}", data)

        return session.live.encoded(key, position, made)

    @property
    def _id(self) -> str:
        return f"{self._key}.{self._seen}"
