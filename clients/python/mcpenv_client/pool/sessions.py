"""The sessions that a pool plays on, async and blocking."""

from __future__ import annotations

from typing import Any, Protocol

from mcpenv_client.conversation import Playable
from mcpenv_client.types.records import StepResult, Trajectory
from mcpenv_client.types.starts import Start
from mcpenv_client.types.tools import Tool


class Session(Playable, Protocol):
    """A session that a pool plays on: `EnvClient`, or `mcpenv.extensions.in_process.InProcessClient`."""

    async def step(self, action: Any, *, timeout_s: float | None = None) -> StepResult[Any]:
        """Take one step."""
        ...

    async def snapshot(self) -> Any:
        """Return a snapshot of the episode.

        Raises:
            NotSupported: the environment cannot be saved.
        """
        ...

    async def restore(self, snapshot: Any) -> StepResult[Any]:
        """Continue from a snapshot, in a new episode."""
        ...

    async def branch(self, record: Start, step: int) -> StepResult[Any]:
        """Begin an episode that continues a recorded one after a step.

        Raises:
            InvalidMessage: the recorded steps do not come out the same.
        """
        ...

    async def drop_snapshot(self, snapshot: Any) -> bool:
        """Delete a snapshot."""
        ...

    async def trajectory(self) -> Trajectory:
        """Return the record of the episode."""
        ...

    async def close(self) -> None:
        """End the session."""
        ...


class BlockingSession(Protocol):
    """The same with blocking methods: `SyncEnvClient`, or `mcpenv.extensions.in_process.SyncInProcessClient`."""

    def reset(self, seed: int | None = None, **options: Any) -> StepResult[Any]:
        """Begin an episode."""
        ...

    def step(self, action: Any, *, timeout_s: float | None = None) -> StepResult[Any]:
        """Take one step."""
        ...

    def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> StepResult[Any]:
        """Call one tool."""
        ...

    def list_tools(self) -> list[Tool]:
        """Return the tools."""
        ...

    def end(self, *, truncated: bool = False, reason: str | None = None) -> StepResult[Any]:
        """End the episode."""
        ...

    def snapshot(self) -> Any:
        """Return a snapshot of the episode. Raises as `Session.snapshot`."""
        ...

    def restore(self, snapshot: Any) -> StepResult[Any]:
        """Continue from a snapshot, in a new episode."""
        ...

    def branch(self, record: Start, step: int) -> StepResult[Any]:
        """Begin an episode that continues a recorded one after a step. Raises as `Session.branch`."""
        ...

    def drop_snapshot(self, snapshot: Any) -> bool:
        """Delete a snapshot."""
        ...

    def trajectory(self) -> Trajectory:
        """Return the record of the episode."""
        ...

    def close(self) -> None:
        """End the session."""
        ...
