"""Exports: convert episodes to formats that trainers and viewers read."""

from __future__ import annotations

from .anthropic import anthropic_row
from .atif import atif_document
from .openai import openai_row

__all__ = ["anthropic_row", "atif_document", "openai_row"]
