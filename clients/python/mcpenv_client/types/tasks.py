"""The tasks of agents, one for each episode, as plain data."""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from .models import Model

MAX_ID = 255
"""Longest id of a task and longest name of a split, a family or a tag, in characters."""

LABELS = ("level", "family", "tags")
"""The fields of a task that only say what kind of task it is. They change no episode."""


def _on_one_line(label: str) -> str:
    if not label.isprintable():
        raise ValueError(f"{label!r} has a line break or another character that cannot be printed")
    if label.isspace():
        raise ValueError(f"{label!r} has only blanks")
    return label


_Label = Annotated[str, Field(min_length=1, max_length=MAX_ID), AfterValidator(_on_one_line)]


def without_unset_labels(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a task as they are written: labels are left out if they are not set."""
    return {name: value for name, value in fields.items() if value or name not in LABELS}


class _Frozen(Model):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskLimits(_Frozen):
    """The limits at which an episode of a task is truncated, in addition to the environment's own limits.

    Attributes:
        max_steps: maximum number of steps; None: the environment's limit.
        timeout_s: seconds since the reset. The step during which they pass is the last. None: no limit.
    """

    max_steps: int | None = Field(default=None, ge=1)
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class OracleCall(_Frozen):
    """The call of one tool in a task's solution."""

    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Task(_Frozen):
    """The task of an agent in one episode: how the episode begins, and how its end is verified.

    Agents see only the prompt. The rest is for orchestrators and verifiers.

    Attributes:
        id: unique in its task set; 1 to 255 printable characters, not only blanks.
        split: the part of the task set to which it belongs; likewise.
        prompt: the text for the agent.
        options: the options of the environment's ``reset``.
        seed: the seed of the environment's ``reset``; None: `stable_seed`.
        limits: the limits at which its episodes are truncated.
        metadata: the author's own data, such as an expected answer.
        version: the version of this task; results of different versions are not compared.
        oracle: calls that solve it; None if unknown.
        verifier: how the end is verified, as plain data (``docs/how-to/verify.md``); None: by the environment's own
            ``verify``.
        reward_range: the worth of an end (`mcpenv_client.worth_of`) at which nothing was done, and of one that solves
            the task. A verdict, which passes or fails, is worth one of the two. If nothing verifies the end, its worth
            is the return. Otherwise the return may be any other number.
        level: its difficulty, from 1, the easiest, on; None if unknown.
        family: the kind of tasks to which it belongs; likewise. None if unknown.
        tags: further labels, likewise; none of them twice.
    """

    id: _Label
    split: _Label = "train"
    prompt: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    seed: int | None = None
    limits: TaskLimits = Field(default_factory=TaskLimits)
    metadata: dict[str, Any] = Field(default_factory=dict)
    version: str = "1"
    oracle: list[OracleCall] | None = None
    verifier: dict[str, Any] | None = None
    reward_range: tuple[float, float] = (0.0, 1.0)
    level: int | None = Field(default=None, ge=1)
    family: _Label | None = None
    tags: list[_Label] = Field(default_factory=list)

    @field_validator("reward_range", mode="after")
    @classmethod
    def _ordered(cls, given: tuple[float, float]) -> tuple[float, float]:
        floor, full = given
        if not (math.isfinite(floor) and math.isfinite(full) and floor < full):
            raise ValueError("reward_range is two finite numbers, the smaller one first")
        return given

    @field_validator("tags", mode="after")
    @classmethod
    def _each_once(cls, given: list[str]) -> list[str]:
        twice = [tag for at, tag in enumerate(given) if tag in given[:at]]
        if twice:
            raise ValueError(f"{twice[0]!r} is given twice")
        return given

    @model_serializer(mode="wrap")
    def _without_unset_labels(self, write: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        # Clients of earlier versions refuse fields that they do not know. With a return type, the JSON Schema of what
        # is written would be that type.
        return without_unset_labels(write(self))

    @property
    def stable_seed(self) -> int:
        """The seed of its episodes: its own, or one derived from its split and id (0 to 2**32 - 1)."""
        if self.seed is not None:
            return self.seed
        return int.from_bytes(hashlib.sha256(f"{self.split}/{self.id}".encode()).digest()[:4], "big")

    @property
    def labels(self) -> str:
        """The labels as one line of text, such as ``level 2, refunds, policy``; empty without any."""
        level = [] if self.level is None else [f"level {self.level}"]
        return ", ".join([*level, *([] if self.family is None else [self.family]), *self.tags])

    @property
    def name(self) -> dict[str, str]:
        """The identification in ``info["task"]``: id, split and version."""
        return {"id": self.id, "split": self.split, "version": self.version}
