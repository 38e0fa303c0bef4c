"""The page that plays an episode while its author changes the code, in Debian's Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import free_port, started

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


def test_calls_are_made_again_in_the_world_of_the_same_seed(code: Path) -> None:
    dice = CODE.replace("self.count = 0", "self.count = self.drawn = 0").replace(
        "return self.count", "return self.drawn"
    )
    dice = dice.replace(
        "from mcpenv import MCPEnvironment", "import random\nfrom mcpenv import MCPEnvironment, Observation"
    )
    dice += """
    def reset(self, seed: int | None = None) -> Observation:
        self.drawn = random.Random(seed).randrange(10**9)
        return Observation(metadata={"prompt": "Remember the number."})
"""
    code.write_text(dice)
    with started(code.parent, "dev", "counter.py:Counter", "--port", "0") as server, visiting() as visitor:
        visitor.play(server.url())
        visitor.read("Remember the number.")
        visitor.call()
        visitor.see("1. add")
        drawn = visitor.find("//section[@aria-label='Result']//pre").text
        assert drawn.isdecimal()
        code.write_text(dice + "\n")
        visitor.read("The code was reloaded")
        visitor.press("Play 1 call again")
        visitor.see("1. add")
        visitor.see(drawn)
        visitor.read("Remember the number.")


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


def test_the_calls_are_made_again_on_a_server_that_was_started_again(code: Path) -> None:
    code.write_text(
        CODE.replace("self.count = 0", "self.count = self.drawn = 0")
        .replace("return self.count", "return self.drawn + self.count")
        .replace("import MCPEnvironment", "import MCPEnvironment, Observation, Task, TaskSet")
        .replace("class Counter", "import random\n\n\nclass Counter")
        + """
    tasks = TaskSet([Task(id="easy", prompt="Do it."), Task(id="hard", prompt="Do more.")])

    def reset(self, seed: int | None = None) -> Observation:
        self.drawn = random.Random(seed).randrange(10**9)
        return Observation(metadata={"prompt": f"Task {self.task and self.task.id}, seed {seed}."})
"""
    )
    server = (code.parent, "run", "counter.py:Counter", "--port", str(free_port()), "--drain-s", "0")
    for task, seed in (("hard", "11"), ("", None)):
        with visiting() as visitor:
            with started(*server, MCPENV_CONTROL_TOKEN="a-token-to-sign-in") as first:
                visitor.open(first.url(), "play")
                visitor.type("Control token", "a-token-to-sign-in")
                visitor.press("Sign in")
                visitor.until(lambda _, visitor=visitor: visitor.field("Task").get_property("value") == "easy")
                visitor.type("Task", task)
                if seed:
                    visitor.type("Seed", seed)
                visitor.press("Start an episode")
                visitor.see("Start")
                visitor.read(f"Task {task or None}, seed {seed or ''}")
                begun = visitor.find("//*[@aria-label='Prompt']").text
                for number in (1, 2):
                    visitor.call()
                    visitor.see(f"{number}. add")
                answer = visitor.find("//section[@aria-label='Result']//pre").text
            visitor.read("Your calls are still here.")
            with started(*server, MCPENV_CONTROL_TOKEN="a-token-to-sign-in") as second:
                second.url()
                visitor.press("Play 2 calls again")
                visitor.see("2. add")
                visitor.see(answer)
                visitor.read(begun)
