"""Datasets for TRL whose rows are read when the trainer takes them."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset

ROW = "row"
"""The only column that is stored: the number of the row."""


Columns = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def unprompted(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with an empty prompt, to which TRL appends that of the episode."""
    return {**row, "prompt": [{"role": "user", "content": ""}]}


def dataset_of(rows: Sequence[Mapping[str, Any]], columns: Columns = unprompted) -> Dataset:
    """Return a dataset of rows, of which none is read here: they may be a million.

    ``select``, ``shuffle``, ``filter`` and ``map`` work as on any dataset. A column cannot be taken by its name,
    because that would read all rows.

    Args:
        rows: the rows.
        columns: returns the columns of a row, which are the same for all rows. It can be pickled if the dataset should.
    """
    return Dataset.from_dict({ROW: np.arange(len(rows))}).with_transform(_Reading(rows, columns))


class _Reading:
    """Reads the rows of a batch when it is called."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Columns) -> None:
        self._rows, self._columns = rows, columns

    def __reduce__(self) -> tuple[Any, ...]:
        # datasets takes a hash of this by dill, which would take apart a class of the module __main__.
        return _unpickled, (pickle.dumps((self._rows, self._columns)),)

    def __call__(self, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """Return the columns of a batch. Its own ones, such as those that ``map`` added, are kept."""
        own = {name: values for name, values in batch.items() if name != ROW}
        if ROW not in batch:
            return own
        made = {row: self._columns(read) for row, read in self._read(sorted(set(batch[ROW])))}
        names = dict.fromkeys(name for each in made.values() for name in each)
        return {**{name: [made[row].get(name) for row in batch[ROW]] for name in names}, **own}

    def _read(self, places: Sequence[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the rows of ascending places. Neighbours are read together, as `filter` and `map` ask for them."""
        for _, group in itertools.groupby(enumerate(places), lambda each: each[1] - each[0]):
            run = [place for _, place in group]
            yield from zip(run, self._rows[run[0] : run[-1] + 1], strict=True)


def _unpickled(pickled: bytes) -> _Reading:
    return _Reading(*pickle.loads(pickled))
