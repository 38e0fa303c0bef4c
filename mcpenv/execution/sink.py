"""The receiver of finished episodes, `EpisodeSink`; of steps, the observer, `Observer`, and the journal, `StepJournal`.

The core knows nothing else about recording, metrics, access logs and durable episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mcpenv.tools.outputs import Output
from mcpenv_client.types.model_turns import ModelTurn
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import StepRecord, ToolCall, Trajectory
from mcpenv_client.types.tools import Mode

if TYPE_CHECKING:
    from mcpenv.tools.registry import ToolRegistry


class SpilledSteps(Protocol):
    """The oldest steps of an episode, stored by a sink. They never change, and can be pickled."""

    @property
    def bytes(self) -> int:
        """The approximate memory that they take."""
        ...


class EpisodeSink(Protocol):
    """A receiver of episodes. Its methods may be called from any thread of the core, and must not block on disk.

    Attributes:
        agent: the name of the agent that plays the episodes; None if unknown.
    """

    agent: str | None

    def spill(self, trajectory: Trajectory, steps: Sequence[StepRecord]) -> None:
        """Accept the oldest steps of a running episode that is longer than its environment keeps."""
        ...

    def spilled(self, trajectory: Trajectory) -> SpilledSteps | None:
        """Return the steps of a running episode that were given to `spill`, for an episode that will continue it."""
        ...

    def resume(self, trajectory: Trajectory, spilled: SpilledSteps) -> None:
        """Register an episode as the continuation of another one, with the oldest steps ``spilled``."""
        ...

    def episode_over(self, trajectory: Trajectory, outputs: Sequence[Output] = ()) -> None:
        """Accept a finished or abandoned episode. The core never changes it again.

        Args:
            outputs: the whole texts of cut results, as far as the episode still keeps them.
        """
        ...

    def played_by(self, episode_id: str | None, agent: str) -> None:
        """Note the agent that plays an episode. `agent`, where it is set, has priority."""
        ...

    def said(self, episode_id: str | None, turns: Sequence[ModelTurn]) -> None:
        """Note the requests to a model that plays an episode, and its answers. The sequence may still grow."""
        ...

    def another(self, tools: ToolRegistry, mode: Mode) -> EpisodeSink:
        """Return a sink for another instance of the environment.

        Args:
            tools: the tools of that instance.
            mode: the mode that decides which of them are visible.
        """
        ...

    async def written(self, episode_id: str) -> bool:
        """Return True when the accepted steps of that episode are on disk, False if writing them has failed."""
        ...


class StepJournal(Protocol):
    """The journal of one instance's steps. Its methods are awaited while the instance can begin no other step."""

    @property
    def unwritten(self) -> int:
        """The number of writes that wait: for the store, or to be written after their steps were answered."""
        ...

    async def step_begun(self, call: ToolCall) -> None:
        """Note a step that is about to run.

        Raises:
            SessionLost: it must not run here.
        """
        ...

    async def step_over(self, record: StepRecord) -> None:
        """Write a step that was taken and scored.

        Raises:
            SessionLost: it cannot be written, or another server continues the episode.
        """
        ...

    async def ended(self, observation: Observation) -> None:
        """Write that the orchestrator has ended the episode.

        Args:
            observation: the answer.

        Raises:
            SessionLost: as above.
        """
        ...


class Observer(Protocol):
    """The observer of one instance. Its methods are called on the event loop, and must be quick.

    Attributes:
        label: the name of the session in logs and traces. It does not give access to the session.
    """

    label: str

    def step_over(self, record: StepRecord) -> None:
        """Observe a step that was taken and scored, with any status."""
        ...

    def episode_over(self, trajectory: Trajectory) -> None:
        """Observe an episode that has ended or was abandoned."""
        ...

    def reset_over(self, *, failed: bool) -> None:
        """Observe a reset."""
        ...
