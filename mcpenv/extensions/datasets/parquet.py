"""Read the rows of a Parquet file. Imported on use, because it needs pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mcpenv.errors import InvalidTasks
from mcpenv.tasks import Row

_BATCH = 1024


class ParquetRows:
    """The rows of a file, read by row group. One row group is cached.

    Raises (constructor and methods):
        InvalidTasks: if the file cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._mutex = threading.Lock()
        self._kept: tuple[int, Any] | None = None
        try:
            with pq.ParquetFile(file) as opened:
                groups = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error
        self._begins = [0, *itertools.accumulate(groups)]

    def every(self) -> Iterator[Row]:
        """Yield every row."""
        number = 0
        try:
            with pq.ParquetFile(self._file) as file:
                for batch in file.iter_batches(batch_size=_BATCH):
                    for data in batch.to_pylist():
                        yield self._row(number, data)
                        number += 1
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error

    def at(self, number: int) -> Row:
        """Return a row by number."""
        group = bisect.bisect_right(self._begins, number) - 1
        with self._mutex:
            if self._kept is None or self._kept[0] != group:
                try:
                    with pq.ParquetFile(self._file) as file:
                        self._kept = group, file.read_row_group(group)
                except (OSError, pa.ArrowException) as error:
                    raise self._unreadable(error) from error
            (data,) = self._kept[1].slice(number - self._begins[group], 1).to_pylist()
        return self._row(number, data)

    def _row(self, number: int, data: Any) -> Row:
        return Row(f"{self._file.name}, row {number}", data, index=number)

    def _unreadable(self, error: Exception) -> InvalidTasks:
        message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return InvalidTasks(str(self._file), f"the tasks cannot be read: {' '.join(message.split())}")
