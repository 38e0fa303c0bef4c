"""Generate tasks on demand. Each depends only on a seed, its split and its index."""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any

from mcpenv.errors import InvalidTasks, describe
from mcpenv_client.types.tasks import Task

from .columns import Columns, Row
from .stored import VERSION_DIGITS, text_of

Made = Task | Mapping[str, Any]
Maker = Callable[[random.Random, int], Made] | Callable[[random.Random, int, str], Made]

_SAMPLED = 16


class GeneratedTasks:
    """The tasks that a function makes.

    Raises (constructor):
        InvalidTasks: if a size is negative, a split has no name, the function takes other arguments, or one of the
            first tasks is invalid.
    """

    def __init__(self, make: Maker, seed: int, sizes: Mapping[str, int]) -> None:
        for split, size in sizes.items():
            if not split or size < 0:
                raise InvalidTasks(
                    "sizes", f"{size} tasks in the split {split!r}. A split needs a name, and a size of 0 or more"
                )
        self._make = _with_split(make)
        self._seed = seed
        self._columns = Columns()
        self.sizes = dict(sizes)
        # A split may have a million tasks. The first ones suffice to detect that the function has changed.
        content = hashlib.sha256(repr((seed, sorted(self.sizes.items()))).encode())
        for split, size in self.sizes.items():
            for index in range(min(size, _SAMPLED)):
                content.update(text_of(self.get(split, index)) + b"\n")
        self.version = content.hexdigest()[:VERSION_DIGITS]

    def get(self, split: str, index: int) -> Task:
        """Return the task of an existing split and index.

        Raises:
            InvalidTasks: if the function did not return a task.
        """
        # `random.Random` accepts text, but how it hashes text may differ between versions of Python.
        text = f"{self._seed}/{split}/{index}".encode()
        try:
            made = self._make(random.Random(int.from_bytes(hashlib.sha256(text).digest(), "big")), index, split)
        except Exception as error:  # user code may raise anything
            place = f"task {index} of {split!r}"
            raise InvalidTasks(place, f"the function raised {describe(error)}") from error
        data = made.model_dump() if isinstance(made, Task) else made
        if isinstance(data, Mapping):
            data = {**data, "id": f"{split}-{index}", "split": split}
        return self._columns.task(Row(f"task {index} of {split!r}", data), None)

    def find(self, task_id: str) -> Task | None:
        """Return the task with an id, or None."""
        split, index = _parts(task_id)
        return self.get(split, index) if 0 <= index < self.sizes.get(split, 0) else None

    def like(self, task_id: str) -> list[str]:
        """Return the ids of this number in each split."""
        _, index = _parts(task_id)
        return [f"{split}-{index}" for split, size in self.sizes.items() if 0 <= index < size]


def _parts(task_id: str) -> tuple[str, int]:
    """Return the split and the index of an id; -1 if it has none."""
    split, _, number = task_id.rpartition("-")
    usual = number.isascii() and number.isdecimal() and len(number) < 19 and str(int(number)) == number
    return split, int(number) if usual else -1


def _with_split(make: Maker) -> Callable[[random.Random, int, str], Made]:
    """Return the function as one of three arguments: the random numbers, the index and the split.

    A third parameter that has a default is given the split only if it is named ``split``.

    Raises:
        InvalidTasks: if the function can be called with neither two nor three positional arguments.
    """
    if not callable(make):
        raise InvalidTasks("make", f"a function is needed; this is of the type {type(make).__name__}")
    name = getattr(make, "__name__", type(make).__name__)
    try:
        signature = inspect.signature(make)
    except ValueError as error:
        raise InvalidTasks(
            "make", f"{name} has no signature. Write a function with the arguments (rng, index)"
        ) from error
    takes_two, takes_three = _takes(signature, 2), _takes(signature, 3)
    if takes_three and (not takes_two or "split" in list(signature.parameters)[2:3]):
        return make  # type: ignore[return-value]
    if takes_two:
        return lambda rng, index, split: make(rng, index)  # type: ignore[call-arg]
    raise InvalidTasks("make", f"{name}{signature} must take (rng, index) or (rng, index, split)")


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True
