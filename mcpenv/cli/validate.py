"""The command ``mcpenv validate``: check the tasks of an environment by playing them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.execution.lifespan import IN_PROCESS
from mcpenv.packaging.target import Target, load_target
from mcpenv.tasks import NoSuchTask, TaskSet
from mcpenv.testing.tasks import Report, TaskReport
from mcpenv.testing.tasks import validate as validate_tasks
from mcpenv.testing.tasks.validate import MAX_STEPS, RANDOM_SEEDS
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Mode

from .contract import contract_of, show_contract
from .instance import instance
from .output import Page, author_output, number_of, print_json, quiet_logs

FAILED = 1


def validate(
    target: str,
    /,
    *,
    tasks: Path | None = None,
    split: str | None = None,
    number: Annotated[int | None, Parameter(name=["--number", "-n"])] = None,
    random_seeds: int = RANDOM_SEEDS,
    max_steps: int = MAX_STEPS,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Check tasks: play them by their oracle, idly and at random, each twice. Without tasks, check the contract.

    A task is sound if its oracle gets the full score, an idle play the lowest, random plays less than the full, and
    repeated plays agree. An environment without tasks is checked by the contract kit: reset, state, schemas, calls,
    and so on. The manifest of a folder is checked first. Exit status 0: all is sound. 1: some is not. 2: nothing was
    tried.

    Args:
        target: An environment as for run.
        tasks: Tasks to use instead of the environment's own: a .jsonl file, a .parquet file or a dataset's folder.
        split: Check only tasks of this split.
        number: Number of tasks, from the first. Default: all.
        random_seeds: Number of random plays of each task.
        max_steps: Maximum calls of a random play.
        settings: name=value for the environment's constructor; may be given several times.
        as_json: Print one JSON document.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    for name, value, least in (("-n", number, 1), ("--random-seeds", random_seeds, 0), ("--max-steps", max_steps, 1)):
        if value is not None and value < least:
            raise ConfigurationError(f"{name} is {value}; it must be {least} or more")
    with author_output():
        loaded = load_target(target, settings or (), tasks)
        own = _tasks_of(loaded)
        if own is None:
            if split is not None or number is not None:
                raise ConfigurationError(f"{loaded.name} has no tasks for --split and -n; give it some with --tasks")
            contract = contract_of(loaded)
        else:
            loaded.refuse_other(Mode.SIMULATION)
            found, size = _chosen(loaded, own, split)
            try:
                with _progress(size if number is None else min(number, size)) as on_report:
                    report = validate_tasks(
                        loaded.make,
                        itertools.islice(found, number),
                        random_seeds=random_seeds,
                        max_steps=max_steps,
                        on_report=on_report,
                    )
            finally:
                IN_PROCESS.leave()
    if own is None:
        return show_contract(contract, as_json)
    if as_json:
        print_json(report.to_plain())
    else:
        _show(report)
    return 0 if report.ok else FAILED


def _tasks_of(target: Target) -> TaskSet | None:
    """Return the tasks of a target; None if it has none."""
    cls: type[MCPEnvironment] | None = target.environment_class
    if cls is None:
        with instance(target, target.modes[0]) as env:
            cls = type(env)
    return cls.tasks


def _chosen(target: Target, tasks: TaskSet, split: str | None) -> tuple[Iterator[Task], int]:
    """Return the tasks of a split, or all of them, and their number.

    Raises:
        ConfigurationError: there is no such split, or no task in it.
    """
    try:
        size = len(tasks) if split is None else tasks.size(split)
        found = iter(tasks) if split is None else (tasks.get(split, index) for index in range(size))
    except NoSuchTask as error:
        raise ConfigurationError(f"{target.name}: {error}") from error
    if not size:
        raise ConfigurationError(f"{target.name} has no tasks{'' if split is None else f' in {split!r}'}")
    return found, size


@contextmanager
def _progress(size: int) -> Iterator[Callable[[TaskReport], None]]:
    """Show a progress bar on stderr, if that is a terminal, and yield the function that advances it."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("validating", total=size)
        yield lambda report: progress.advance(bar)


# -- output


def _show(report: Report) -> None:
    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = 120
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", style="cyan", no_wrap=True)
    table.add_column("split")
    for name in ("oracle", "nothing", "random"):
        table.add_column(name, justify="right")
    table.add_column("twice")
    table.add_column("")
    for of_task in report.tasks:
        played = [score for score in of_task.at_random if score is not None]
        table.add_row(
            of_task.task.id,
            of_task.task.split,
            _score(of_task.oracle) if of_task.has_oracle else "none",
            _score(of_task.nothing),
            _score(max(played)) if played else "-",
            "-" if of_task.repeats is None else "agree" if of_task.repeats else "differ",
            Text("sound", "green")
            if not of_task.problems
            else Text(number_of(len(of_task.problems), "problem"), "red"),
        )
    console.print(table)
    page = Page(sys.stdout)
    for of_task in report.tasks:
        _show_problems(page, of_task)
    page.line()
    page.line(_summary(report))


def _show_problems(page: Page, of_task: TaskReport) -> None:
    if not of_task.problems:
        return
    page.line()
    page.line((of_task.task.id, "bold cyan"))
    for problem in of_task.problems:
        page.line(problem, indent=2)


def _summary(report: Report) -> str:
    unsound = sum(bool(of_task.problems) for of_task in report.tasks)
    without = sum(not of_task.has_oracle for of_task in report.tasks)
    summary = f"{number_of(len(report.tasks), 'task')}, " + (f"{unsound} of them unsound" if unsound else "all sound")
    return f"{summary}; {without} without an oracle, so not known to be solvable" if without else summary


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:g}"
