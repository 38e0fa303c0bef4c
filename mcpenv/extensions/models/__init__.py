"""Language models: the rubric `Judge`, and a client of their endpoints."""

from __future__ import annotations

from .judge import Judge

__all__ = ["Judge"]
