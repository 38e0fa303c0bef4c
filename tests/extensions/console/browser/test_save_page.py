"""From play to artefact: the console saves played calls as a task that passes validation, in a real Chromium."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import started

pytest.importorskip("selenium", reason="a browser is driven by it")

from visitor import Visitor, visiting

pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

CODE = '''
from mcpenv import MCPEnvironment, ObjectWorld, TaskSet, ToolError


class Shop(MCPEnvironment):
    """Sell what is in stock."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet.from_jsonl("tasks.jsonl")

    def __init__(self) -> None:
        self.stock = {}
        self.world = ObjectWorld(lambda: {"stock": self.stock})

        @self.tool
        def sell(count: int) -> int:
            """Sell some apples, which must be in stock."""
            if count > self.stock["apples"]:
                raise ToolError("there are not so many")
            self.stock["apples"] -= count
            return self.stock["apples"]

    def reset(self, seed: int | None = None, episode_id: str | None = None, apples: int = 9) -> None:
        """Fill the shop."""
        self.stock = {"apples": apples}
'''
FIRST = {
    "id": "first",
    "prompt": "Sell two apples.",
    "options": {"apples": 7},
    "oracle": [{"tool_name": "sell", "arguments": {"count": 2}}],
    "verifier": {"kind": "expect_exactly", "changes": {"stock/apples": 5}},
}
CARD = "//details[summary[.='Save as a task, a test or a bug']]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "environment.py").write_text(CODE)
    (tmp_path / "tasks.jsonl").write_text(json.dumps(FIRST) + "\n")
    return tmp_path


@pytest.fixture(scope="module")
def browser() -> Iterator[Visitor]:
    with visiting() as visitor:
        visitor.width(1440)
        yield visitor


def sell(visitor: Visitor, count: str, number: int) -> None:
    visitor.type("count", count)
    visitor.call()
    visitor.see(f"{number}. sell")


def test_calls_become_a_task_that_passes_validate(browser: Visitor, folder: Path) -> None:
    with started(folder, "dev", ".", "--port", "0") as server:
        browser.play(server.url())
        browser.read("Sell two apples.")
        sell(browser, "99", 1)  # refused: no part of the solution
        sell(browser, "3", 2)
        browser.unfold("Save as")
        browser.type("Id", "first")
        browser.until(lambda _: browser.field("Prompt").get_property("value") == "Sell two apples.")
        browser.press("Save")
        browser.see("Not saved: the environment has a task 'first' already", CARD)
        browser.type("Id", "three-apples")
        browser.type("Prompt", "Sell three apples.")
        assert browser.serious_findings() == []
        browser.press("Save")
        browser.read("Written: three-apples, tasks.jsonl.")  # also after the reload that the new file causes
        browser.read("The code was reloaded")
        browser.unfold("Begin another episode")
        browser.type("Task", "three-apples")
        browser.press("Start an episode")
        browser.read("Sell three apples.")
    row = json.loads((folder / "tasks.jsonl").read_text().splitlines()[1])
    assert row["oracle"] == [{"tool_name": "sell", "arguments": {"count": 3}}]
    assert row["verifier"] == {"kind": "expect_exactly", "changes": {"stock/apples": 4}}
    assert row["options"] == {"apples": 7} and isinstance(row["seed"], int)
    command = [sys.executable, "-m", "mcpenv", "validate", str(folder), "--only", "tasks", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_elsewhere_the_line_is_offered(browser: Visitor, folder: Path) -> None:
    with started(folder, "run", ".", "--port", "0", "--drain-s", "0") as server:
        browser.play(server.url())
        browser.read("Sell two apples.")
        sell(browser, "3", 1)
        browser.unfold("Save as")
        browser.choose("Kind", "Bug: in bugs.jsonl, which is no set of tasks")
        browser.type("Id", "a-bug")
        browser.type("What should have happened", "Four are left, and it said so.")
        browser.press("Save")
        browser.see("Only mcpenv dev writes and validates it.", CARD)
        row = json.loads(browser.find(f"{CARD}//pre").text)
        assert row["metadata"] == {"expected": "Four are left, and it said so.", "seen": "4"}
        link = browser.find(f"{CARD}//a[.='Download the line']")
        assert link.get_attribute("download") == "a-bug.jsonl"
        assert browser.serious_findings() == []
    assert len((folder / "tasks.jsonl").read_text().splitlines()) == 1
    assert not (folder / "bugs.jsonl").exists()
