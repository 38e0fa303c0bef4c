"""Signals that end `mcpenv validate` and `mcpenv play`: the environment is closed, and nothing else is said."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from command_line import started, write

WORLD = """
import time

from mcpenv import MCPEnvironment, Task, TaskSet


class World(MCPEnvironment):
    tasks = TaskSet([Task(id=f"t{number}", prompt="Add.") for number in range(50)])

    def __init__(self):
        @self.tool
        def add() -> int:
            return 1

    def reset(self, seed=None, episode_id=None):
        with open("said", "a") as said:
            said.write("begun ")
        time.sleep(0.5)

    def close(self):
        with open("said", "a") as said:
            said.write("closed ")
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("command", [("validate",), ("play", "--task", "t1")], ids=["validate", "play"])
def test_an_ended_command_closes_its_environments_and_is_quiet(
    tmp_path: Path, command: tuple[str, ...], number: signal.Signals
) -> None:
    write(tmp_path, "world", WORLD)
    name, *options = command
    with started(tmp_path, name, "world", *options) as process:
        said = tmp_path / "said"
        while not (said.exists() and "begun" in said.read_text()):
            assert process.popen.poll() is None, process.err
        assert process.end(number) == 130
    assert said.read_text().endswith("closed ")
    assert process.out == [] and "Traceback" not in "".join(process.err)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_play_that_waits_for_a_line_closes_its_environment(tmp_path: Path, number: signal.Signals) -> None:
    write(tmp_path, "world", WORLD)
    with started(tmp_path, "play", "world", "--task", "t1", PYTHONUNBUFFERED="1") as process:
        process.wait_for("Add")
        assert process.end(number) == 130
    assert (tmp_path / "said").read_text().endswith("closed ")
    assert "Traceback" not in "".join(process.err)
