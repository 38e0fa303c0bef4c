"""Tasks: what an agent is to do in one episode, as plain data."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from pydantic import ConfigDict, Field, field_validator

from .models import Model

MAX_ID = 255
"""Longest id of a task and longest name of a split, in characters."""


class _Frozen(Model):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskLimits(_Frozen):
    """When an episode of a task is truncated, beside the environment's own limits.

    Attributes:
        max_steps: after so many steps; None: as the environment says.
        timeout_s: seconds since the reset; the step during which they pass is the last. None: no limit.
    """

    max_steps: int | None = Field(default=None, ge=1)
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class OracleCall(_Frozen):
    """One call of a task's solution."""

    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Task(_Frozen):
    """What an agent is to do in one episode, how the episode begins, and how its end is verified.

    Agents see the prompt only. The rest is for orchestrators and verifiers.

    Attributes:
        id: unique in its task set; 1 to 255 characters.
        split: which part of the task set it belongs to.
        prompt: what the agent is told.
        options: for the environment's ``reset``.
        seed: for the environment's ``reset``; None: `stable_seed`.
        limits: when its episodes are truncated.
        metadata: the author's own, such as an expected answer.
        version: of this task; results of different versions are not compared.
        oracle: calls that solve it; None if nobody wrote them down.
        verifier: what the state at the end is worth, as plain data (``docs/how-to/verify.md``); None: the environment's
            own ``verify``.
        reward_range: what the end of an episode is worth (`mcpenv.worth_of`) in which nothing was done, and of one that
            solved it. A verdict, which is yes or no, is worth one of the two. Where nothing verifies the end, its
            worth is the return; where something does, the return may be any other number.
    """

    id: str = Field(min_length=1, max_length=MAX_ID)
    split: str = Field(default="train", min_length=1, max_length=MAX_ID)
    prompt: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    seed: int | None = None
    limits: TaskLimits = Field(default_factory=TaskLimits)
    metadata: dict[str, Any] = Field(default_factory=dict)
    version: str = "1"
    oracle: list[OracleCall] | None = None
    verifier: dict[str, Any] | None = None
    reward_range: tuple[float, float] = (0.0, 1.0)

    @field_validator("reward_range", mode="after")
    @classmethod
    def _ordered(cls, given: tuple[float, float]) -> tuple[float, float]:
        floor, full = given
        if not (math.isfinite(floor) and math.isfinite(full) and floor < full):
            raise ValueError("reward_range is two finite numbers, the smaller one first")
        return given

    @property
    def stable_seed(self) -> int:
        """The seed of its episodes: its own, or one made of its split and id; 0 to 2**32 - 1 if made."""
        if self.seed is not None:
            return self.seed
        return int.from_bytes(hashlib.sha256(f"{self.split}/{self.id}".encode()).digest()[:4], "big")

    @property
    def name(self) -> dict[str, str]:
        """What names it in ``info["task"]``: id, split and version."""
        return {"id": self.id, "split": self.split, "version": self.version}


__all__ = ["OracleCall", "Task", "TaskLimits"]
