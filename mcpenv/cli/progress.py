"""Progress of long work, on stderr and only if that is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_EVERY_S = 0.2


def counted(items: Iterable[T], done: str) -> Iterator[T]:
    """The items, while a line says how many there were: ``1200 replayed``."""
    terminal = sys.stderr.isatty()
    told = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        if terminal and time.monotonic() - told >= _EVERY_S:
            told = time.monotonic()
            print(f"\r{count} {done}", end="", file=sys.stderr, flush=True)
    if terminal:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


__all__ = ["counted"]
