"""The command ``mcpenv tasks``: list and show the tasks of an environment or a server."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Protocol

from cyclopts import Parameter

from mcpenv.cli.instance import instance
from mcpenv.cli.output import Page, author_output, note, print_json, printable, quiet_logs
from mcpenv.cli.remote import base_url
from mcpenv.cli.tokens import ControlToken
from mcpenv.errors import ConfigurationError
from mcpenv.targets.place import is_url
from mcpenv.targets.target import load_target
from mcpenv.tasks import NoSuchTask, TaskSet
from mcpenv_client.client import EnvClient
from mcpenv_client.errors import InvalidMessage, Unauthorized
from mcpenv_client.sync import SyncEnvClient
from mcpenv_client.task_client import PAGE
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Mode

LISTED = 50
"""The default number of tasks to list."""

Settings = Annotated[list[str] | None, Parameter(name="--set", negative=())]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
AsJSON = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]


def list_tasks(
    target: str,
    /,
    *,
    split: str | None = None,
    level: int | None = None,
    family: str | None = None,
    tag: Annotated[list[str] | None, Parameter(negative=())] = None,
    number: Annotated[int, Parameter(name=["--number", "-n"])] = LISTED,
    settings: Settings = None,
    tasks: Path | None = None,
    columns: str | None = None,
    token: ControlToken = ControlToken(),  # noqa: B008 - frozen
    as_json: AsJSON = False,
    debug: Flag = False,
) -> int:
    """List tasks: their ids, splits, labels and prompts.

    Args:
        target: An environment as for run, or the URL of a server (of its control plane, if that has its own port).
        split: List only tasks of this split.
        level: List only tasks of this level.
        family: List only tasks of this family.
        tag: List only tasks with this tag; may be given several times for tasks with all of them.
        number: Maximum number of tasks; 0 for all.
        settings: name=value for the environment's constructor; may be given several times.
        tasks: Tasks to use instead of the environment's own: a file of JSON or Parquet, or a dataset's folder.
        columns: Columns of that file by the fields of a task, such as prompt=question,answer=solution. A field that
            tasks do not have is in the metadata, as columns are that are not named.
        as_json: Print one JSON document, with all fields of the tasks.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    if number < 0:
        raise ConfigurationError(f"--number is {number}; it must be 1 or more, or 0 for all tasks")
    with _catalogue(target, settings, tasks, columns, token) as catalogue:
        sizes = catalogue.sizes() if split is None else {split: catalogue.size(split)}
        wanted = set(tag or ())
        every = (
            task
            for task in _each(catalogue, sizes)
            if (level is None or task.level == level)
            and (family is None or task.family == family)
            and wanted.issubset(task.tags)
        )
        listed = list(islice(every, number or None))
        more = next(every, None) is not None
        origin = catalogue.origin()
    if as_json:
        listing = {"splits": sizes, "tasks": [task.model_dump(mode="json") for task in listed]}
        print_json({**origin, "source": catalogue.source, **listing})
    else:
        filters = [] if level is None else [f"level {level}"]
        filters += [] if family is None else [f"family {family!r}"]
        filters += [f"tag {each!r}" for each in tag or ()]
        left = "more" if filters else f"{sum(sizes.values()) - len(listed)} more"
        _print(listed, sizes, catalogue.source, origin, left if more else None)
        if filters and not listed:
            note(f"no task has {' and '.join(filters)}")
    return 0


def show_task(
    target: str,
    task: str,
    /,
    *,
    split: str | None = None,
    settings: Settings = None,
    tasks: Path | None = None,
    columns: str | None = None,
    token: ControlToken = ControlToken(),  # noqa: B008 - frozen
    as_json: AsJSON = False,
    debug: Flag = False,
) -> int:
    """Show one task in full: its prompt, options, limits, solution and verifier.

    Args:
        target: An environment as for run, or the URL of a server (of its control plane, if that has its own port).
        task: The task's id. With --split, its id or its index in that split.
        split: The split that has the task.
        settings: name=value for the environment's constructor; may be given several times.
        tasks: Tasks to use instead of the environment's own: a file of JSON or Parquet, or a dataset's folder.
        columns: Columns of that file by the fields of a task, such as prompt=question,answer=solution. A field that
            tasks do not have is in the metadata, as columns are that are not named.
        as_json: Print one JSON document.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    with _catalogue(target, settings, tasks, columns, token) as catalogue:
        if split is not None and task.isdecimal():
            found = catalogue.get(split, int(task))
        else:
            found = catalogue.find(task, split)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _show(found)
    return 0


# -- sources of tasks


class _Catalogue(Protocol):
    """The interface to the tasks of an environment's code or of a server.

    Attributes:
        source: the file or folder of the tasks, words for what makes them, or the server's URL.
    """

    source: str

    def origin(self) -> Mapping[str, str | None]:
        """Return licence, source and version, as `TaskSet.origin`; nothing from an older server."""
        ...

    def sizes(self) -> dict[str, int]: ...

    def size(self, split: str) -> int: ...

    def get(self, split: str, index: int) -> Task: ...

    def find(self, task_id: str, split: str | None) -> Task: ...

    def range(self, split: str, size: int) -> Iterator[Task]: ...


class _Here:
    """The tasks of an environment's code."""

    def __init__(self, tasks: TaskSet) -> None:
        self.sizes, self.size, self.get, self.origin = tasks.sizes, tasks.size, tasks.get, tasks.origin
        self._tasks, self.source = tasks, tasks.source

    def find(self, task_id: str, split: str | None) -> Task:
        task = self._tasks.find(task_id)
        if split is not None and task.split != split:
            raise NoSuchTask(f"the task {task_id!r} is in the split {task.split!r}")
        return task

    def range(self, split: str, size: int) -> Iterator[Task]:
        return (self._tasks.get(split, index) for index in range(size))


