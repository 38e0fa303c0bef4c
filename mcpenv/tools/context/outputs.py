"""The long outputs of one episode, and the settings of their limits."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from mcpenv.errors import ConfigurationError


@dataclass(frozen=True)
class LongOutputs:
    """The settings of an environment that keeps long outputs. Set it as the class attribute `long_outputs`.

    Attributes:
        max_characters: maximum characters of text that an answer has, apart from the note about the rest.
        kept_bytes: maximum bytes of outputs that an episode keeps, as UTF-8. The oldest are dropped first.

    Raises:
        ConfigurationError: a limit is too small.
    """

    max_characters: int = 10_000
    kept_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.max_characters < MIN_CHARACTERS:
            raise ConfigurationError(f"max_characters is {self.max_characters}; it must be {MIN_CHARACTERS} or more")
        if self.kept_bytes < 1:
            raise ConfigurationError(f"kept_bytes is {self.kept_bytes}; it must be 1 or more")


MIN_CHARACTERS = 500
"""Minimum of `LongOutputs.max_characters`. A page of search results needs as much."""


MAX_REMEMBERED = 1000
"""Maximum ids of dropped outputs that an episode remembers."""


@dataclass(frozen=True)
class Output:
    """One output that is kept.

    Attributes:
        id: its name for the agent. It is a key of the episode, and never part of a path.
        text: the whole text.
        size: its bytes as UTF-8.
        principal: the authenticated caller that may read it; None without authentication.
    """

    id: str
    text: str
    size: int
    principal: str | None = None


class KeptOutputs:
    """The outputs that an episode keeps, in order. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._outputs: dict[str, Output] = {}
        self._size = 0
        self._dropped: deque[str] = deque(maxlen=MAX_REMEMBERED)
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """The bytes of all outputs, as UTF-8."""
        return self._size

    def add(self, output: Output, limit: int) -> bool:
        """Keep an output, and drop the oldest ones above ``limit`` bytes. Return False if it alone is above."""
        with self._lock:
            if output.size > limit:
                self._dropped.append(output.id)
                return False
            self._outputs[output.id] = output
            self._size += output.size
            while self._size > limit:
                oldest = next(iter(self._outputs))
                self._size -= self._outputs.pop(oldest).size
                self._dropped.append(oldest)
            return True

    def get(self, id: str, principal: str | None) -> Output | None:
        """Return the output of that id, if this caller may read it."""
        with self._lock:
            output = self._outputs.get(id)
            return output if output is not None and output.principal == principal else None

    def ids(self, principal: str | None) -> list[str]:
        """Return the ids of the outputs that this caller may read, the oldest first."""
        with self._lock:
            return [output.id for output in self._outputs.values() if output.principal == principal]

    def all(self) -> list[Output]:
        """Return all outputs, the oldest first."""
        with self._lock:
            return list(self._outputs.values())

    def dropped(self, id: str) -> bool:
        """Return True if the output of that id was dropped, because of the limit of bytes."""
        with self._lock:
            return id in self._dropped

    def copy(self) -> KeptOutputs:
        """Return an independent copy of the collection."""
        other = KeptOutputs()
        with self._lock:
            other._outputs, other._size, other._dropped = dict(self._outputs), self._size, self._dropped.copy()
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a file."""
        with self._lock:
            return {"_outputs": dict(self._outputs), "_size": self._size, "_dropped": self._dropped.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state of a file."""
        self.__dict__.update(state)
        self._lock = threading.Lock()


__all__ = ["MIN_CHARACTERS", "KeptOutputs", "LongOutputs", "Output"]
