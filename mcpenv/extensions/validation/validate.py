"""The command ``mcpenv validate``: judge an environment or a server in one report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mcpenv.cli.instance import instance, own_instances
from mcpenv.cli.output import author_output, print_json, quiet_logs
from mcpenv.cli.tokens import AgentToken
from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.rewards.verifiers import missing_here
from mcpenv.targets.place import is_url
from mcpenv.targets.target import Target, load_target
from mcpenv.tasks import NoSuchTask, TaskSet
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Mode

from .checks.folder import judge_packaging, judge_secrets
from .parts import PARTS, Candidate, Part, Validation, run_parts
from .parts.cheats import judge_cheats
from .parts.contract import judge_contract, judge_schemas
from .parts.durability import judge_durability
from .parts.load import judge_load
from .parts.security import judge_security
from .parts.server import server_parts
from .parts.tasks import judge_tasks
from .tasks import Report, TaskReport
from .tasks.validate import MAX_STEPS, RANDOM_SEEDS
from .validation_page import document_of, show, write_badge

FAILED = 1
NOT_JUDGED = 2

PLAYING = ("contract", "tasks", "cheats", "load", "durability")
"""The parts that play tasks."""

NUMBER = 50
"""The default maximum of tasks to play."""

TIME_LIMIT_S = 120.0
"""The default time limit of a part, in seconds."""

PartName = Literal["contract", "schemas", "tasks", "cheats", "load", "durability", "security", "packaging"]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Choice:
    """The parts that are judged.

    Attributes:
        only: Judge only this part; may be given several times. contract: resets, calls, ends and close, in threads
            and with several seeds. schemas: the tools' names, schemas and descriptions. tasks: solutions pass, and
            idle, random and broken plays do not. cheats: answers that are shown, and rewards without work. load:
            sessions at once share nothing, leave nothing behind and are quick. durability: another process continues
            an episode. security: secrets in files, and paths out of the workspace. packaging: manifest, README,
            dependencies, and a copy that loads elsewhere.
        skip: Leave this part out; may be given several times. The report lists it as skipped.
        time_limit: Maximum seconds of each part.
    """

    only: Annotated[list[PartName] | None, Parameter(negative=())] = None
    skip: Annotated[list[PartName] | None, Parameter(negative=())] = None
    time_limit: float = TIME_LIMIT_S

    @property
    def left_out(self) -> set[str]:
        """The names of the parts that are not judged.

        Raises:
            ConfigurationError: no part is left, or the time limit is not positive.
        """
        left_out = {part for part in PARTS if self.only and part not in self.only} | set(self.skip or ())
        if left_out == set(PARTS):
            raise ConfigurationError("--only and --skip leave no part to judge; leave one of them out")
        if not self.time_limit > 0:
            raise ConfigurationError(f"--time-limit is {self.time_limit:g}; it must be more than 0 seconds")
        return left_out


def validate(
    target: str,
    /,
    *,
    choice: Choice = Choice(),
    agent: AgentToken = AgentToken(),  # noqa: B008 - frozen
    tasks: Path | None = None,
    columns: str | None = None,
    split: str | None = None,
    number: Annotated[int | None, Parameter(name=["--number", "-n"])] = None,
    random_seeds: int = RANDOM_SEEDS,
    max_steps: int = MAX_STEPS,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    live: Flag = False,
    badge: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Flag = False,
) -> int:
    """Judge an environment, or a running server, in parts: --only has their names.

    Each finding names the problem, its place, and a remedy. Exit status 0: it is sound, perhaps with warnings. 1: it is
    not, or a part could not be judged. 2: nothing was judged.

    Args:
        target: An environment as for run, or the URL of a server, of which less can be judged.
        tasks: Tasks to use instead of the environment's own: a file of JSON or Parquet, or a dataset's folder.
        columns: Columns of that file by the fields of a task, such as prompt=question,answer=solution. A field that
            tasks do not have is in the metadata, as columns are that are not named.
        split: Play only tasks of this split.
        number: Maximum number of tasks that are played, from the first; 0 for all. Default: 50.
        random_seeds: Number of random plays of each task.
        max_steps: Maximum calls of a random play.
        settings: name=value for the environment's constructor; may be given several times.
        live: The world is live, so that no two episodes are equal: do not judge determinism, isolation and durability.
        badge: Write a badge to this .svg file, and print the line of Markdown that shows it.
        as_json: Print one JSON document.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    for name, value, least in (("-n", number, 0), ("--random-seeds", random_seeds, 0), ("--max-steps", max_steps, 1)):
        if value is not None and value < least:
            raise ConfigurationError(f"{name} is {value}; it must be {least} or more")
    left_out = choice.left_out
    token = agent.read(target)
    if is_url(target):
        for name, given in (
            ("--tasks", tasks),
            ("--columns", columns),
            ("--split", split),
            ("-n", number),
            ("--set", settings),
        ):
            if given is not None:
                raise ConfigurationError(f"{name} is for an environment's code; a running server has its own")
        parts = server_parts(target, token)
        with _progress(len(PARTS) - len(left_out), 0) as (on_part, *_):
            validation = run_parts(target, parts, leave_out=left_out, time_limit_s=choice.time_limit, on_part=on_part)
        return _report(validation, Report(), badge, as_json)
    with author_output():
        loaded = load_target(target, settings or (), tasks, columns)
        validation, played = judge(
            loaded,
            choice=choice,
            split=split,
            number=number,
            random_seeds=random_seeds,
            max_steps=max_steps,
            live=live,
        )
    return _report(validation, played, badge, as_json)


