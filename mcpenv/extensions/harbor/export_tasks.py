"""The command ``mcpenv tasks export``: write tasks for other harnesses."""

from __future__ import annotations

import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

import mcpenv
from mcpenv.cli.instance import instance
from mcpenv.cli.output import Page, author_output, number_of, print_json, quiet_logs
from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.targets.external import external_target
from mcpenv.targets.place import is_url
from mcpenv.targets.settings import is_secret
from mcpenv.targets.target import Target, load_target
from mcpenv_client.types.tasks import Task
from mcpenv_client.types.tools import Mode

from .export import OWN, Served, package_of, slug_of, write_task

IMAGE = "python:3.12-slim"


def export_tasks(
    target: str,
    /,
    *,
    to: Path,
    format: Literal["harbor"] = "harbor",
    split: str | None = None,
    number: Annotated[int, Parameter(name=["--number", "-n"])] = 0,
    org: str = "mcpenv",
    install: Annotated[list[str] | None, Parameter(negative=())] = None,
    image: str = IMAGE,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    tasks: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Write tasks as task directories of Harbor, each with a container that serves its episode.

    Args:
        target: An environment as for run.
        to: The folder to write to. A folder is created in it for each task; none of them may exist.
        format: The format.
        split: Write only tasks of this split.
        number: Maximum number of tasks; 0 for all.
        org: The first part of task names.
        install: A requirement for pip, or the path of a wheel, for the container; may be given several times. Default:
            this version of mcpenv.
        image: The container's image, with Python, pip and venv.
        settings: name=value for the environment's constructor; may be given several times.
        tasks: Tasks to use instead of the environment's own: a .jsonl file, a .parquet file or a dataset's folder.
        as_json: Print one JSON document.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    if is_url(target) or external_target(target) is not None:
        raise ConfigurationError(f"{target} cannot be exported: only the code of an environment of mcpenv can")
    secret = next((setting for setting in settings or () if is_secret(setting.partition("=")[0])), None)
    if secret is not None:
        name = secret.partition("=")[0]
        raise ConfigurationError(f"--set {name} cannot be exported: the folders would have the secret")
    with author_output():
        loaded = load_target(target, settings or (), tasks)
        found = _tasks_of(loaded, split, number)
        served = _served(loaded, settings or [], install or [], image)
    folders: dict[str, Task] = {}
    for task in found:
        other = folders.setdefault(slug_of(task.id), task)
        if other is not task:
            raise ConfigurationError(f"tasks {other.id!r} and {task.id!r} both get the name {slug_of(task.id)!r}")
        if (to / slug_of(task.id)).exists():
            raise ConfigurationError(f"--to {to}: the folder {slug_of(task.id)} exists")
    if served.code is not None and to.resolve().is_relative_to(served.code.resolve()):
        raise ConfigurationError(f"--to {to}: it is inside of the folder of code that is copied, {served.code}")
    for name, task in folders.items():
        try:
            write_task(task, served, org, to / name)
        except BaseException:
            shutil.rmtree(to / name, ignore_errors=True)
            raise
    if as_json:
        print_json({"tasks": [str(to / name) for name in folders]})
    else:
        Page(sys.stdout).line(f"{number_of(len(folders), 'task')} written to {to}")
    return 0


def _tasks_of(target: Target, split: str | None, number: int) -> list[Task]:
    """Return the tasks to export.

    Raises:
        ConfigurationError: there are none, or one cannot be exported.
    """
    with instance(target, Mode.SIMULATION) as env:
        cls, has_rubric = type(env), env.rubric is not None
    if cls.tasks is None:
        raise ConfigurationError(f"{target.name} has no tasks; give it some with --tasks")
    found = list(islice((task for task in cls.tasks if split is None or task.split == split), number or None))
    if not found:
        raise ConfigurationError(f"{target.name} has no tasks{'' if split is None else f' in {split!r}'}")
    scores = has_rubric or cls.verify is not MCPEnvironment.verify or cls.score is not MCPEnvironment.score
    for task in found:
        reason = None
        if not task.prompt.strip():
            reason = "it has no prompt, and Harbor has nothing else to tell the agent"
        elif task.verifier is None and not scores and not cls.action_types:
            reason = "nothing verifies or scores it"
        if reason is not None:
            raise ConfigurationError(f"task {task.id!r} cannot be exported: {reason}")
    return found


def _served(target: Target, settings: list[str], install: list[str], image: str) -> Served:
    """Return the environment as a container has it.

    Raises:
        ConfigurationError: the origin of its code in the container is unknown.
    """
    if "mcpenv" not in map(package_of, install):
        install = [f"mcpenv=={mcpenv.__version__}", *install]
    place, colon, attribute = target.spec.rpartition(":")
    path = Path(target.spec if not colon else place)
    if not path.is_absolute():
        if (
            target.folder is not None
            and not target.spec.startswith("mcpenv.")
            and set(OWN).issuperset(map(package_of, install))
        ):
            raise ConfigurationError(
                f"{target.spec} is a module; name what installs it with --install, or export the folder of its code"
            )
        return Served(target.name, target.spec, None, settings, install, image)
    code = path if path.is_dir() else path.parent
    inside = "." if path.is_dir() else path.name
    return Served(target.name, f"{inside}{colon}{attribute}" if colon else inside, code, settings, install, image)
