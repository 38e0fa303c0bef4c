"""The sessions of a server and its capacity, as the control plane answers at ``/sessions`` and ``/capacity``."""

from __future__ import annotations

import time
from typing import Any

from pydantic import AliasChoices, ConfigDict, Field, computed_field

from .models import Model
from .records import Reward
from .tools import Mode


class SessionInfo(Model):
    """The description of one session. The first five fields are OpenEnv's.

    Attributes:
        session_id: the id, as the control plane's routes take it.
        created_at: seconds since the epoch, by the server's clock.
        last_activity_at: when it was last used, in seconds since the epoch, by the server's clock.
        step_count: steps of the running or last episode.
        environment_type: the name of the environment's class.
        origin: the origin of the session: "socket", "http", "connection", "principal" or "service".
        mode: the server's mode.
        planes: the planes that use it: "control", "agent" or both.
        episode_id: the running or last episode; None where no orchestrator owns episodes.
        state: a value of `EpisodeState`.
        busy: a reset, a step or another call runs.
        task: id, split and version of the episode's task; None if it has none.
        total_reward: the sum of the episode's rewards, "return" in JSON; None where no orchestrator owns episodes, or
            if scoring failed.
        reward: the episode's last reward; None if nothing was scored.
        status: the status of the episode, a value of `StatusCode`; None while it runs.
        agent: the name of the agent that plays, as reported by its client or its token; None if unknown.
        paused_until: until when its calls wait, in seconds since the epoch by the server's clock, unless it is resumed
            before; None if it is not paused. A paused session is busy.
        unwritten: of a durable session, the number of writes that its store does not have yet; None of others.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    session_id: str
    created_at: float
    last_activity_at: float
    step_count: int = Field(default=0, ge=0)
    environment_type: str
    origin: str
    mode: Mode
    planes: list[str]
    episode_id: str | None = None
    state: str
    busy: bool
    task: dict[str, str] | None = None
    total_reward: float | None = Field(
        default=None, validation_alias=AliasChoices("return", "total_reward"), serialization_alias="return"
    )
    reward: Reward | None = None
    status: str | None = None
    agent: str | None = None
    paused_until: float | None = None
    unwritten: int | None = None

    def age_s(self, now: float | None = None) -> float:
        """Return the seconds since the session was created.

        Args:
            now: the server's clock, in seconds since the epoch; None: this machine's.
        """
        return max((time.time() if now is None else now) - self.created_at, 0.0)

    def idle_s(self, now: float | None = None) -> float:
        """Return the seconds since the session was last used; 0.0 while it is busy.

        Args:
            now: the server's clock, in seconds since the epoch; None: this machine's.
        """
        return 0.0 if self.busy else max((time.time() if now is None else now) - self.last_activity_at, 0.0)

    def to_plain(self) -> dict[str, Any]:
        """Return the session as plain JSON data, under the names of the wire."""
        return self.model_dump(mode="json", by_alias=True)


class ServerCapacityStatus(Model):
    """The present and maximum numbers of a server's sessions; all workers of one server count together.

    Attributes:
        active_sessions: instances in construction, in use or being closed.
        max_sessions: the maximum of ``active_sessions``.
        waiting: clients that wait for a free session.
        quarantined: instances left behind with code that cannot be stopped.
        ready: new sessions are accepted, at once or after waiting.
        reason: the reason why they are not; None if they are, or if the server does not say.
        available_slots: sessions that can be opened at once; 0 if the server is not ready.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    active_sessions: int = Field(ge=0)
    max_sessions: int
    waiting: int = 0
    quarantined: int = 0
    ready: bool = True
    reason: str | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def available_slots(self) -> int:
        """The number of free slots; 0 if the server accepts no new sessions."""
        return max(self.max_sessions - self.active_sessions, 0) if self.ready else 0

    @property
    def is_at_capacity(self) -> bool:
        """True if no session can be opened at once."""
        return self.available_slots == 0

    def to_plain(self) -> dict[str, Any]:
        """Return the status as plain JSON data."""
        return self.model_dump(mode="json")
