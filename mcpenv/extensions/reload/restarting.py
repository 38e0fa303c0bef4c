"""Reload by restarting the whole command, for several workers and for systems that cannot fork."""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
from pathlib import Path

from watchfiles import Change, PythonFilter, run_process

from mcpenv.cli.output import note
from mcpenv.targets.manifest import MANIFEST

from .watched import watched_path


def run_restarting(target: str) -> int:
    """Run the same command without ``--reload`` in a child process; restart it after each change of a Python file."""
    watched = watched_path(target)
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--reload")]
    command = [sys.executable, "-m", "mcpenv", *arguments]
    # watchfiles takes one string and splits it as the system's shell does.
    text = subprocess.list2cmdline(command) if sys.platform == "win32" else shlex.join(command)
    # A failing child process has reported the reason itself.
    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    note(f"Watching {watched} for changes.")
    run_process(
        watched,
        target=text,
        target_type="command",
        watch_filter=PythonFilter(extra_extensions=(MANIFEST,)),
        callback=_tell_changes,
    )
    return 0


def _tell_changes(changes: set[tuple[Change, str]]) -> None:
    names = ", ".join(sorted({Path(path).name for _, path in changes}))
    note(f"{names} changed, restarting.")
