"""Score the state at the end of an episode, independently of what the agent reports."""

from __future__ import annotations

from .diff import Change, Changes, Verdict
from .evidence import Evidence
from .patterns import ANY, REMOVED
from .specs import InThread, VerifierSpec, check, missing_here, of_verdict, run

__all__ = [
    "ANY",
    "REMOVED",
    "Change",
    "Changes",
    "Evidence",
    "InThread",
    "Verdict",
    "VerifierSpec",
    "check",
    "missing_here",
    "of_verdict",
    "run",
]
