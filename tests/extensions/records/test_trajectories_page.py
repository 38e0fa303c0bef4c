"""docs/how-to/record-and-replay.md is true: its program runs, and then its commands do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "record-and-replay.md").read_text(encoding="utf-8")
CONSOLES = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line.removeprefix("$ mcpenv ") for block in CONSOLES for line in block.splitlines() if line[:1] == "$"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the page's game and the record that it makes."""
    folder = tmp_path_factory.mktemp("page")
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (folder / "game.py").write_text(program, encoding="utf-8")
    ran = run(folder, str(folder / "game.py"))
    assert ran.stdout == "20 episodes, 70 steps\n"
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_works_and_prints_what_stands_there(folder: Path, command: str) -> None:
    said = run(folder, "-m", "mcpenv", *command.split()).stdout
    (block,) = [block for block in CONSOLES if f"$ mcpenv {command}\n" in block]
    shown = block.partition(f"$ mcpenv {command}\n")[2].partition("$ ")[0]
    # Times differ.
    assert re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "WHEN", said).startswith(
        re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "WHEN", shown)
    )
    assert said
