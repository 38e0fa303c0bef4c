"""Parts of a record as texts, for the command line and for pages."""

from __future__ import annotations

from mcpenv_client.types.records import Reward
from mcpenv_client.types.status import Status


def reward_text(reward: Reward) -> str:
    """Return a reward with its parts."""
    parts = ", ".join(f"{name} {value:g}" for name, value in reward.components.items())
    return f"{reward.value:g}" + (f" ({parts})" if parts else "")


def status_text(status: Status) -> str:
    """Return a status with all its details."""
    limit = "" if status.limit is None else f" ({status.limit})"
    stage = "" if status.stage is None else f", stage {status.stage.value}"
    return f"{status.code.value}{limit}{stage}{', a retry may help' if status.retryable else ''}"
