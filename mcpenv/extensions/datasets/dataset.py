"""Read the rows of a Hugging Face dataset on disk. Imported on use, because it needs the extra ``datasets``."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset, DatasetDict, load_from_disk

from mcpenv.errors import InvalidTasks
from mcpenv.tasks import Row


class DatasetRows:
    """The rows of a dataset that ``save_to_disk`` wrote. The splits of a `DatasetDict` are the splits of its tasks.

    Raises (constructor):
        InvalidTasks: if the dataset cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = threading.Lock()
        try:
            loaded = load_from_disk(str(folder))
        except (OSError, ValueError) as error:
            raise InvalidTasks(str(folder), f"the dataset cannot be read: {' '.join(str(error).split())}") from error
        self._parts: list[tuple[str | None, Dataset]] = (
            [(str(name), part) for name, part in loaded.items()]
            if isinstance(loaded, DatasetDict)
            else [(None, loaded)]
        )
        self._begins = [0, *itertools.accumulate(len(part) for _, part in self._parts)]

    def every(self) -> Iterator[Row]:
        """Return every row, split by split."""
        return map(self.at, range(self._begins[-1]))

    def at(self, number: int) -> Row:
        """Return a row by number."""
        which = bisect.bisect_right(self._begins, number) - 1
        split, part = self._parts[which]
        index = number - self._begins[which]
        with self._mutex:
            data = part[index]
        shown = self._folder.name if split is None else f"{self._folder.name}/{split}"
        return Row(f"{shown}, row {index}", data, split=split, index=index)