def judge(
    target: Target,
    *,
    choice: Choice = Choice(),
    split: str | None = None,
    number: int | None = None,
    random_seeds: int = RANDOM_SEEDS,
    max_steps: int = MAX_STEPS,
    live: bool = False,
) -> tuple[Validation, Report]:
    """Judge the code of an environment as ``mcpenv validate`` does, and return its findings and the played tasks.

    Args:
        target: the environment. Its instances are made and closed here.
        choice, split, number, random_seeds, max_steps, live: as the command has them.

    Raises:
        ConfigurationError: it cannot be judged: no such split, no tasks to choose, a verifier that cannot run here.
    """
    left_out, played = choice.left_out, Report()
    target.refuse_other(Mode.SIMULATION)
    cls = class_of(target)
    if cls.tasks is None and (split is not None or number is not None):
        raise ConfigurationError(f"{target.name} has no tasks for --split and -n; give it some with --tasks")
    found, size = ([], 0) if cls.tasks is None else _chosen(target, cls.tasks, split, number)
    if not left_out.issuperset(PLAYING):
        _refuse_what_cannot_be_judged(found)
    source = "" if cls.tasks is None else cls.tasks.source
    candidate = Candidate(
        target.make,
        found,
        size=size,
        source=source,
        folder=target.folder,
        deterministic=not live,
        remedies=cls.REMEDIES,
    )
    progress = _progress(len(PARTS) - len(left_out), len(found))
    with own_instances(), progress as (on_part, on_check, on_report, on_reset):
        candidate.on_check = on_check
        candidate.plays_oracles = "tasks" not in left_out
        if not left_out.issuperset(PLAYING):
            candidate.prepare(on_reset)
        of_tasks = partial(
            judge_tasks,
            candidate,
            report=played,
            random_seeds=random_seeds,
            max_steps=max_steps,
            on_report=on_report,
        )
        parts = _parts(target, candidate, cls.__doc__ or "", of_tasks)
        validation = run_parts(target.name, parts, leave_out=left_out, time_limit_s=choice.time_limit, on_part=on_part)
    validation.replace_remedies(cls.REMEDIES)
    return validation, played


def _refuse_what_cannot_be_judged(tasks: Sequence[Task]) -> None:
    """Raise if a verifier cannot run here because a package is missing, which is not a fault of the environment.

    Raises:
        ConfigurationError: with the package to install.
    """
    for task in tasks:
        missing = missing_here(task.verifier)
        if missing is not None:
            raise ConfigurationError(f"task {task.id!r} cannot be judged here: its verifier {missing}")


def _parts(target: Target, candidate: Candidate, doc: str, of_tasks: Callable[..., None]) -> list[Part]:
    """Return the parts of an environment's code."""
    return [
        Part("contract", [partial(judge_contract, candidate)]),
        Part("schemas", [partial(judge_schemas, candidate)]),
        Part("tasks", [of_tasks]),
        Part("cheats", [partial(judge_cheats, candidate)]),
        Part("load", [partial(judge_load, candidate)]),
        Part("durability", [partial(judge_durability, candidate, target.given)]),
        Part("security", [partial(judge_secrets, target), partial(judge_security, candidate)]),
        Part("packaging", [partial(judge_packaging, target, doc, candidate.on_check)], runs_code=False),
    ]


def _report(validation: Validation, tasks: Report, badge: Path | None, as_json: bool) -> int:
    """Print the report, write the badge, and return the exit status."""
    line = None
    if badge is not None:
        try:
            line = write_badge(badge, validation)
        except OSError as error:
            problem = f"{error.strerror}; name a file in a folder that exists"
            raise ConfigurationError(f"--badge {badge}: {problem}") from error
    if as_json:
        print_json(document_of(validation, tasks, line))
    else:
        show(validation, tasks)
        if line is not None:
            print(f"\n{line}")
    return 0 if validation.ok else FAILED if validation.judged else NOT_JUDGED


def class_of(target: Target) -> type[MCPEnvironment]:
    """Return the class of a target's instances."""
    if target.environment_class is not None:
        return target.environment_class
    with instance(target, target.modes[0]) as env:
        return type(env)


def _chosen(target: Target, tasks: TaskSet, split: str | None, number: int | None) -> tuple[Sequence[Task], int]:
    """Return the tasks to play, and the number of tasks in the split, or in total without one.

    Raises:
        ConfigurationError: there is no such split, or no task in it.
    """
    most = NUMBER if number is None else number or None
    try:
        size = len(tasks) if split is None else tasks.size(split)
        found = iter(tasks) if split is None else (tasks.get(split, index) for index in range(size))
        chosen = list(islice(found, most))
    except NoSuchTask as error:
        raise ConfigurationError(f"{target.name}: {error}") from error
    if not size:
        raise ConfigurationError(f"{target.name} has no tasks{'' if split is None else f' in {split!r}'}")
    return chosen, size


@contextmanager
def _progress(
    parts: int, tasks: int
) -> Iterator[
    tuple[Callable[[str], None], Callable[[str], None], Callable[[TaskReport], None], Callable[[Task], None]]
]:
    """Show on stderr which part and check runs, if stderr is a terminal.

    Yield the callbacks for parts, for checks, for reports of tasks, and for first resets.
    """
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("loading", total=parts * max(tasks, 1))

        begun, part = 0, ""

        def on_part(name: str) -> None:
            nonlocal begun, part
            part = name
            progress.update(bar, description=name, completed=begun * max(tasks, 1))
            begun += 1

        def on_check(check: str) -> None:
            progress.update(bar, description=f"{part}: {check}")

        def on_report(report: TaskReport) -> None:
            progress.update(bar, description=f"tasks: {report.task.id}", advance=1)

        def on_reset(task: Task) -> None:
            progress.update(bar, description=f"first reset: {task.id}")

        yield on_part, on_check, on_report, on_reset
