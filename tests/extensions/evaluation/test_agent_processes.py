"""What an agent's program starts ends with it, also in sessions of its own, and also when mcpenv is killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_bench import is_over, until
from evaluate_world import Counting

from mcpenv.extensions.evaluation import ProgramAgent, evaluate
from mcpenv.extensions.evaluation.isolation import Choice

COUNTING = f"{Path(__file__).with_name('evaluate_world.py')}:Counting"

AGENT = """
import os, subprocess, sys, time

mark, then = sys.argv[1:]
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)", mark]
subprocess.Popen(SLEEP)
subprocess.Popen(SLEEP, start_new_session=True)
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(SLEEP[0], SLEEP)
    os._exit(0)
os.waitpid(child, 0)
time.sleep(600 if then == "stays" else 0)
sys.exit(3 if then == "fails" else 0)
"""


@pytest.fixture
def mark() -> Iterator[str]:
    """A word in the command line of all that the program starts."""
    word = f"mark-{secrets.token_hex(8)}"
    yield word
    for process in sleepers(word):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def sleepers(mark: str) -> set[int]:
    """Return the processes that the program has started, and that live."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().split(b"\0")
            if (
                mark.encode() in words
                and b"import time; time.sleep(600)" in words
                and not is_over(int(file.parent.name))
            ):
                found.add(int(file.parent.name))
    return found


def command(folder: Path, mark: str, then: str) -> str:
    program = folder / "agent.py"
    program.write_text(AGENT)
    return f"{sys.executable} {program} {mark} {then}"


@pytest.mark.smoke
@pytest.mark.parametrize("isolation", ["none", "bubblewrap"])
@pytest.mark.parametrize("then", ["exits", "fails", "stays"])
def test_nothing_of_an_agents_program_outlives_it(tmp_path: Path, mark: str, then: str, isolation: Choice) -> None:
    agent = ProgramAgent(command(tmp_path, mark, then), isolation=isolation)
    done = evaluate(Counting, agent, out=tmp_path / "out", split="odd", timeout_s=10 if then == "stays" else 60)
    assert done.results[0].failure == {"exits": None, "fails": "agent_crashed", "stays": "timeout"}[then]
    until(lambda: not sleepers(mark), "the end of all")


@pytest.mark.process
@pytest.mark.parametrize("isolation", ["none", "bubblewrap"])
def test_nothing_of_an_agents_program_outlives_an_evaluation_that_is_killed(
    tmp_path: Path, mark: str, isolation: Choice
) -> None:
    given = ["eval", COUNTING, "--agent", command(tmp_path, mark, "stays"), "--isolation", isolation, "--split", "odd"]
    with subprocess.Popen([sys.executable, "-m", "mcpenv", *given, "--out", str(tmp_path / "out")]) as evaluation:
        try:
            until(lambda: any((tmp_path / "out").glob("agents/*")), "the first episode")
            until(lambda: len(sleepers(mark)) >= 3, "the program's processes")
        finally:
            evaluation.kill()
    until(lambda: not sleepers(mark), "the end of all")
