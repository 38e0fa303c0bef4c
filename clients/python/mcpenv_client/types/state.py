"""The base of states, which environments show to their orchestrator."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from .models import Model


class State(Model):
    """The base of all states. An environment's own states subclass it, or add fields freely."""

    model_config = ConfigDict(
        extra="allow",
        validate_assignment=True,
        arbitrary_types_allowed=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    episode_id: str | None = Field(default=None, description="The running episode, None before the first reset")
    step_count: int = Field(default=0, ge=0, description="Steps taken in this episode")
    done: bool | None = Field(
        default=None, description="True if the episode is over; None before the first reset, and from other servers"
    )
