"""The steps that a long episode has dropped from its trajectory, compressed until the episode is over."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import TypeAdapter

from mcpenv.execution.episode import bytes_of
from mcpenv_client.types.records import StepRecord

_STEPS = TypeAdapter(list[StepRecord])
_BATCH, _BATCH_BYTES = 256, 4 * 1024 * 1024

MAX_SPILLED_BYTES = 128 * 1024 * 1024
"""The approximate maximum size of the spilled steps of an episode before compression, in bytes. They are read back into
memory when the episode is written."""


class Spilled:
    """The steps in their order, compressed in batches by the writer's thread."""

    _last_bytes = _total_bytes = 0  # also of instances that an older version pickled

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
        other._last_bytes, other._total_bytes = self._last_bytes, self._total_bytes
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a file: all steps compressed, without the Python objects that tools returned."""
        batches = [_packed(batch) if isinstance(batch, list) else batch for batch in [*self._batches, self._last]]
        return {**vars(self), "_batches": batches, "_last": [], "_last_bytes": 0}

    def add(self, steps: Sequence[StepRecord]) -> bool:
        """Add steps, except those above `MAX_SPILLED_BYTES`. Return True if there is something to `pack`."""
        for step in steps:
            size = bytes_of(step)
            if self._total_bytes + size > MAX_SPILLED_BYTES:
                self._total_bytes = MAX_SPILLED_BYTES  # the steps that are kept have no further gap
                break
            self._last.append(step)
            self._count += 1
            self._last_bytes += size
            self._total_bytes += size
        if len(self._last) < _BATCH and self._last_bytes < _BATCH_BYTES:
            return False
        self._batches.append(self._last)
        self._last, self._last_bytes = [], 0
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
