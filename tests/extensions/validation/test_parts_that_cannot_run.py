"""A part that could not run is never called sound: the reason is printed, and the exit status tells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, command_lines

from mcpenv import MCPEnvironment
from mcpenv.extensions.validation.parts import Candidate, interleaved, load
from mcpenv_client.errors import OperationTimeout

FRAME = '''"""A faulty environment."""

import random

from mcpenv import MCPEnvironment, TaskSet


class Faulty(MCPEnvironment):
    """Faulty."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    tasks = TaskSet([{{"id": "one", "prompt": "Look.", "oracle": [{{"tool_name": "look", "arguments": {{}}}}]}}])

    def __init__(self) -> None:
        {construct}

        @self.tool
        def look() -> str:
            """Look."""
            {look}

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        {reset}

    def verify(self, evidence: object) -> float:
        return 1.0
'''


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Run the command line in a temporary folder."""
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        yield run


def write(folder: Path, **parts: str) -> str:
    """Write an environment with one fault, and return the name of its file."""
    parts = {"construct": "pass", "look": 'return "seen"', "reset": "pass", **parts}
    (folder / "faulty.py").write_text(FRAME.format(**parts))
    return "faulty.py"


PLAYED = ("schemas", "tasks", "cheats", "load", "durability")


@pytest.mark.parametrize("part", PLAYED)
def test_a_part_that_needs_a_reset_is_not_judged_if_resets_fail(part: str, tmp_path: Path, cli: Cli) -> None:
    name = write(tmp_path, reset='raise RuntimeError("the service is down")')
    done = cli("validate", name, "--only", part)
    assert done.status == 2
    assert "the service is down (faulty.py:" in done.out and "is sound" not in done.out
    assert done.out.splitlines()[-1].startswith(f"faulty is not judged; could not run: {part}; skipped: contract, ")
    document = json.loads(cli("validate", name, "--only", part, "--json").out)
    assert not document["ok"] and not document["judged"]


def test_nothing_is_judged_if_no_chosen_part_applies(tmp_path: Path, cli: Cli) -> None:
    name = write(tmp_path, reset='raise RuntimeError("the service is down")')
    (tmp_path / name).write_text((tmp_path / name).read_text().replace("    tasks = ", "    examples = "))
    done = cli("validate", name, "--only", "tasks")
    assert done.status == 2
    assert done.out.splitlines()[-1].startswith("faulty is not judged; skipped: contract, ")
    assert done.out.splitlines()[-1].endswith("; not applicable: tasks")


def test_an_environment_is_not_sound_if_some_of_the_chosen_parts_could_not_run(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    write(folder, reset='raise RuntimeError("the service is down")')
    (folder / "faulty.py").rename(folder / "environment.py")
    done = cli("validate", "shop", "--skip", "contract", "--badge", "badge.svg")
    assert done.status == 1 and "not known to be sound, 2 of 8 parts" in (tmp_path / "badge.svg").read_text()
    assert (
        "shop is not known to be sound; 2 warnings; could not run: schemas, tasks, cheats, load, durability; ran"
        in (done.out)
    )


def test_an_instance_that_cannot_be_made_is_the_reason(tmp_path: Path, cli: Cli) -> None:
    done = cli("validate", write(tmp_path, construct='raise RuntimeError("no disk")'), "--only", "load")
    assert done.status == 2
    assert "no disk (faulty.py:" in done.out and "--set" not in done.out  # no setting would help


def test_isolation_that_cannot_be_judged_leaves_load_unknown_unless_the_world_is_live(tmp_path: Path, cli: Cli) -> None:
    name = write(tmp_path, look="return str(random.random())")
    done = cli("validate", name, "--only", "load")
    assert done.status == 1 and "faulty is not known to be sound; ran in part: load" in done.out
    assert "isolation: not judged, because episodes cannot be repeated: two instances with seed 0" in done.out
    assert "If the world cannot be repeated, use --live" in done.out
    assert cli("validate", name, "--only", "load", "--live").status == 0


def test_calls_that_all_failed_measure_nothing(tmp_path: Path, cli: Cli) -> None:
    done = cli("validate", write(tmp_path, look='raise ValueError("no")'), "--only", "load")
    assert "warning  time: no call succeeded, so that no work of a tool was measured" in done.out


def test_sessions_of_slow_resets_are_compared_all_the_same(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "MAKING_S", 0.3)
    monkeypatch.setattr(load, "GROWTH_S", 0.1)
    monkeypatch.setattr(interleaved, "INTERLEAVING_S", 1.0)
    name = write(tmp_path, reset="import time; time.sleep(0.32)")
    judged = json.loads(cli("validate", name, "--only", "load", "--json").out)["parts"][4]
    assert judged["facts"]["sessions"] == 2 and judged["facts"]["step_p50_ms"] > 0
    (time,) = [finding for finding in judged["findings"] if finding["check"] == "time"]
    assert judged["facts"]["interleaved"] >= 1 and time["verdict"] == "ok"


def test_sessions_of_resets_that_take_too_long_are_not_called_isolated(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleaved, "FIRST_PAIR_S", 0.05)
    monkeypatch.setattr(load, "GROWTH_S", 0.1)
    name = write(tmp_path, reset="import time; time.sleep(0.06)")
    judged = json.loads(cli("validate", name, "--only", "load", "--json").out)["parts"][4]
    (time,) = [finding for finding in judged["findings"] if finding["check"] == "time"]
    assert time["reason"] == "sessions with different calls were not compared, so that isolation is not known"
    assert time["remedy"].startswith("Make resets and calls faster")


BUILT = '''"""An environment whose first reset builds something."""

import asyncio

from mcpenv import MCPEnvironment, TaskSet

built = set()


class Built(MCPEnvironment):
    """Built."""

    RESET_TIMEOUT_S = 5.0
    tasks = TaskSet([{"id": name, "prompt": name} for name in ("one", "two")])

    def __init__(self) -> None:
        @self.tool
        def look() -> str:
            """Look."""
            return "seen"

    async def reset(self, seed: int | None = None, episode_id: str | None = None, task: object = None) -> None:
        if task.id not in built:
            await asyncio.sleep(1.5)
        built.add(task.id)

    def verify(self, evidence: object) -> float:
        return 0.0
'''


def test_a_build_at_the_first_reset_of_a_task_counts_against_no_part(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "built.py").write_text(BUILT)
    done = cli("validate", "built.py", "--only", "tasks", "--time-limit", "1.4", "--random-seeds", "0")
    assert done.status == 0, done.out


def test_a_reset_may_take_longer_than_a_step_if_its_class_says_so() -> None:
    class Slow(MCPEnvironment):
        """Slow."""

        async def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
            await asyncio.sleep(0.2)

    class Building(Slow):
        """Slow, and allowed to be."""

        RESET_TIMEOUT_S = 30.0

    for cls, ends in ((Slow, "timeout"), (Building, None)):
        execution = cls()._execution
        execution.user_code.deadline_s = 0.05
        try:
            asyncio.run(execution.reset())
        except OperationTimeout:
            assert ends == "timeout"
        else:
            assert ends is None


def test_a_check_that_several_parts_depend_on_runs_once_and_is_shown() -> None:
    class Empty(MCPEnvironment):
        """Has no tool."""

    made: list[MCPEnvironment] = []

    def make() -> MCPEnvironment:
        made.append(Empty())
        return made[-1]

    candidate, shown = Candidate(make), list[str]()
    candidate.on_check = shown.append
    first = candidate.find("reset")
    instances = len(made)
    assert candidate.find("reset") == first and len(made) == instances and shown == ["reset"]
