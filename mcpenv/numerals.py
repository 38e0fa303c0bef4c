"""Numerals: numbers of things, as a sentence has them."""

from __future__ import annotations


def number_of(count: int, noun: str) -> str:
    """``1 episode``, ``2 episodes``: of nouns whose plural has an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


__all__ = ["number_of"]
