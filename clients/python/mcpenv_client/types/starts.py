"""Start: a step of a recorded episode, from which other episodes begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from mcpenv_client.errors import InvalidMessage

from .records import Trajectory
from .tasks import Task


@runtime_checkable
class Recorded(Protocol):
    """A recorded episode, such as `mcpenv.RecordedEpisode`."""

    @property
    def trajectory(self) -> Trajectory:
        """Its trajectory."""
        ...

    @property
    def extra(self) -> dict[str, Any]:
        """Its further data, with the observations of the environment's own actions."""
        ...


@dataclass(frozen=True)
class Start:
    """A step of a recorded episode, from which other episodes begin: as ``Start(episode, 5)``, after its fifth step.

    Only the part up to the step is kept. It may be pickled, and sent to other processes.

    Args:
        record: a recorded episode, its trajectory, another start, or the id of an episode in the server's own record.
        step: the number of steps that the new episodes have in common with it; 0: none, only the reset.
        observations: what the environment's own actions returned, by the number of the step as a text; None: they are
            not known, and not compared. A recorded episode has its own.

    Raises:
        ValueError: the episode has no such step, or is over after it.
    """

    record: Trajectory | Recorded | Start | str
    step: int
    observations: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Leave out what comes after the step."""
        whole: Any = self.record
        if isinstance(whole, Start):
            object.__setattr__(self, "observations", whole.observations)
            object.__setattr__(self, "record", whole.record)
            whole = whole.record
        if isinstance(whole, str):
            if self.step < 0:
                raise ValueError(f"step is {self.step}; it must be 0 or more")
            return
        if not isinstance(whole, Trajectory):
            seen: Mapping[str, Any] = whole.extra.get("observations", {})
            within = {number: each for number, each in seen.items() if int(number) <= self.step}
            object.__setattr__(self, "observations", within)
            whole = whole.trajectory
        if not 0 <= self.step <= len(whole.steps):
            raise ValueError(f"the episode {whole.episode_id} has {len(whole.steps)} steps, and so no step {self.step}")
        if self.step and whole.steps[self.step - 1].done:
            raise ValueError(f"the episode {whole.episode_id} is over after step {self.step}; give an earlier step")
        prefix = Trajectory(
            whole.episode_id,
            whole.seed,
            whole.options,
            whole.implicit_reset,
            whole.steps[: self.step],
            whole.dropped,
            started_at=whole.started_at,
            task=whole.task,
            observation=whole.observation,
            forked_from=whole.forked_from,
        )
        object.__setattr__(self, "record", prefix)

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Start:
        """Return the start for the ``data`` of a branch frame.

        Raises:
            InvalidMessage: with locations in ``errors``.
        """
        step, seen, name = data.get("step"), data.get("observations"), data.get("episode_id")
        fits = {
            "step": isinstance(step, int) and not isinstance(step, bool),
            "observations": isinstance(seen, Mapping | None),
            "trajectory": isinstance(name, str) != isinstance(data.get("trajectory"), dict),
        }
        wrong = [name for name, fit in fits.items() if not fit]
        wrong += [name[:60] for name in sorted(data.keys() - fits.keys() - {"episode_id"})[:10]]
        if wrong:
            faults = [{"loc": ["data", name], "msg": "not of a branch", "type": "value_error"} for name in wrong]
            raise InvalidMessage("a branch frame takes step and trajectory, or step and episode_id", errors=faults)
        try:
            return cls(Trajectory.from_plain(data["trajectory"]) if name is None else name, data["step"], seen)
        except ValueError as error:  # also pydantic's
            raise InvalidMessage(f"the branch frame has no such start: {error}") from error

    @property
    def took_s(self) -> float:
        """The seconds that the recorded steps took; 0 if they are not known here."""
        steps = self.record.steps if isinstance(self.record, Trajectory) else ()
        return sum(step.outcome.duration_s + step.scoring_s for step in steps)

    @property
    def episode_id(self) -> str:
        """The id of the recorded episode."""
        return self.record if isinstance(self.record, str) else self.trajectory.episode_id

    @property
    def task(self) -> Task | None:
        """The task of the recorded episode; None without one, or if a server has the record."""
        return self.record.task if isinstance(self.record, Trajectory) else None

    @property
    def prompt(self) -> str:
        """The prompt for an agent, as the reset gave it; empty without one."""
        metadata = (self.trajectory.observation or {}).get("metadata")
        given = metadata.get("prompt") if isinstance(metadata, dict) else None
        task = self.trajectory.task
        return given if isinstance(given, str) and given else "" if task is None else task.prompt

    @property
    def trajectory(self) -> Trajectory:
        """The part of the episode up to the step.

        Raises:
            ValueError: it is in the record of a server.
        """
        if not isinstance(self.record, Trajectory):
            raise ValueError(f"the episode {self.record} is in the record of a server, and was not read here")
        return self.record

    def to_wire(self) -> dict[str, Any]:
        """Return the ``data`` of a branch frame: plain JSON data."""
        if isinstance(self.record, str):
            return {"step": self.step, "episode_id": self.record}
        data: dict[str, Any] = {"step": self.step, "trajectory": self.trajectory.to_plain()}
        if self.observations is not None:
            data["observations"] = dict(self.observations)
        return data
