"""The snapshot of an episode after one of its steps, which can be continued any number of times."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

from mcpenv.errors import Misuse
from mcpenv.execution.sink import SpilledSteps
from mcpenv.tools.outputs import KeptOutputs
from mcpenv.worlds import Tree
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import StepRecord, Trajectory


@dataclass(frozen=True)
class HeldState:
    """The state of the author's code. It is stored as bytes, so that it never changes.

    Attributes:
        parts: the attributes (or the value of ``save_state``), the values of ``ctx.set_state``, and the rubric's state.
        worlds: the saved worlds by name; the name is "" if there is only one.
        attributes: the names of all attributes.
        rubrics: the classes of the rubric and its parts. A restore requires the same classes.
        tools: the names of the tools of each mode.
    """

    parts: bytes
    worlds: dict[str, bytes]
    attributes: frozenset[str]
    rubrics: tuple[str, ...]
    tools: dict[str, tuple[str, ...]]

    @property
    def bytes(self) -> int:
        """The size in bytes."""
        return len(self.parts) + sum(map(len, self.worlds.values()))


@dataclass(frozen=True)
class HeldEpisode:
    """The state and the history of an episode.

    Attributes:
        trajectory: its record. The steps are shared with the episode's own record, and are never changed.
        first: the observation of the reset.
        last: the observation that the orchestrator got when it ended the episode; None if it did not end it.
        verified: True if the end was verified, or will be.
        before: the world after the reset, for the verifier; None if it was not captured, or there is no world.
        elapsed_s: seconds since the reset.
        scored: True if the reset, a step or the end had a reward.
        reset_of: the id of the reset: the session id of its instance, and its number in that instance.
        toolbox: the version of the instance's tools.
        spilled: steps that the trajectory no longer contains, if the episode is recorded.
        outputs: the long outputs that are kept; None in snapshots of older versions.
        rest: what rounding has taken from the sum of the rewards.
    """

    trajectory: Trajectory
    first: Observation
    last: Observation | None
    verified: bool
    before: Tree | None
    elapsed_s: float
    scored: bool
    reset_of: tuple[str, int]
    toolbox: int
    spilled: SpilledSteps | None = None
    outputs: KeptOutputs | None = None
    rest: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """An episode as it was after one of its steps, made by `MCPEnvironment.snapshot` for `restore` and `fork`.

    It never changes, even when its environment does, and may be used any number of times. It can be pickled. As with
    every pickle, load only trusted data, because loading runs code.

    Attributes:
        environment: module and name of the environment's class.
        version: the version of the environment.
        episode_id: the id of the original episode.
        step: the number of steps that the episode had.
        bytes: its size, if the steps of its record are not shared.
    """

    environment: str
    version: str
    episode_id: str
    step: int
    bytes: int
    state: HeldState = field(repr=False)
    episode: HeldEpisode = field(repr=False)

    def check_class(self, cls: type, version: str) -> None:
        """Raise if this is a snapshot of another environment.

        Raises:
            Misuse: if class or version differ.
        """
        if self.environment != class_name(cls):
            raise Misuse(f"a snapshot of {self.environment} cannot be restored in {class_name(cls)}")
        if self.version != version:
            raise Misuse(
                f"a snapshot of version {self.version} of {self.environment} cannot be restored in version {version}"
            )


def class_name(cls: type) -> str:
    """Return module and name of a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def size_of(trajectory: Trajectory, before: Tree | None) -> int:
    """Return the approximate size in bytes of an episode's record and of the world after its reset."""
    return len(pickle.dumps([before, *map(_weighed, trajectory.steps)], protocol=5))


def _weighed(record: StepRecord) -> tuple[Any, ...]:
    outcome = record.outcome
    return (
        record.call.arguments,
        None if outcome.result is None else outcome.result.__dict__,
        None if outcome.error is None else outcome.error.message,
        [entry.message for entry in record.logs],
        None if record.reward is None else record.reward.components,
    )
