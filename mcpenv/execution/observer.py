"""The observer of steps, episodes and resets, `Observer`. The core knows nothing else about metrics and access logs."""

from __future__ import annotations

from typing import Protocol

from mcpenv_client.types.records import StepRecord, Trajectory


class Observer(Protocol):
    """The observer of one instance. Its methods are called on the event loop, and must be quick.

    Attributes:
        label: the name of the session for logs and traces, with which nobody can join it.
    """

    label: str

    def step_over(self, record: StepRecord) -> None:
        """Observe a step that was taken and scored, whatever its status."""
        ...

    def episode_over(self, trajectory: Trajectory) -> None:
        """Observe an episode that has ended or was abandoned."""
        ...

    def reset_over(self, *, failed: bool) -> None:
        """Observe a reset."""
        ...
