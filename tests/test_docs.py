"""docs/ is true: its Python runs, its frames are what a server answers, its commands work, its links lead somewhere."""

from __future__ import annotations

import dataclasses
import functools
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import MCPENV, Forks
from websockets.exceptions import ConnectionClosedOK
from websockets.sync.client import connect

import mcpenv.extensions.evaluation as evaluate_module
from mcpenv.cli import command_line
from mcpenv.cli.commands import names_of
from mcpenv.extensions.evaluation import Failure
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.targets.target import load_target

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))

URL = "http://127.0.0.1:8000"
ANYTHING = "…"
TIMEOUT_S = 60


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    """Return the path of a page within docs/, without its suffix."""
    return page.relative_to(ROOT / "docs").with_suffix("").as_posix()


def section(page: str, heading: str) -> str:
    """Return the part of a page from a heading of the second level to the next one."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


STARTING_PROCESSES = {"how-to/cassettes", "how-to/pools", "how-to/proxy-mcp-servers", "how-to/ship"}
WITH_PYTHON = [
    pytest.param(page, marks=[pytest.mark.process] if name_of(page) in STARTING_PROCESSES else [], id=name_of(page))
    for page in PAGES
    if blocks(page, "python")
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve the echo environment."""
    with serving(load_target(str(ROOT / "envs" / "echo_mcp")).factory) as address:
        yield address


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, url: str, forked: Forks, tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n\n".join(blocks(page, "python")).replace(URL, url), encoding="utf-8")
    # A page that imports from `envs` is for a program at the top of a clone.
    ended = forked.run(program, cwd=tmp_path, path=[ROOT])
    assert ended.returncode == 0, ended.stderr


def test_no_page_installs_mcpenv_from_an_index_that_does_not_have_it() -> None:
    others = [*ROOT.glob("*.md"), *ROOT.glob("*/*/README.md"), *ROOT.glob("examples/*.py")]
    pages = [*PAGES, *(page for page in others if page.name != "CHANGELOG.md")]
    by_name = re.compile(r"""(?<![\w/])mcpenv(-client|-fleet)?(\[[\w,-]+\])?["']?(\s|$)""")
    found = [
        (str(page.relative_to(ROOT)), command)
        for page in pages
        if page.parent.name != "decisions"
        for command in re.findall(r"pip install ([^`\n]*)", page.read_text(encoding="utf-8"))
        if by_name.search(command.partition(" && ")[0])
    ]
    assert not found


def test_readme_links_to_what_a_newcomer_needs() -> None:
    links = re.findall(r"(?<!!)\[[^\]]*\]\([^)]*\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) <= 12, links


def test_the_frames_of_the_wire_page_are_what_a_server_answers(url: str) -> None:
    (conversation,) = blocks(ROOT / "docs" / "reference" / "protocol.md", "text")
    lines = [(line[0], json.loads(line[2:])) for line in conversation.splitlines()]
    assert len(lines) > 10
    with connect(url.replace("http", "ws") + "/ws") as socket:
        for side, frame in lines:
            if side == ">":
                socket.send(json.dumps(frame))
            else:
                assert agrees(json.loads(socket.recv(TIMEOUT_S)), frame)
        with pytest.raises(ConnectionClosedOK):
            socket.recv(TIMEOUT_S)


def agrees(answered: Any, written: Any) -> bool:
    """Return True if an answer is the one on the page, where "…" stands for anything."""
    if written == ANYTHING:
        return True
    if isinstance(written, dict) and isinstance(answered, dict):
        return written.keys() == answered.keys() and all(agrees(answered[key], written[key]) for key in written)
    return bool(answered == written)


@pytest.mark.slow
@pytest.mark.parametrize("command", [line for page in PAGES for b in blocks(page, "bash") for line in b.splitlines()])
def test_a_command_works(command: str, url: str) -> None:
    said, pipe, line = command.replace(URL, url).rpartition(" | ")
    program, *arguments = line.split()
    if program != "mcpenv" or (pipe and not said.startswith("echo ")):
        pytest.fail(f"nobody runs {command!r}")
    ended = subprocess.run(
        [sys.executable, "-m", "mcpenv", *arguments],
        cwd=ROOT,
        input=said.removeprefix("echo "),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


def test_what_pages_link_to_is_there() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))]
    dead = [(name_of(page), link) for page, link in links if "://" not in link and not (page.parent / link).exists()]
    assert links and dead == []


