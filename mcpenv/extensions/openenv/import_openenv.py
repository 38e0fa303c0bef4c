"""The command ``mcpenv share import-openenv``: convert an OpenEnv environment's folder to an environment of mcpenv."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mcpenv.cli.output import Page, print_json, quiet_logs
from mcpenv.errors import ConfigurationError

from .port import Port, port

CHECK = "import sys; from mcpenv.targets.target import load_target; load_target(sys.argv[1]).make().close()"


def import_openenv(
    path: Path,
    /,
    *,
    out: Path | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    debug: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Convert the folder of an OpenEnv environment to an environment of mcpenv that does not need OpenEnv.

    No code in the folder is run, and no file in it is changed. To serve it unconverted: mcpenv run PATH. Exit status
    0: everything was converted, and the new environment can be made. 1: it was written, but some work is left to do
    by hand. 2: nothing was written.

    Args:
        path: The folder with openenv.yaml.
        out: Folder to write to. Default: a folder next to PATH, with _mcpenv appended to its name.
        force: Overwrite existing files.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    quiet_logs(debug)
    folder = Path(os.path.abspath(path.expanduser()))
    target = folder.with_name(f"{folder.name}_mcpenv") if out is None else Path(os.path.abspath(out.expanduser()))
    made = port(folder)
    _write(made, target, force)
    fault = _fault_of(target)
    if fault is not None:
        made.could_not.append(fault)
    if as_json:
        print_json(
            {
                "environment": made.environment,
                "folder": str(target),
                "written": sorted(made.files),
                "could_not": made.could_not,
            }
        )
    else:
        _show(Page(sys.stdout), made, target)
    return 1 if made.could_not else 0


def _write(made: Port, target: Path, force: bool) -> None:
    taken = sorted(name for name in made.files if (target / name).exists())
    if taken and not force:
        raise ConfigurationError(f"{target} has {', '.join(taken)} already; --force overwrites them")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in made.files.items():
            (target / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be written: {error.strerror}") from error


def _fault_of(target: Path) -> str | None:
    """Return why a child process cannot make an instance of the new environment; None if it can."""
    ended = subprocess.run(
        [sys.executable, "-B", "-c", CHECK, str(target)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode == 0:
        return None
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return f"the new environment cannot be made: {lines[-1] if lines else f'exit status {ended.returncode}'}"


def _show(page: Page, made: Port, target: Path) -> None:
    page.line((made.environment, "bold"), f"  {target}")
    for name in sorted(made.files):
        page.line(name, indent=2)
    page.line()
    if made.could_not:
        page.line(("Left to do by hand:", "bold yellow"))
        for what in made.could_not:
            page.line(what, indent=2)
    else:
        page.line(f"mcpenv inspect {target}")
