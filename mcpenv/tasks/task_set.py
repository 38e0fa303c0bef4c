"""Define `TaskSet`, the tasks of an environment by split and index, read on first use."""

from __future__ import annotations

import copy
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mcpenv.errors import InvalidTasks, meant
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.tasks import Task

from .columns import Columns
from .generated import GeneratedTasks, Maker
from .jsonl import SUFFIXES, json_rows
from .stored import ListedRows, Rows, StoredTasks

if TYPE_CHECKING:
    from typing import Self

ColumnMapping = Mapping[str, str | None]

READERS = "mcpenv.extensions.datasets"
"""The extension that reads other files than JSON. It is imported when such a file is read."""


class NoSuchTask(InvalidMessage):
    """The error that a task set does not have a split, an index or an id."""

    http_status = 400


class _Tasks(Protocol):
    """The tasks of a source that has been read."""

    version: str
    sizes: dict[str, int]

    def get(self, split: str, index: int) -> Task: ...

    def find(self, task_id: str) -> Task | None: ...
    def like(self, task_id: str) -> Iterable[str]: ...


class TaskSet:
    """The tasks of an environment, set as an attribute of its class.

    ::

        class Ledger(MCPEnvironment):
            tasks = TaskSet.from_jsonl("tasks.jsonl")

    Files are read and rows are checked on first use. This blocks, happens once, and may happen in any thread. A
    relative path is relative to the file of the class that has the set as an attribute. Without such a class it is
    relative to the working directory.

    Args:
        tasks: `Task`s, or dicts with their fields.

    Attributes:
        licence: of the tasks, as `with_licence` gave it.

    Raises (all methods):
        InvalidTasks: if the source cannot be read, a row is not a task, or an id occurs twice; with file, line and
            field.
        NoSuchTask: if there is no such split, index or id.
    """

    _make: Callable[[Path], _Tasks]
    _source: str | Path
    _given_source: str | None = None
    licence: str | None = None
    _folder: Path | None
    _mutex: threading.Lock
    _made: _Tasks | None

    def __init__(self, tasks: Iterable[Task | Mapping[str, Any]]) -> None:
        rows = ListedRows(tasks)
        self._prepare(lambda folder: StoredTasks(rows, Columns()), "a list in Python")

    @classmethod
    def from_jsonl(cls, path: str | Path, *, columns: ColumnMapping | None = None, split: str | None = None) -> Self:
        """Return the tasks of a JSON file: one object a line, or an array of objects. It may be compressed by gzip.

        Args:
            path: the file.
            columns: a field for each named column: ``{"question": "prompt"}``. The field may be ``metadata.NAME`` or
                ``options.NAME``, or None to leave the column out. With a mapping, other columns that are not a field of
                a task go to the metadata. Rows without an id are named by split and number. A column that no row has is
                refused.
            split: the split of rows that name none; the default is ``train``.
        """
        as_fields = Columns(columns)
        return cls._of(lambda folder: StoredTasks(json_rows(folder / path), as_fields, split), Path(path))

    @classmethod
    def from_parquet(cls, path: str | Path, *, columns: ColumnMapping | None = None, split: str | None = None) -> Self:
        """Return the tasks of a Parquet file; needs ``mcpenv[parquet]``.

        Null means "not given", also in nested columns, because every row of a table has every column. Nested fields may
        be JSON text instead.

        Args:
            path: the file.
            columns, split: as in `from_jsonl`.
        """
        as_fields = Columns(columns, table=True)

        def read(folder: Path) -> StoredTasks:
            return StoredTasks(_file_rows(folder / path), as_fields, split)

        return cls._of(read, Path(path))

    @classmethod
    def from_dataset(cls, path: str | Path, *, columns: ColumnMapping | None = None, split: str | None = None) -> Self:
        """Return the tasks of the folder of a Hugging Face dataset.

        It is one that ``save_to_disk`` wrote (needs ``mcpenv[datasets]``), or a copy of the hub's with files of Parquet
        (needs ``mcpenv[parquet]``) or JSON, such as ``data/train-00000-of-00001.parquet``. Its splits are those of the
        tasks. In tables null means "not given", as in `from_parquet`.

        Args:
            path: the folder.
            columns, split: as in `from_jsonl`.
        """
        as_fields, as_json = Columns(columns, table=True), Columns(columns)

        def read(folder: Path) -> StoredTasks:
            place = folder / path
            if any((place / name).exists() for name in ("dataset_dict.json", "state.json")):
                return StoredTasks(_reader("dataset", "datasets", "datasets").DatasetRows(place), as_fields, split)
            rows = _reader("folder").FolderRows(place, _file_rows)
            return StoredTasks(rows, as_fields if rows.table else as_json, split)

        return cls._of(read, Path(path))

    @classmethod
    def from_path(cls, path: str | Path, *, columns: ColumnMapping | None = None) -> Self:
        """Return the tasks of a file of JSON or Parquet, or of the folder of a dataset.

        Args:
            path: the file or folder.
            columns: as in `from_jsonl`.

        Raises:
            InvalidTasks: if the path does not exist, or is of another kind.
        """
        place = Path(path).expanduser().absolute()
        if place.is_dir():
            return cls.from_dataset(place, columns=columns)
        if not place.exists():
            raise InvalidTasks(str(path), "there is no such file or folder")
        if place.name.endswith(SUFFIXES):
            return cls.from_jsonl(place, columns=columns)
        if place.suffix in (".parquet", ".pq"):
            return cls.from_parquet(place, columns=columns)
        raise InvalidTasks(
            str(path),
            "this is not a .jsonl file, a .parquet file or the folder of a dataset, nor .json, .ndjson, .jsonl.gz",
        )

    @classmethod
    def generate(cls, make: Maker, *, seed: int, sizes: Mapping[str, int]) -> Self:
        """Return tasks that a function makes, each on demand. The number of tasks costs no memory.

        Args:
            make: called as ``make(rng, index)``, or as ``make(rng, index, split)`` if it takes three arguments. It
                returns a task or a dict without ``id`` and ``split``, which are set here (``train-0``). It must draw
                all randomness from ``rng``, which depends only on seed, split and index. Then every process makes the
                same tasks, in any order.
            seed: another seed gives other tasks.
            sizes: the number of tasks of each split.
        """
        wanted = dict(sizes)
        return cls._of(lambda folder: GeneratedTasks(make, seed, wanted), f"a generator with seed {seed}")

    def splits(self) -> list[str]:
        """Return the names of the splits."""
        return list(self._read().sizes)

    def size(self, split: str) -> int:
        """Return the number of tasks of a split."""
        sizes = self._read().sizes
        if split not in sizes:
            known = ", ".join(map(repr, sizes)) or "none"
            raise _no_such("split", f"there is no split {split!r} (there are: {known}){meant(split, sizes)}")
        return sizes[split]

    def sizes(self) -> dict[str, int]:
        """Return the number of tasks of each split."""
        return dict(self._read().sizes)

    def get(self, split: str, index: int) -> Task:
        """Return the task of a split and a 0-based index."""
        size = self.size(split)
        if not 0 <= index < size:
            has = f"has tasks 0 to {size - 1}" if size else "has no tasks"
            raise _no_such("index", f"there is no task {index}: {split!r} {has}")
        return self._read().get(split, index)

    def range(self, split: str, start: int = 0, stop: int | None = None) -> list[Task]:
        """Return the tasks of a split from ``start`` up to, and without, ``stop``; None: to the last."""
        size = self.size(split)
        return [self.get(split, index) for index in range(start, size if stop is None else min(stop, size))]

    def find(self, task_id: str) -> Task:
        """Return the task with an id."""
        task = self._read().find(task_id)
        if task is None:
            sizes = ", ".join(f"{split!r} has {size}" for split, size in self.sizes().items()) or "there are none"
            near = meant(task_id, self._read().like(task_id))
            raise _no_such("task", f"there is no task {task_id!r} ({sizes}){near}")
        return task

    def select(self, *, split: str) -> TaskSet:
        """Return the tasks of one split as a task set."""
        selected = TaskSet(())
        selected._prepare(lambda folder: _OneSplit(self, split), f"{split} of {self.source}")
        selected.licence, selected._given_source = self.licence, self._given_source
        return selected

    def with_licence(self, licence: str, *, source: str | None = None) -> Self:
        """Return the same tasks with their licence as data, for `origin`.

        Args:
            licence: an SPDX expression, such as ``MIT``.
            source: the words for where the tasks come from, such as a package with its version. None keeps `source`.
        """
        licensed = copy.copy(self)
        licensed.licence, licensed._given_source = licence, source
        return licensed

    def origin(self) -> dict[str, str | None]:
        """Return licence, source and version of the tasks. They are read for it, as in `version`.

        A source that is a file of this machine is left out.
        """
        return {"licence": self.licence, "source": self._given_source, "version": self.version}

    @property
    def source(self) -> str:
        """The source given to `with_licence`, or else the file or folder, or words for what makes the tasks.

        Nothing is read for it.
        """
        if self._given_source is not None:
            return self._given_source
        return self._source if isinstance(self._source, str) else str((self._folder or Path.cwd()) / self._source)

    @property
    def version(self) -> str:
        """The hash of all tasks (of generated tasks: of the seed, the sizes and the first tasks of each split)."""
        return self._read().version

    def __iter__(self) -> Iterator[Task]:
        """Yield every task, split by split."""
        for split, size in self.sizes().items():
            for index in range(size):
                yield self.get(split, index)

    def __len__(self) -> int:
        """Return the number of tasks."""
        return sum(self.sizes().values())

    def __bool__(self) -> bool:
        # Without this, `bool` would call `__len__`, which reads the files.
        return True

    def __set_name__(self, owner: type, name: str) -> None:
        file = getattr(sys.modules.get(owner.__module__), "__file__", None)
        if self._folder is None and file:
            self._folder = Path(file).absolute().parent

    @classmethod
    def _of(cls, make: Callable[[Path], _Tasks], source: str | Path) -> Self:
        made = cls.__new__(cls)
        made._prepare(make, source)
        return made

    def _prepare(self, make: Callable[[Path], _Tasks], source: str | Path) -> None:
        self._make = make
        self._source = source
        self._folder = None
        self._mutex = threading.Lock()
        self._made = None

    def _read(self) -> _Tasks:
        if self._made is None:
            with self._mutex:
                if self._made is None:
                    self._made = self._make(self._folder or Path.cwd())
        return self._made


