"""README.md is true: its commands are run, and its Python too.

The configurations of MCP hosts in ``docs/how-to/connect-agents.md`` are those of ``mcpenv connect``.

``.ci/run`` runs the two commands that install something; everything else is run here.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from mcp import Client, StdioServerParameters

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOSTS_PAGE = (ROOT / "docs" / "how-to" / "connect-agents.md").read_text(encoding="utf-8")
sys.path.insert(0, str(ROOT / "examples"))
from serving import ECHO_MCP, served  # noqa: E402

URL = "http://127.0.0.1:8000"
RUN_BY_CI = (
    "pip install ./clients/python . && mcpenv run envs/echo_mcp",
    'pip install ./clients/python ".[test]" && pytest -n auto',
)
HOSTS = ("claude-code", "claude-desktop", "codex", "cursor", "vscode", "inspector")
TIMEOUT_S = 60


class Block(NamedTuple):
    """The fenced block of a page."""

    language: str
    text: str


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


BLOCKS = blocks_of(README)
OF_HOSTS = blocks_of(HOSTS_PAGE)
COMMANDS = [line for block in BLOCKS if block.language == "bash" for line in block.text.splitlines()]
PYTHON = [block.text for block in BLOCKS if block.language == "python"]
ENVIRONMENT, *USES = PYTHON
STDIO_ENTRY = next(block.text for block in OF_HOSTS if block.language == "json" and block.text.startswith('{"command"'))


def run(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the README with this Python environment's programs."""
    return subprocess.run(
        shlex.split(command),
        cwd=cwd,
        env={**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@functools.cache
def snippet(host: str) -> str:
    """Return the output of ``mcpenv connect HOST`` for the echo server at its usual address."""
    ended = run(f"mcpenv connect {host} {URL} --name echo_mcp --json", ROOT)
    assert ended.returncode == 0, ended.stderr
    said: str = json.loads(ended.stdout)["snippet"]
    return said.strip()


@pytest.fixture(scope="module")
def guess_number(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the README's environment as the README says, and return its folder."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "guess_number.py").write_text(ENVIRONMENT, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def guess_number_url(guess_number: Path) -> Iterator[str]:
    """Serve that environment."""
    with served(guess_number / "guess_number.py") as url:
        yield url


@pytest.fixture(scope="module")
def echo_url() -> Iterator[str]:
    """Serve the echo environment."""
    with served(ECHO_MCP) as url:
        yield url


def test_the_commands_that_install_are_there_once_and_ci_takes_them_from_here() -> None:
    assert [command for command in COMMANDS if command.startswith("pip")] == list(RUN_BY_CI)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for begin, end in (command.split(" && ") for command in RUN_BY_CI):
        assert README.count(f"{begin} && {end}") == 1
    assert "readme_command 'mcpenv run'" in ci and "readme_command 'pytest'" in ci


def test_every_command_is_of_a_kind_that_is_run_somewhere() -> None:
    rest = [command for command in COMMANDS if not command.startswith(("pip install ", "mcpenv "))]
    assert rest == []
    by_hand = [line for block in OF_HOSTS if block.language == "sh" for line in block.text.splitlines()]
    assert sorted(by_hand) == sorted([snippet("claude-code"), snippet("inspector")])


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("mcpenv ") and " run " not in line])
def test_a_mcpenv_command_works(command: str, guess_number: Path, echo_url: str) -> None:
    cwd = guess_number if "guess_number" in command else ROOT
    ended = run(command.replace(URL, echo_url), cwd)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("mcpenv run ")])
def test_a_server_command_serves(command: str, guess_number: Path) -> None:
    target, *options = shlex.split(command)[2:]
    with served(guess_number / target, *options) as url:
        assert run(f"mcpenv call {url} guess number=0", ROOT).stdout == "higher\n"


def test_the_environment_has_some_thirty_lines_and_is_that_of_the_examples() -> None:
    assert len([line for line in ENVIRONMENT.splitlines() if line.strip()]) <= 30
    assert ENVIRONMENT in (ROOT / "examples" / "write_an_environment.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", range(len(USES)))
def test_python_prints_what_its_comments_say(number: int, guess_number: Path, guess_number_url: str) -> None:
    code = USES[number].replace(URL, guess_number_url)
    cwd = ROOT if "envs/" in code else guess_number
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    promised = re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert promised and ended.stdout.splitlines() == promised


@pytest.mark.parametrize("host", HOSTS)
def test_a_hosts_configuration_is_that_of_connect(host: str) -> None:
    assert snippet(host) in [block.text.strip() for block in OF_HOSTS]


def test_every_configuration_is_some_hosts_or_the_stdio_entry() -> None:
    configurations = [block.text.strip() for block in OF_HOSTS if block.language in ("json", "toml")]
    known = {snippet(host) for host in HOSTS} | {STDIO_ENTRY.strip()}
    assert len(configurations) > 4 and set(configurations) <= known


def test_the_stdio_entry_starts_an_mcp_server(tmp_path: Path) -> None:
    entry = json.loads(STDIO_ENTRY)
    command = str(Path(sys.executable).with_name(entry["command"]))

    async def tools() -> list[str]:
        server = StdioServerParameters(command=command, args=entry["args"], cwd=tmp_path)
        async with Client(server, read_timeout_seconds=TIMEOUT_S) as client:
            return [tool.name for tool in (await client.list_tools()).tools]

    assert asyncio.run(tools()) == ["echo_message", "echo_with_length", "statistics"]


def test_what_the_readme_links_to_is_there() -> None:
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link}
    assert links and [link for link in sorted(links) if not (ROOT / link).exists()] == []
