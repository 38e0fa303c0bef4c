"""An agent that searches the machine: what it finds without bubblewrap, and what it no longer finds with it.

The table of docs/explanation/security.md is what these tests print.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

pytestmark = [pytest.mark.world, pytest.mark.timeout(400)]

SEARCHING = Path(__file__).with_name("searching_agent.py")
PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "security.md"
BEGIN, END = "<!-- leaks: begin -->\n", "<!-- leaks: end -->"
TIMEOUT_S = 180.0

ENVIRONMENT = '''
from pathlib import Path

from mcpenv import MCPEnvironment, Reward, TaskSet


class World(MCPEnvironment):
    """A world with answers in its files."""

    tasks = TaskSet.from_path(Path(__file__).with_name("tasks.jsonl"))

    def __init__(self) -> None:
        @self.tool
        def answer(text: str) -> str:
            """Give the answer."""
            return text

    def verify(self, evidence) -> Reward:
        return Reward(0.0, {"REWARD": 0.0})
'''

ROWS = (
    ("own arguments", "its arguments", "", ""),
    ("own variables", "its environment variables", "", ""),
    ("working directory", "its working directory: path, names", "", ""),
    ("own open files", "its open files, in `/proc/self/fd`", "", ""),
    ("mounts", "the list of its mounts", "", "folder, results"),
    ("names of files and folders", "names of all files on the disk", "folder, results, task", "folder, results"),
    (
        "contents of files",
        "contents of all files on the disk",
        "answer, bystander, folder, results, reward, task",
        "bystander",
    ),
    ("history in git", "the git repository of the environment", "answer, folder, reward, task", ""),
    ("arguments of processes", "arguments of other processes", "folder, results", ""),
    ("variables of processes", "environment variables of other processes", "token", ""),
    ("control planes on loopback", "loopback ports, with no token and with tokens found", "control", ""),
)
"""Where the agent searches; how the table calls it; what it finds there without and with bubblewrap.

The mask of a folder is an empty folder, whose name is seen.
"""

WORDS = {
    "answer": "**the answer**",
    "bystander": "a file that is not hidden",
    "control": "**a control plane**",
    "folder": "the environment's folder",
    "results": "the folder of the results",
    "reward": "**earlier rewards**",
    "task": "the task's id",
    "token": "**a control token**",
}


@dataclass(frozen=True)
class Found:
    """What the agent found at each place, and what `mcpenv eval` printed."""

    places: dict[str, list[str]]
    out: str
    err: str
    status: int
    isolation: str
    page: str


class Other(MCPEnvironment):
    """An environment that somebody serves on this machine."""


def canary(kind: str) -> str:
    return f"CANARY-{kind}-{secrets.token_hex(4)}"


@pytest.fixture(scope="module", params=["none", "bubblewrap"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """One sample of a task was played; the agent searches in the second one."""
    # The home folder is visible to agents, and has the environment, its repository and the results.
    home = tmp_path_factory.mktemp("home")
    folder, out = home / "project" / canary("folder"), home / canary("results")
    folder.mkdir(parents=True)
    (home / "bystander.txt").write_text(canary("bystander"))
    task_id, oracle = canary("task"), [{"tool_name": "answer", "arguments": {"text": canary("answer")}}]
    row = {"id": task_id, "prompt": "Give the answer.", "oracle": oracle}
    (folder / "tasks.jsonl").write_text(json.dumps(row))
    (folder / "environment.py").write_text(ENVIRONMENT.replace("REWARD", canary("reward")))
    git = ("git", "-C", str(home / "project"), "-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "Add the world")):
        subprocess.run([*git, *words], check=True)
    token = canary("token")
    with serving(Other, ServerConfig(control_token=token)) as other:
        command = [sys.executable, "-m", "mcpenv", "eval", str(folder), "--out", str(out), "--isolation", request.param]
        command += ["--agent", f"{sys.executable} {SEARCHING}"]
        environment = {**os.environ, "HOME": str(home), "MCPENV_CONTROL_TOKEN": token}
        environment["SEARCHED_PORTS"] = other.rpartition(":")[2]

        def run(k: int, **more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*command, "-k", str(k)],
                env={**environment, **more},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )

        first = run(1, SEARCH_LATER="1")
        assert first.returncode == 1, first.stderr
        second = run(2)
    log = (out / "agents" / f"{task_id}-1.log").read_text()
    summary = json.loads((out / "summary.json").read_text())
    yield Found(
        json.loads(log),
        second.stdout,
        second.stderr,
        second.returncode,
        summary["agent"]["isolation"],
        (out / "report.html").read_text(),
    )


FOUND: dict[str, Found] = {}


def test_the_agent_finds_what_the_table_says(found: Found) -> None:
    isolated = found.isolation == "bubblewrap"
    FOUND[found.isolation] = found
    expected = {place: with_it if isolated else without for place, _, without, with_it in ROWS}
    assert {place: ", ".join(seen) for place, seen in found.places.items() if seen or expected[place]} == {
        place: seen for place, seen in expected.items() if seen
    }


def test_the_report_says_whether_the_agent_was_isolated(found: Found) -> None:
    said = found.isolation == "not isolated"
    assert found.isolation in ("not isolated", "bubblewrap")
    assert re.search(rf"^isolation +{found.isolation}$", found.out, re.MULTILINE)
    assert ("The agent is not isolated: it is switched off." in found.err) is said
    assert ("Not isolated. The agent" in found.page) is said


def test_an_agent_that_calls_no_tool_fails_the_command(found: Found) -> None:
    assert found.status == 1
    assert "error: no episode has a tool call: is the agent connected to the environment?" in found.err


def test_the_table_in_the_docs_is_what_was_found() -> None:
    assert set(FOUND) == {"not isolated", "bubblewrap"}, "runs after the others"
    lines = ["| where the agent looked | not isolated | bubblewrap |", "|---|---|---|"]
    for place, title, *_ in ROWS:
        cells = (", ".join(map(WORDS.__getitem__, FOUND[name].places.get(place, []))) for name in FOUND)
        lines.append(f"| {title} | {' | '.join(cell or 'nothing' for cell in cells)} |")
    table = "\n".join(lines)
    print(table)
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    kept, _, after = rest.partition(END)
    if os.environ.get("MCPENV_WRITE_TABLES"):
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n\n{END}{after}", encoding="utf-8")
    assert kept.strip() == table, "MCPENV_WRITE_TABLES=1 writes it"
