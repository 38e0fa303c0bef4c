"""Read the rows of a dataset's folder as the Hugging Face hub has it: data files, with splits by their names."""

from __future__ import annotations

import bisect
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mcpenv.errors import InvalidTasks
from mcpenv.tasks import Row, Rows

logger = logging.getLogger("mcpenv.datasets")

KINDS = ((".parquet", ".pq"), (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), (".json", ".json.gz"))
"""Suffixes of data files. The files of the first kind that a folder has are its data."""

_OTHER = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".zst", ".arrow", ".xlsx")
"""Suffixes of data files that are not read."""

_SHARD = re.compile(r"(?P<split>.+)-\d+-of-\d+")
_DESCRIPTIONS = frozenset({"dataset_info.json", "dataset_infos.json", "state.json"})
_SPLITS = ("train", "validation", "valid", "val", "dev", "eval", "test")


class FolderRows:
    """The rows of the data files of a folder, split by split.

    The split of ``train-00000-of-00002.parquet`` and of ``train/0000.parquet`` is ``train``, that of ``hard.jsonl`` is
    ``hard``. The only file of a folder names no split, unless it is one of the usual ones.

    Args:
        folder: the folder.
        read: returns the rows of one file.

    Attributes:
        table: True if the files are tables, where every row has every column.

    Raises (constructor):
        InvalidTasks: there are no data files, or those of several datasets.
    """

    def __init__(self, folder: Path, read: Callable[[Path], Rows]) -> None:
        files = data_files(folder)
        if not files:
            reason = "it has no .jsonl, .json or .parquet file, nor .jsonl.gz, .json.gz"
            raise InvalidTasks(str(folder), f"the dataset cannot be read: {reason}")
        self.table = files[0].name.endswith(KINDS[0])
        named = [(_split_of(file, folder, alone=len(files) == 1), file) for file in files]
        named.sort(key=lambda each: (_SPLITS.index(each[0]) if each[0] in _SPLITS else len(_SPLITS), each))
        try:
            self._parts = [(split, read(file)) for split, file in named]
        except InvalidTasks as error:
            raise InvalidTasks(str(folder), f"the dataset cannot be read: {error}") from error
        self._begins: list[int] = []
        self._first: dict[str | None, int] = {}

    def every(self) -> Iterator[Row]:
        """Yield every row, split by split."""
        number = 0
        for split, rows in self._parts:
            self._begins.append(number)
            self._first.setdefault(split, number)
            for row in rows.every():
                yield self._row(split, row, number)
                number += 1

    def at(self, number: int) -> Row:
        """Return a row by number."""
        part = bisect.bisect_right(self._begins, number) - 1
        split, rows = self._parts[part]
        return self._row(split, rows.at(number - self._begins[part]), number)

    def _row(self, split: str | None, row: Row, number: int) -> Row:
        return replace(row, split=split, index=number - self._first[split])


def data_files(folder: Path) -> Sequence[Path]:
    """Return the data files of a dataset's folder: in the folder itself, in ``data``, or in a folder for each split.

    Data files of other formats are logged by name.

    Raises:
        InvalidTasks: the files are in folders of several configurations, or have splits that differ between formats.
    """
    files = [
        file
        for file in sorted(folder.rglob("*"))
        if file.name not in _DESCRIPTIONS
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and file.name.endswith((*itertools.chain(*KINDS), *_OTHER))
    ]
    found = next(filter(None, ([file for file in files if file.name.endswith(kind)] for kind in KINDS)), [])
    inside = {file.relative_to(folder).parts[0] for file in found if file.parent != folder} - {"data", *_SPLITS}
    if inside and (len(inside) > 1 or any(file.parent == folder for file in found)):
        names = ", ".join(sorted(inside))
        raise InvalidTasks(str(folder), f"it has several folders with data ({names}); name one of them")
    splits = {_split_of(file, folder, alone=False) for file in found}
    for file in files if found else ():
        split, name = _split_of(file, folder, alone=False), file.relative_to(folder)
        if split in _SPLITS and split not in splits:
            first = found[0].relative_to(folder)
            reason = f"its split {split!r} ({name}) is of another format than {first}. Write all splits in one format"
            raise InvalidTasks(str(folder), reason)
        if file not in found:
            logger.warning("%s: %s is left out, as %s is of another format", folder, name, found[0].relative_to(folder))
    return found


def _split_of(file: Path, folder: Path, *, alone: bool) -> str | None:
    stem = file.name.partition(".")[0]
    shard = _SHARD.fullmatch(stem)
    if shard is not None:
        return shard["split"]
    if stem not in _SPLITS and file.parent != folder and file.parent.name in _SPLITS:
        return file.parent.name
    return None if alone and stem not in _SPLITS else stem