class _OneSplit:
    """The tasks of one split of a set."""

    def __init__(self, whole: TaskSet, split: str) -> None:
        self._whole = whole
        self.sizes = {split: whole.size(split)}
        self.version = f"{whole.version}/{split}"

    def get(self, split: str, index: int) -> Task:
        return self._whole.get(split, index)

    def find(self, task_id: str) -> Task | None:
        task = self._whole.find(task_id)
        return task if task.split in self.sizes else None

    def like(self, task_id: str) -> Iterable[str]:
        return ()  # `find` of the whole set has refused the id


def tasks_of(environment: type[Any]) -> TaskSet:
    """Return the tasks of an environment class.

    Raises:
        NoSuchTask: the class has no tasks.
    """
    tasks: TaskSet | None = environment.tasks
    if tasks is None:
        raise _no_such("split", f"{environment.__name__} has no tasks")
    return tasks


def _reader(module: str, package: str = "", extra: str = "") -> Any:
    """Import a module of the extension that reads Parquet files, datasets and their folders.

    Args:
        package, extra: what it needs, and the extra that has it.

    Raises:
        InvalidTasks: the extension, or what it needs, is not installed.
    """
    try:
        return importlib.import_module(f"{READERS}.{module}")
    except ModuleNotFoundError as error:
        if error.name == READERS:
            raise InvalidTasks(READERS, "is needed to read these tasks, and this installation lacks it") from error
        if (error.name or "").partition(".")[0] != package:
            raise
        raise InvalidTasks(package, f"is needed to read these tasks. Run pip install 'mcpenv[{extra}]'") from error


def _file_rows(file: Path) -> Rows:
    if file.name.endswith(SUFFIXES):
        return json_rows(file)
    rows: Rows = _reader("parquet", "pyarrow", "parquet").ParquetRows(file)
    return rows


def _no_such(field: str, message: str) -> NoSuchTask:
    return NoSuchTask(message, errors=[{"loc": [field], "msg": message, "type": "value_error"}])
