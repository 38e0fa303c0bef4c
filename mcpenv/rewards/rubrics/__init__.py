"""Score steps and episodes with rubrics that combine from parts."""

from __future__ import annotations

from typing import Any

from mcpenv.moved import moved_name
from mcpenv_client.scores import advantages, discounted_returns, ranks, score_of, worth_of

from .composites import Gate, Sequence, WeightedSum
from .config import rubric_from_config
from .discounting import Discounted, OverSteps
from .rubric import FunctionRubric, Rubric, Scored
from .verified import Verified

__all__ = [
    "Discounted",
    "FunctionRubric",
    "Gate",
    "OverSteps",
    "Rubric",
    "Scored",
    "Sequence",
    "Verified",
    "WeightedSum",
    "advantages",
    "discounted_returns",
    "rubric_from_config",
    "ranks",
    "score_of",
    "worth_of",
]


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