class _There:
    """The tasks of a server."""

    def __init__(self, client: SyncEnvClient[Any, Any], source: str) -> None:
        self._client, self.source = client, source
        self.size, self.get = client.num_tasks, client.get_task

    def origin(self) -> Mapping[str, str | None]:
        return self._client.metadata().get("task_set") or {}

    def sizes(self) -> dict[str, int]:
        return {split: self.size(split) for split in self._client.splits()}

    def find(self, task_id: str, split: str | None) -> Task:
        sizes = self.sizes() if split is None else {split: self.size(split)}
        for task in _each(self, sizes):
            if task.id == task_id:
                return task
        raise NoSuchTask(f"there is no task {task_id!r}")

    def range(self, split: str, size: int) -> Iterator[Task]:
        for begin in range(0, size, PAGE):
            yield from self._client.get_tasks(split, begin, begin + PAGE)


@contextmanager
def _catalogue(
    target: str, settings: list[str] | None, tasks: Path | None, columns: str | None, token: ControlToken
) -> Iterator[_Catalogue]:
    """Yield the tasks of a target.

    Raises:
        ConfigurationError: the target has no tasks, or no such task or split.
    """
    try:
        if is_url(target):
            if settings or tasks is not None:
                raise ConfigurationError(
                    "--set and --tasks are for an environment's code; a running server has its own"
                )
            presented = token.read(target)
            headers = None if presented is None else {"Authorization": f"Bearer {presented}"}
            yield _There(EnvClient[Any, Any, Any](base_url(target), headers=headers).sync(), target)
            return
        with author_output():
            own = _tasks_of(target, settings, tasks, columns)
            own.sizes()
        yield _Here(own)
    except InvalidMessage as error:
        raise ConfigurationError(f"{target}: {error}") from error
    except Unauthorized as error:
        wanted = "it requires its control token (--control-token-file, or MCPENV_CONTROL_TOKEN)"
        raise ConfigurationError(f"{target}: {wanted}") from error


def _tasks_of(target: str, settings: list[str] | None, tasks: Path | None, columns: str | None) -> TaskSet:
    loaded = load_target(target, settings or (), tasks, columns)
    cls = loaded.environment_class
    if cls is None:
        with instance(loaded, Mode.SIMULATION) as env:
            cls = type(env)
    if cls.tasks is None:
        raise ConfigurationError(f"{target}: {cls.exposed_name()} has no tasks; give it some with --tasks")
    return cls.tasks


def _each(catalogue: _Catalogue, sizes: dict[str, int]) -> Iterator[Task]:
    for split, size in sizes.items():
        yield from catalogue.range(split, size)


# -- output


def _print(
    tasks: list[Task], sizes: dict[str, int], source: str, origin: Mapping[str, str | None], left: str | None
) -> None:
    page = Page(sys.stdout)
    page.line(
        ", ".join(f"{printable(split)}: {size}" for split, size in sizes.items()) or "no tasks",
        (f", from {printable(source)}", "dim"),
    )
    known = {**origin, "source": origin.get("source") if origin.get("source") != source else None}
    if origin.get("licence") is not None:
        page.line((", ".join(f"{name} {printable(value)}" for name, value in known.items() if value), "dim"))
    if not tasks:
        return
    page.line()
    ids, splits = [printable(task.id) for task in tasks], [printable(task.split) for task in tasks]
    labels = [printable(task.labels) for task in tasks]
    columns = {"id": ids, "split": splits, **({"labels": labels} if any(labels) else {})}
    widths = {name: max(map(len, [name, *cells])) for name, cells in columns.items()}
    taken = sum(widths.values()) + 2 * len(widths)
    room = max(shutil.get_terminal_size().columns - taken, 20) if sys.stdout.isatty() else None
    page.line(("".join(f"{name.ljust(width)}  " for name, width in widths.items()) + "prompt", "bold"))
    for task, *cells in zip(tasks, *columns.values(), strict=True):
        first, *rest = (f"{cell.ljust(width)}  " for cell, width in zip(cells, widths.values(), strict=True))
        prompt = printable(" ".join(task.prompt.split()))
        if room is not None and len(prompt) > room:
            prompt = prompt[: room - 1] + "…"
        page.line((first, "cyan"), *rest, prompt)
    if left is not None:
        page.line((f"and {left} (--number 0 lists all)", "dim"))


def _show(task: Task) -> None:
    page = Page(sys.stdout)
    page.line((printable(task.id), "bold"), f"  {printable(task.split)}, version {printable(task.version)}")
    if task.prompt:
        page.line()
    for line in task.prompt.splitlines():
        page.prose(printable(line), indent=2)
    data = task.model_dump(mode="json", exclude_defaults=True, exclude={"id", "split", "prompt", "version", "oracle"})
    data["seed"] = task.stable_seed
    for field, value in data.items():
        page.line()
        page.line((field, "bold underline"))
        page.block(json.dumps(value, indent=2), indent=2)
    if task.oracle is not None:
        page.line()
        page.line(("oracle", "bold underline"))
        for call in task.oracle:
            page.line((printable(call.tool_name), "cyan"), f" {json.dumps(call.arguments)}", indent=2)