def test_the_first_page_leads_to_every_guide() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs/start.md").read_text(encoding="utf-8")))
    guides = {str(page.relative_to(ROOT / "docs")) for page in PAGES}
    assert {page for page in guides if page.startswith(("how-to/", "tutorials/", "explanation/"))} <= linked


def test_the_modules_and_tests_that_pages_name_exist() -> None:
    assert {name_of(page): missing for page in PAGES if (missing := names_of_nothing(page))} == {}


def names_of_nothing(page: Path) -> set[str]:
    """Return the files, tests and modules that a page names, and that do not exist."""
    code = " ".join(re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")))
    named = set(re.findall(r"[\w./-]+\.py\b", code)) - READERS_FILES
    files = {name for name in named if not any(path.endswith(f"/{name}") for path in python_files())}
    tests = set(re.findall(r"\btest_\w+(?!\.py)\b", code)) - all_tests() - {Path(name).stem for name in named}
    modules = set(re.findall(r"(?<![\w/.])mcpenv(?:_client)?(?:\.\w+)+", code)) - NO_MODULES
    return files | tests | {name for name in modules if not resolves(name)}


ATTRIBUTES = ("end", "episode_id", "plane", "reward", "session_id", "status", "step")
NO_MODULES = {
    "mcpenv.environments",
    "mcpenv.commands",
    "mcpenv.exports",
    "mcpenv.targets",
    "mcpenv.rubrics",
    "mcpenv.verifiers",
    "mcpenv.role",
    "mcpenv.token",
    "mcpenv.yaml",
    "mcpenv.schema.json",
    *(f"mcpenv.{name}" for name in ATTRIBUTES),
}
"""The groups of entry points, a label, a subprotocol, and attributes of spans."""
READERS_FILES = {"FILE.py", "my_agent.py", "package/environment.py"}
"""The files that a reader makes."""


@functools.cache
def python_files() -> tuple[str, ...]:
    """Return the Python files of the repository."""
    folders = (".ci", "benchmarks", "clients", "envs", "examples", "mcpenv", "tests")
    return tuple(
        f"/{file.relative_to(ROOT).as_posix()}" for folder in folders for file in (ROOT / folder).rglob("*.py")
    )


@functools.cache
def all_tests() -> set[str]:
    """Return the tests of the repository."""
    return defined_in((ROOT / "tests").rglob("test_*.py"))


def resolves(name: str) -> bool:
    """Return True if a dotted name is a module or an attribute that can be imported."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def flags_of(command: str, forked: Forks) -> set[str]:
    """Return the flags that a command explains."""
    ended = forked.run(MCPENV, *command.split(), "--help", cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    return set(re.findall(r"^│ (?:\*  |   )?(--[a-z-]+)", ended.stdout, re.MULTILINE))


COMMAND_LINE = "reference/command-line.md"


@pytest.mark.parametrize(
    ("heading", "commands"),
    [
        ("`mcpenv run`", ("run",)),
        ("`mcpenv inspect` and `mcpenv call`", ("inspect", "call")),
        ("`mcpenv connect`", ("connect",)),
        ("`mcpenv eval`", ("eval",)),
        ("`mcpenv eval compare`", ("eval compare",)),
        ("`mcpenv trajectories check`", ("trajectories check",)),
        ("`mcpenv play`", ("play",)),
        ("`mcpenv branch`", ("branch",)),
        ("`mcpenv deploy k8s`", ("deploy k8s",)),
        ("`mcpenv build`", ("build",)),
        ("`mcpenv share push` and `mcpenv share fork`", ("push", "fork")),
    ],
    ids=[
        "run",
        "inspect and call",
        "connect",
        "eval",
        "eval compare",
        "check",
        "play",
        "branch",
        "deploy",
        "build",
        "push and fork",
    ],
)
def test_the_command_line_page_has_the_flags_of_a_command_and_no_others(
    heading: str, commands: tuple[str, ...], forked: Forks
) -> None:
    flags = set().union(*(flags_of(command, forked) for command in commands))
    described = set(re.findall(r"`(--[a-z-]+)[` ]", section(COMMAND_LINE, heading)))
    assert len(flags) > 2 and described == flags


def registered() -> list[str]:
    """Return the names of the commands that a user may give: ``eval``, ``tasks list``."""
    app = command_line()
    groups = {name: app[name] for name in names_of(app, ())}
    inner = [(name, inside) for name, group in groups.items() for inside in names_of(group, (name,))]
    return [*groups, *(" ".join(names) for names in inner)]


def test_the_table_of_commands_has_every_registered_one() -> None:
    page = (ROOT / "docs" / COMMAND_LINE).read_text(encoding="utf-8")
    rows = [line for line in page.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    names = registered()
    assert {"run", "build", "tasks list", "eval compare", "deploy k8s"} <= set(names)
    missing = []
    for name in names:
        group, _, last = name.partition(" ")
        own = [row for row in rows if re.search(rf"`mcpenv {group}\b", row)]
        if not any(re.search(rf"\b{re.escape(last)}\b", row) for row in own):
            missing.append(name)
    assert missing == []


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        ("how-to/connect-agents.md", ("connect",)),
        ("how-to/evaluate.md", ("eval", "eval compare")),
        ("how-to/serve.md", ("run",)),
    ],
    ids=["connect", "eval", "run"],
)
def test_a_guide_names_no_flag_that_its_commands_do_not_have(
    page: str, commands: tuple[str, ...], forked: Forks
) -> None:
    named = set(re.findall(r"`(--[a-z-]+)[` ]", (ROOT / "docs" / page).read_text(encoding="utf-8")))
    assert named <= set().union(*(flags_of(command, forked) for command in commands)) | {"--watch", "--end"}


def test_every_setting_is_on_the_command_line_page() -> None:
    settings = section(COMMAND_LINE, "`ServerConfig`")
    assert [field.name for field in dataclasses.fields(ServerConfig) if f"`{field.name}`" not in settings] == []


def test_the_evaluating_page_has_every_failure_and_the_api_page_every_public_name() -> None:
    page = (ROOT / "docs" / "how-to" / "evaluate.md").read_text(encoding="utf-8")
    assert [failure for failure in Failure if f"| `{failure}` |" not in page] == []
    public = (ROOT / "docs" / "reference" / "api" / "index.md").read_text(encoding="utf-8")
    assert [name for name in evaluate_module.__all__ if f"`{name}`" not in public] == []


def defined_in(files: Iterable[Path]) -> set[str]:
    """Return the tests that files define."""
    texts = [file.read_text(encoding="utf-8") for file in files]
    return {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}


@pytest.mark.parametrize(
    ("page", "proof"),
    [("faults.md", "test_faults.py"), ("attacks.md", "test_attacks.py"), ("cheating.md", "test_cheating.py")],
    ids=["faults", "attacks", "cheating"],
)
def test_every_row_of_a_table_names_its_test_and_every_test_has_a_row(page: str, proof: str) -> None:
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    _, _, tables = text.partition("## Faults" if page == "faults.md" else "## Attacks")
    rows = [line for line in tables.splitlines() if line.startswith("|") and not line.startswith("|---")]
    headings = [
        row for row in rows if row.endswith(("| seen in |", "| test |")) or re.match(r"\| \*\*.* \| \| \|", row)
    ]
    in_rows = [re.findall(r"`(test_\w+)`", row.rsplit("|", 2)[1]) for row in rows if row not in headings]
    assert [row for row in in_rows if len(row) != 1] == []
    named = [name for row in in_rows for name in row]
    files = [*(ROOT / "tests").rglob("test_*.py")]
    assert len(named) == len(set(named))
    assert defined_in(file for file in files if file.name == proof) - set(named) == set()
    assert set(re.findall(r"`(test_\w+)`", text)) <= defined_in(files)
