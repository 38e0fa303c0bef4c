"""The long outputs that an episode keeps, and the policy that decides which ones."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mcpenv_client.types.records import ToolCall, ToolOutcome

if TYPE_CHECKING:
    from .registry import BoundTool  # imports FastMCP, which records do not need

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


class Keeper(Protocol):
    """The environment instance that keeps the outputs."""

    def kept_outputs(self) -> tuple[KeptOutputs, str | None]:
        """Return the outputs of the running episode, and the authenticated caller of the running step."""
        ...


class OutputPolicy(ABC):
    """The treatment of long outputs, which an environment's class has as `long_outputs`."""

    @abstractmethod
    def cut(self, call: ToolCall, outcome: ToolOutcome, outputs: KeptOutputs) -> ToolOutcome:
        """Return the outcome of a step as the agent gets it. Keep in ``outputs`` what is cut."""

    @abstractmethod
    def tools(self, keeper: Keeper) -> Iterator[BoundTool]:
        """Return the tools by which agents of one environment instance read what was cut."""
