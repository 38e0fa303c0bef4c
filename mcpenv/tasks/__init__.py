"""Read the tasks of an environment, by split and index."""

from __future__ import annotations

from mcpenv.errors import InvalidTasks

from .columns import Row
from .stored import Rows
from .task_set import NoSuchTask, TaskSet

__all__ = ["InvalidTasks", "NoSuchTask", "Row", "Rows", "TaskSet"]
