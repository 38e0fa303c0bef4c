"""Resolve the task that a reset starts, and the arguments of the environment's own ``reset``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mcpenv.errors import InvalidTasks, InvalidVerifier
from mcpenv.rewards.verifiers import check
from mcpenv_client.errors import ExecutionError, InvalidMessage
from mcpenv_client.types.records import Trajectory
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.values import MAX_NESTING
from mcpenv_client.wire.faults import describe_faults, faults

from . import TaskSet
from .reset_options import FRAMEWORK, MAX_EPISODE_ID, ResetOptions


@dataclass(frozen=True, slots=True)
class Assignment:
    """The task and the arguments that a reset starts with. The options are those that the author's reset takes.

    Attributes:
        task: None if the reset has no task.
        seed: the seed for the author's reset: from the orchestrator, or from the task.
        options: the options for the author's reset.
    """

    task: Task | None
    seed: int | None
    options: dict[str, Any]


def copied(value: Any) -> Any:
    """Copy plain containers recursively, because an author may change the arguments of a reset."""
    if type(value) is dict:
        return {name: copied(item) for name, item in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(copied(item) for item in value)
    return value


def _too_deep(value: Any, levels: int = MAX_NESTING) -> bool:
    """Return True if plain containers are nested in more levels than a record can have."""
    if type(value) is dict:
        value = value.values()
    elif type(value) not in (list, tuple, set):
        return False
    return levels == 0 or any(_too_deep(part, levels - 1) for part in value)


def assignment_of(then: Trajectory, *, declares_task: bool) -> Assignment:
    """Return the arguments with which the author's reset began an episode.

    Args:
        declares_task: True if the author's reset has a parameter ``task``.
    """
    options = copied(then.options)
    if declares_task and then.task is not None:
        options.setdefault("task", then.task)
    return Assignment(then.task, then.seed, options)


class Wanted:
    """The task that the options of a reset request. The other options are the environment's own.

    A name that the author's reset declares belongs to the author; ``task`` is then passed as a `Task`.

    Args:
        options: the options as received, including ``task``, ``split`` and ``index``.
        own: the options of the author's reset.
        tasks: the tasks of the environment, if it has any.

    Attributes:
        options: the other options.
        any: True if a task is requested.
        assigned: the assignment, if no task is requested and the options were checked; else None until `found`.

    Raises:
        InvalidMessage: if the options contradict each other, have the wrong type, or are nested too deep for a record.
    """

    def __init__(self, options: Mapping[str, Any], own: ResetOptions, tasks: TaskSet | None) -> None:
        self.options = dict(options)
        if _too_deep(self.options):
            raise InvalidMessage(f"the options are nested in more than {MAX_NESTING} levels")
        self._own = own
        self._tasks = tasks
        self._split, self._index = None, None
        self._task: Task | str | None = None
        self.assigned: Assignment | None = None
        if "task" in options and self._is_ours(options["task"]):
            self._task = _task_of(self.options.pop("task"))
        if tasks is not None:
            self._split, self._index = (
                None if own.declares(name) else self.options.pop(name, None) for name in ("split", "index")
            )
        self._check()
        self.any = self._task is not None or self._split is not None

    @classmethod
    def from_wire(
        cls, data: Mapping[str, Any], own: ResetOptions, tasks: TaskSet | None
    ) -> tuple[int | None, str | None, Wanted]:
        """Parse the ``data`` of a reset: seed, episode id and the requested task, with options in the annotated types.

        Raises:
            InvalidMessage: with locations in ``errors``.
        """
        seed, episode_id, options = _named(data)
        wanted = cls(options, own, tasks)
        # The options of a task are added to these.
        wanted.options = own.revived(wanted.options, tasks=tasks is not None, complete=not wanted.any)
        if not wanted.any:
            wanted.assigned = Assignment(None, seed, wanted.options)
        return seed, episode_id, wanted

    def found(self, seed: int | None) -> Assignment:
        """Return the assignment. May read files if a task is requested.

        Raises:
            InvalidMessage: if there is no such task, or its options do not fit the environment.
        """
        try:
            task = self._find()
        except InvalidTasks as error:
            raise ExecutionError(f"the environment's tasks cannot be read: {error}") from error
        if task is None:
            self._own.check(self.options, tasks=self._tasks is not None)
            return Assignment(None, seed, self.options)
        try:
            of_task = self._own.revived({name: v for name, v in task.options.items() if name not in self.options})
        except InvalidMessage as error:
            raise InvalidMessage(f"task {task.id!r}: {error.message}", errors=error.errors) from error
        options = {**copied(of_task), **self.options}
        if self._own.declares("task"):
            options["task"] = task
        self._own.check(options)
        if task.verifier is not None:
            try:
                check(task.verifier)
            except InvalidVerifier as error:
                raise InvalidMessage(f"task {task.id!r}: {error}") from error
        if seed is None and self._own.takes_seed:
            seed = task.stable_seed
        return Assignment(task, seed, options)

    def _is_ours(self, value: Any) -> bool:
        if self._tasks is not None or (isinstance(value, Task) and not self._own.declares("task")):
            return True
        return (value is None or isinstance(value, Mapping)) and not self._own.takes("task")

    def _find(self) -> Task | None:
        if isinstance(self._task, Task):
            return self._task.model_copy(deep=True)
        if self._tasks is None:
            return None
        if self._task is not None:
            return self._tasks.find(self._task)
        if self._split is None:
            return None
        assert self._index is not None
        return self._tasks.get(self._split, self._index)

    def _check(self) -> None:
        if self._split is not None and not isinstance(self._split, str):
            raise _wrong("split", "the name of a split, a string")
        if self._index is not None and (not isinstance(self._index, int) or isinstance(self._index, bool)):
            raise _wrong("index", "a place in the split, an integer")
        if self._task is not None and (self._split is not None or self._index is not None):
            raise _wrong("task", "given alone, or split and index are")
        if self._index is not None and self._split is None:
            raise _wrong("index", "given with a split")
        if self._split is not None and self._index is None:
            raise _wrong("split", "given with an index")


def _named(data: Mapping[str, Any]) -> tuple[int | None, str | None, dict[str, Any]]:
    """Return seed, episode id and the other options from the ``data`` of a reset, unconverted.

    Raises:
        InvalidMessage: with locations in ``errors``.
    """
    seed, episode_id = data.get("seed"), checked_id(data.get("episode_id"))
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise _wrong("seed", "an integer")
    return seed, episode_id, {name: value for name, value in data.items() if name not in FRAMEWORK}


def checked_id(value: Any) -> str | None:
    """Return the id that an episode is given, or None. Raise `InvalidMessage` for another value."""
    if value is None or (isinstance(value, str) and 0 < len(value) <= MAX_EPISODE_ID):
        return value
    raise _wrong("episode_id", f"a string of 1 to {MAX_EPISODE_ID} characters")


def _task_of(value: Any) -> Task | str | None:
    if value is None or isinstance(value, Task | str):
        return value
    if not isinstance(value, Mapping):
        raise _wrong("task", "a task, or the id of one")
    try:
        return Task.model_validate(dict(value))
    except ValidationError as error:
        raise InvalidMessage(f"no task: {describe_faults(error)}", errors=faults(error)) from error


def _wrong(name: str, should: str) -> InvalidMessage:
    return InvalidMessage(
        f"{name} is {should}", errors=[{"loc": [name], "msg": f"not {should}", "type": "value_error"}]
    )
