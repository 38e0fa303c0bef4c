"""Snapshot: an episode as it stood after one of its steps, to be gone on from as often as one likes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from typing import Any

from mcpenv_client.observations import Observation
from mcpenv_client.records import StepRecord, Trajectory

from ..assignment import Assignment, copied
from ..errors import Misuse
from ..sink import SpilledSteps
from ..worlds import Tree


@dataclass(frozen=True)
class HeldState:
    """What the author's code holds, as bytes: nothing that happens later changes it.

    Attributes:
        parts: the attributes (or what ``save_state`` gave), what tools kept by ``ctx.set_state``, the rubric's own.
        worlds: each world as its `save` gave it, by name; "" where the environment has just one.
        attributes: the names of all attributes that there were.
        rubrics: the classes of the rubric and its parts, which have to be the same where it is restored.
        tools: the names of the tools of each mode.
    """

    parts: bytes
    worlds: dict[str, bytes]
    attributes: frozenset[str]
    rubrics: tuple[str, ...]
    tools: dict[str, tuple[str, ...]]

    @property
    def bytes(self) -> int:
        """How large it is."""
        return len(self.parts) + sum(map(len, self.worlds.values()))


@dataclass(frozen=True)
class HeldEpisode:
    """Where the episode stood, and how it came there.

    Attributes:
        trajectory: its record; the steps are shared with the episode's own, and nobody changes them.
        first: what the reset answered.
        last: what the orchestrator was answered when it ended the episode; None if it did not.
        verified: its end will be, or was.
        before: the world as the reset left it, for the verifier; None if nobody looked, or there is no world.
        elapsed_s: seconds since the reset.
        scored: whether anything in it had a reward.
        reset_of: names the reset that it came from: the instance's, and its number there.
        toolbox: the version of the instance's tools.
        spilled: steps that the trajectory holds no longer, where the episode is recorded.
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

    def assignment(self, *, declares_task: bool) -> Assignment:
        """What the author's reset was given.

        Args:
            declares_task: it has a parameter ``task``.
        """
        then = self.trajectory
        options = copied(then.options)
        if declares_task and then.task is not None:
            options.setdefault("task", then.task)
        return Assignment(then.task, then.seed, options)

    def __getstate__(self) -> dict[str, Any]:
        """For a file: without the Python objects that tools returned, which may have no such form."""
        steps = [_storable(record) for record in self.trajectory.steps]
        return {**self.__dict__, "trajectory": replace(self.trajectory, steps=steps)}


@dataclass(frozen=True)
class Snapshot:
    """An episode as it stood after one of its steps: `MCPEnvironment.snapshot` gives it, `restore` and `fork` take it.

    It does not change, whatever becomes of its environment, and may be used any number of times. It pickles; as with
    every pickle, load only what you trust, because loading runs code.

    Attributes:
        environment: the class of the environment: module and name.
        version: the environment's.
        episode_id: the episode that it was taken of.
        step: steps that the episode had.
        bytes: what it takes if nothing else holds the steps of its record.
    """

    environment: str
    version: str
    episode_id: str
    step: int
    bytes: int
    state: HeldState = field(repr=False)
    episode: HeldEpisode = field(repr=False)

    def check_class(self, cls: type, version: str) -> None:
        """Refuse another environment.

        Raises:
            Misuse: it is of another class, or version.
        """
        if self.environment != class_name(cls):
            raise Misuse(f"a snapshot of {self.environment} cannot be restored in a {class_name(cls)}")
        if self.version != version:
            raise Misuse(
                f"a snapshot of version {self.version} of {self.environment} cannot be restored in version {version}"
            )


def class_name(cls: type) -> str:
    """Module and name of a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def size_of(trajectory: Trajectory, before: Tree | None) -> int:
    """About how many bytes the record of an episode takes, and the world as its reset left it."""
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


def _storable(record: StepRecord) -> StepRecord:
    value = record.outcome.value
    kept = value if isinstance(value, Observation) else None
    return replace(record, outcome=replace(record.outcome, value=kept))
