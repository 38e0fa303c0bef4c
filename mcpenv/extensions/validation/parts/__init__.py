"""Judge an environment as a whole: the parts of ``mcpenv validate``, each with its findings.

A part is a function that adds findings to a `Judged`. `run_parts` runs parts and returns a `Validation`.
"""

from __future__ import annotations

from .candidate import Candidate
from .judged import Judged, Validation
from .part import PARTS, Part, run_parts

__all__ = ["PARTS", "Candidate", "Judged", "Part", "Validation", "run_parts"]
