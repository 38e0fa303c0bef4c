"""Rows of a trainer's dataset: one for each task of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .types.tasks import LABELS, Task

COLUMNS = ("task", "split", "index", "seed", "options")
"""The columns of a row that name an episode. Others are the trainer's own."""


def rows_of(tasks: Sequence[Task], start: int = 0) -> list[dict[str, Any]]:
    """Return one row for each task, without its answers.

    A row has the ``prompt`` as a chat, the ``split`` and the ``index`` that name the task at a reset, its id as
    ``task_id``, and its labels: ``level``, ``family`` and ``tags``.

    Args:
        tasks: consecutive tasks of one split.
        start: the 0-based index of the first.
    """
    return [
        {
            "prompt": [{"role": "user", "content": task.prompt}],
            "split": task.split,
            "index": index,
            "task_id": task.id,
            "level": task.level,
            "family": task.family,
            "tags": [*task.tags],
        }
        for index, task in enumerate(tasks, start)
    ]


def labels_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels of a row for a trainer's own columns: ``level``, ``family`` and ``tags``, those that it has."""
    return {name: row[name] for name in LABELS if row.get(name)}


def reset_options_of(row: Task | str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a reset for a task or a row.

    Raises:
        ValueError: the row has no column for them.
    """
    if row is None:
        return {}
    if not isinstance(row, Mapping):
        return {"task": row}
    if row and not any(name in row for name in COLUMNS):
        raise ValueError(f"a row needs 'task', or 'split' and 'index'; this one has {', '.join(map(str, row))}")
    options = dict(row.get("options") or {})
    for name in ("task", "split", "index", "seed"):
        if row.get(name) is not None:
            options[name] = row[name]
    if "task" in options:
        options.pop("split", None), options.pop("index", None)
    return options
