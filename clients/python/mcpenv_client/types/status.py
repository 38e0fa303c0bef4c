"""The status of a step and of an episode: the outcome in addition to its reward.

A reward measures the agent's success. The status shows if the reward does so at all: a failure of the environment, of a
judge or of the connection is never a reward of 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class StatusCode(str, Enum):
    """The status of a step or an episode."""

    COMPLETED = "completed"
    """It came to its end."""
    TRUNCATED = "truncated"
    """A limit ended the episode; `Status.limit` names it."""
    AGENT_ERROR = "agent_error"
    """The agent's own mistake: a refused call, invalid arguments, an unknown tool."""
    ENV_ERROR = "env_error"
    """The environment's own code failed, or passed its deadline."""
    JUDGE_ERROR = "judge_error"
    """A rubric, a model judge or a verifier failed, so that there is no reward."""
    TRANSPORT_LOST = "transport_lost"
    """The connection or the session was lost before the end."""
    CANCELLED = "cancelled"
    """The orchestrator cancelled or abandoned it."""


class Stage(str, Enum):
    """The stage of an episode in which the failure occurred."""

    RESET = "reset"
    """The constructor, the reset, or the task."""
    TOOL = "tool"
    """A tool or an action of the environment's own."""
    SCORE = "score"
    """The environment's ``score``, a rubric, or ``finish(reward=...)``."""
    VERIFY = "verify"
    """The verifier of the end."""
    CLOSE = "close"
    """The environment's ``close``."""


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a step or an episode.

    Attributes:
        code: the outcome.
        stage: the stage of the failure; None if no stage failed.
        retryable: True if a new attempt at the episode may end otherwise.
        limit: the limit that was passed ("max_steps", "time_limit", "timeout", an author's reason), or None.
    """

    code: StatusCode
    stage: Stage | None = None
    retryable: bool = False
    limit: str | None = None

    @property
    def usable(self) -> bool:
        """True if the reward is about the agent. Trainers mask or retry the others."""
        return self.code in (StatusCode.COMPLETED, StatusCode.TRUNCATED, StatusCode.AGENT_ERROR)

    def to_plain(self) -> dict[str, Any]:
        """Return plain JSON data: ``code``, ``retryable``, and ``stage`` and ``limit`` where there is one."""
        plain: dict[str, Any] = {"code": self.code.value, "retryable": self.retryable}
        if self.stage is not None:
            plain["stage"] = self.stage.value
        if self.limit is not None:
            plain["limit"] = self.limit
        return plain

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Status:
        """Return the status for the data that `to_plain` returned.

        Raises:
            ValueError: the code or the stage is unknown, or there is no code.
        """
        stage, limit = data.get("stage"), data.get("limit")
        return cls(
            StatusCode(data.get("code")),
            None if stage is None else Stage(stage),
            bool(data.get("retryable", False)),
            None if limit is None else str(limit),
        )


COMPLETED = Status(StatusCode.COMPLETED)
"""The status of everything that completed."""

COMPLETED_DATA = COMPLETED.to_plain()
"""The same as plain data. Copy it."""

REFUSED_CALL = Status(StatusCode.AGENT_ERROR, Stage.TOOL)
"""The status of a step after the tool refused its call, or could not accept it."""

TOOL_RAISED = Status(StatusCode.ENV_ERROR, Stage.TOOL, True)
"""The status of a step after its tool failed unexpectedly."""

TIMED_OUT = Status(StatusCode.ENV_ERROR, Stage.TOOL, True, "timeout")
"""The status of a step after its tool passed its deadline."""

CANCELLED_CALL = Status(StatusCode.CANCELLED, Stage.TOOL, True)
"""The status of a step that was cancelled while its tool ran."""


def read_status(data: Any) -> Status | None:
    """Return the status in data from outside; None if this version knows none in it."""
    if not isinstance(data, Mapping):
        return None
    try:
        return Status.from_plain(data)
    except ValueError:
        return None  # a newer version's code
