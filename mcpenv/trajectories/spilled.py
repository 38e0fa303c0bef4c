"""The steps that a long episode has dropped from its trajectory, compressed until the episode is over."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter

from mcpenv_client.types.records import StepRecord

_STEPS = TypeAdapter(list[StepRecord])
_BATCH = 256


class Spilled:
    """The steps in their order, compressed in batches by the writer's thread."""

    def __init__(self) -> None:
        self._batches: list[bytes | list[StepRecord]] = []
        self._last: list[StepRecord] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """The approximate memory that they take, in bytes."""
        return sum(
            len(_STEPS.dump_json(batch)) if isinstance(batch, list) else len(batch)
            for batch in [*self._batches, self._last]
        )

    def copy(self) -> Spilled:
        """Return an independent copy of the collection."""
        other = Spilled()
        other._batches, other._last, other._count = [*self._batches], [*self._last], self._count
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a file: all steps compressed, without the Python objects that tools returned."""
        batches = [_packed(batch) if isinstance(batch, list) else batch for batch in [*self._batches, self._last]]
        return {"_batches": batches, "_last": [], "_count": self._count}

    def add(self, steps: Sequence[StepRecord]) -> bool:
        """Add steps. Return True if there is something to `pack`."""
        self._last.extend(steps)
        self._count += len(steps)
        if len(self._last) < _BATCH:
            return False
        self._batches.append(self._last)
        self._last = []
        return True

    def pack(self) -> None:
        """Compress whole batches. Called in the writer's thread."""
        for index, batch in enumerate(self._batches):
            if isinstance(batch, list):
                self._batches[index] = _packed(batch)

    def steps(self) -> Iterator[StepRecord]:
        """Return all steps."""
        for batch in self._batches:
            yield from batch if isinstance(batch, list) else _read(batch)
        yield from self._last


def _packed(batch: list[StepRecord]) -> bytes:
    return zlib.compress(_STEPS.dump_json(batch), 1)


def _read(batch: bytes) -> list[StepRecord]:
    return _STEPS.validate_json(zlib.decompress(batch))
