"""The page that plays an episode while its author changes the code, in Debian's Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import started

pytest.importorskip("selenium", reason="a browser is driven by it")

from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

CODE = '''
from mcpenv import MCPEnvironment


class Counter(MCPEnvironment):
    """Count."""

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        def add() -> int:
            """Add."""
            self.count += 1
            return self.count
'''


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "counter.py"
    file.write_text(CODE)
    return file


@pytest.fixture
def visitor(code: Path) -> Iterator[Visitor]:
    with started(code.parent, "dev", "counter.py:Counter", "--port", "0") as server, visiting() as visitor:
        visitor.play(server.url())
        for number in (1, 2):
            visitor.call()
            visitor.see(f"{number}. add")
        yield visitor


def test_the_episode_begins_again_with_new_code_and_its_calls_can_be_played_again(visitor: Visitor, code: Path) -> None:
    code.write_text(CODE.replace("+= 1", "+= 10"))
    visitor.read("The code was reloaded")
    visitor.press("Play 2 calls again")
    visitor.see("2. add")
    visitor.see("20")


def test_code_that_does_not_load_is_shown_and_the_episode_goes_on(visitor: Visitor, code: Path) -> None:
    code.write_text(CODE + "\nraise RuntimeError('<b>not yet</b>')\n")
    fault = "//section[@aria-label='Fault of the code']"
    visitor.see("RuntimeError: <b>not yet</b>", fault)
    visitor.see(f"counter.py, line {len(CODE.splitlines()) + 2}", fault)
    visitor.call()
    visitor.see("3. add")
    code.write_text(CODE)
    visitor.read("The code was reloaded")
    assert not visitor.all("#code section")
