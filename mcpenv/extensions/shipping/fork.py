"""The command ``mcpenv share fork``: copy an environment from a Space into a folder, for further work."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mcpenv.cli.output import Page, number_of, print_json

from .download import hub
from .hub.space import SpaceName
from .scaffold import check_folder


def fork(
    space: str,
    folder: Path,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Copy the environment of a Space of Hugging Face into a new folder. None of its code is run.

    Args:
        space: hub:OWNER/NAME, or hub:OWNER/NAME@REVISION.
        folder: Folder to make. It must be missing or empty.
        as_json: Print one JSON document.
        debug: Show the traceback when something fails.
    """
    name = SpaceName.parse(space)
    check_folder(folder)
    path, commit = hub().download(name, folder.absolute())
    files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    if as_json:
        print_json({"space": name.repository, "commit": commit, "folder": str(path), "files": files})
        return 0
    page = Page(sys.stdout)
    page.line((name.repository, "bold"), f" at {commit[:12]} is in {folder}, {number_of(len(files), 'file')}.")
    page.line("It is code of somebody else: read it before you run it.")
    page.line((f"mcpenv run {shlex.quote(str(folder))}", "cyan"), indent=2)
    return 0
