"""Each failure of the author's code, in whichever play, is reported with its text, file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, command_lines

FRAME = '''"""An environment with a fault."""

from mcpenv import MCPEnvironment, State, TaskSet


class Faulty(MCPEnvironment):
    """Faulty."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    opened = 0
    resets = calls = 0
    ended = False
    {tasks}

    def __init__(self) -> None:
        @self.tool
        def look(word: str = "x") -> str:
            """Look."""
            self.calls += 1
            {look}
            return word

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.resets += 1
        {reset}

    @property
    def state(self) -> State:
        {state}
        return State()

    def score(self, call, outcome):
        {score}

    def verify(self, evidence) -> float:
        self.ended = True
        {verify}

    def close(self) -> None:
        {close}
'''
TASKS = """tasks = TaskSet([{"id": f"t{n}", "prompt": "Look.",
        "oracle": [{"tool_name": "look", "arguments": {"word": "w"}}]} for n in range(3)])"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Run the command line in a temporary folder."""
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


def write(folder: Path, **parts: str) -> str:
    """Write an environment with a fault, and return the name of its file."""
    usual = dict.fromkeys(("tasks", "look", "reset", "state", "close"), "pass")
    parts = {**usual, "score": "return None", "verify": "return 1.0", **parts}
    (folder / "faulty.py").write_text(FRAME.format(**parts))
    return "faulty.py"


@pytest.mark.parametrize(
    ("method", "body", "part"),
    [
        ("reset", "assert not (seed or 0) % 2, 'no such world'", "contract"),
        ("reset", "assert (seed or 0) % 10 != 7, 'no such world'", "contract"),
        ("reset", "assert not (seed or 0) % 2, 'no such world'", "load"),
        ("reset", "assert seed + 1, 'no seed'", "contract"),  # None in production
        ("reset", "assert self.resets < 3, 'worn out'", "contract"),
        ("reset", "assert not self.ended, 'not tidied up'", "contract"),
        ("state", "assert self.calls == 0, 'no state'", "contract"),
        ("close", "assert self.calls == 0, 'not closed'", "contract"),
        ("score", "return float(outcome.result.text == 'x')", "contract"),  # there is no result of a failed call
        ("verify", "raise LookupError('nothing to verify')", "contract"),
        ("verify", "assert self.calls != 1, 'one call'", "contract"),
        ("verify", "raise LookupError('nothing to verify')", "load"),
    ],
)
def test_a_failure_of_the_authors_code_is_unsound_and_has_its_line(
    method: str, body: str, part: str, tmp_path: Path, cli: Cli
) -> None:
    done = cli("validate", write(tmp_path, **{method: body}), "--only", part)
    assert done.status == 1 and "unsound" in done.out, done.out
    assert re.search(rf"raised \w+: .*\(faulty\.py:\d+ in {method}\)", done.out), done.out
    assert "incident" not in done.out


def test_an_instance_that_fails_only_beside_another_is_found(tmp_path: Path, cli: Cli) -> None:
    opened = "Faulty.opened += 1; assert Faulty.opened < 3, 'the port is taken'"
    name = write(tmp_path, reset=opened, close="Faulty.opened = 0")
    done = cli("validate", name, "--only", "load")
    assert done.status == 1 and re.search(r"the port is taken \(faulty\.py:\d+ in reset\)", done.out), done.out


@pytest.mark.parametrize(
    ("method", "body", "remedy"),
    [
        ("reset", "assert self.task is None or self.task.id != 't1', 'no such shop'", "Correct reset"),
        ("verify", "assert evidence.task is None or evidence.task.id != 't1', 'no such order'", "Correct verify"),
        ("score", "assert self.task is None or self.task.id != 't1', 'no such price'", "Correct score"),
    ],
)
def test_a_failure_in_one_task_names_task_and_line_once_and_does_not_blame_its_oracle(
    method: str, body: str, remedy: str, tmp_path: Path, cli: Cli
) -> None:
    name = write(tmp_path, tasks=TASKS, **{method: body})
    document = json.loads(cli("validate", name, "--only", "tasks", "--json").out)
    found = [each for part in document["parts"] for each in part["findings"] if each["where"] == "t1"]
    (found,) = [each for each in found if each["verdict"] == "failed" and "no such" in each["reason"]]
    assert re.search(rf"{method} raised AssertionError: .*\(faulty\.py:\d+ in {method}\)", found["reason"])
    assert found["remedy"].startswith(remedy) and "incident" not in found["reason"]


def test_resets_of_tasks_are_played_with_other_seeds_too(tmp_path: Path, cli: Cli) -> None:
    name = write(tmp_path, tasks=TASKS, reset="assert seed != 1, 'no such world'")
    done = cli("validate", name, "--only", "tasks")
    assert done.status == 1 and "no such world (faulty.py:" in done.out, done.out


def test_a_tool_that_raises_in_a_play_is_named_with_its_line(tmp_path: Path, cli: Cli) -> None:
    name = write(tmp_path, tasks=TASKS, look="assert word == 'w', 'no such word'", verify="return bool(self.calls)")
    document = json.loads(cli("validate", name, "--only", "tasks", "--json").out)
    tasks = next(part for part in document["parts"] if part["part"] == "tasks")
    (found,) = [each for each in tasks["findings"] if each["check"] == "crashes"]
    assert found["verdict"] == "warning" and found["where"] == "t0, t1, t2"
    assert re.search(r"look raised AssertionError: no such word \(faulty\.py:\d+ in look\)", found["reason"])
    assert "ToolError" in found["remedy"]
