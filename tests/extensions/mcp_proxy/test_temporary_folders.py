"""No temporary folder outlives the process that made it, and one that something else deletes as well is no fault."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mcpenv.extensions.mcp_proxy.workspace import make_folder, remove_in_background

LEAVES_FOLDERS = """
from mcpenv.extensions.mcp_proxy.home import make_home
from mcpenv.extensions.mcp_proxy.workspace import Template, Workspace

home, workspace = make_home(), Workspace(Template.prepare(None, "copy"))
(workspace.path / "file").write_text("left")
print(home, workspace.path)
{end}
"""


@pytest.mark.parametrize("end", ["", "raise KeyboardInterrupt", "workspace.remove()"])
def test_folders_that_nothing_deleted_end_with_the_process(tmp_path: Path, end: str) -> None:
    program = [sys.executable, "-c", LEAVES_FOLDERS.format(end=end)]
    ended = subprocess.run(program, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    assert str(tmp_path) in ended.stdout and not list(tmp_path.iterdir())


def test_a_fork_leaves_the_folders_of_its_parent(tmp_path: Path) -> None:
    forks = "import os, sys\nif os.fork() == 0: sys.exit()\nos.wait()\nprint(home.is_dir() and workspace.path.is_dir())"
    program = [sys.executable, "-c", LEAVES_FOLDERS.format(end=forks)]
    ended = subprocess.run(program, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    assert ended.stdout.split()[-1] == "True"


def test_a_folder_in_which_files_are_made_and_deleted_meanwhile_is_deleted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    folder = make_folder("mcpenv-test-")
    for number in range(2000):
        (folder / str(number)).touch()
    ended = threading.Event()

    def work() -> None:
        for number in range(1999, -1, -1):
            (folder / str(number)).unlink(missing_ok=True)
        ended.set()

    threading.Thread(target=work).start()
    remove_in_background(folder)
    assert ended.wait(60)
    deadline = time.monotonic() + 60
    while folder.exists() and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert not folder.exists() and not caplog.records
