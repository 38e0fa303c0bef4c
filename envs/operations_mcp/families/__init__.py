"""The families of goals, of which tasks are composed."""

from __future__ import annotations

from . import mending, requests
from .case import FAMILIES, Case
from .faults import FAULTS

__all__ = ["FAMILIES", "FAULTS", "Case", "mending", "requests"]
