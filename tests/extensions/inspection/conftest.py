"""The fixtures of tests that inspect an environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, command_lines
from command_worlds import world, world_url

__all__ = ["cli", "world", "world_url"]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Command lines in this process, in a working directory of their own."""
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run
