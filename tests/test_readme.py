"""README.md is true: its commands are run, and its Python too.

The configurations of MCP hosts in ``docs/how-to/connect-agents.md`` are those of ``mcpenv connect``.

``.ci/run`` runs the two commands that install something; everything else is run here.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from forked import MCPENV, Ended, Forks
from mcp import Client, StdioServerParameters

from mcpenv.server.serve import serving
from mcpenv.targets.target import load_target

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOSTS_PAGE = (ROOT / "docs" / "how-to" / "connect-agents.md").read_text(encoding="utf-8")
sys.path.insert(0, str(ROOT / "examples"))
from serving import served  # noqa: E402

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


Run = Callable[[str, Path], Ended]


@pytest.fixture(scope="module")
def run(forked: Forks) -> Run:
    """Run a command line of ``mcpenv`` in a folder."""

    def run_command(command: str, cwd: Path) -> Ended:
        program, *arguments = shlex.split(command)
        assert program == "mcpenv"
        return forked.run(MCPENV, *arguments, cwd=cwd)

    return run_command


@pytest.fixture(scope="module")
def snippets(run: Run) -> dict[str, str]:
    """The output of ``mcpenv connect HOST`` for the echo server at its usual address, by host."""
    found = {}
    for host in HOSTS:
        ended = run(f"mcpenv connect {host} {URL} --name echo_mcp --json", ROOT)
        assert ended.returncode == 0, ended.stderr
        found[host] = json.loads(ended.stdout)["snippet"].strip()
    return found


@pytest.fixture(scope="module")
def guess_number(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the README's environment as the README says, and return its folder."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "guess_number.py").write_text(ENVIRONMENT, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def guess_number_url(guess_number: Path) -> Iterator[str]:
    """Serve that environment."""
    with serving(load_target(str(guess_number / "guess_number.py")).factory) as url:
        yield url


@pytest.fixture(scope="module")
def echo_url() -> Iterator[str]:
    """Serve the echo environment."""
    with serving(load_target(str(ROOT / "envs" / "echo_mcp")).factory) as url:
        yield url


def test_the_commands_that_install_are_there_once_and_ci_takes_them_from_here() -> None:
    assert [command for command in COMMANDS if command.startswith("pip")] == list(RUN_BY_CI)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for begin, end in (command.split(" && ") for command in RUN_BY_CI):
        assert README.count(f"{begin} && {end}") == 1
    assert "readme_command 'mcpenv run'" in ci and "readme_command 'pytest'" in ci


def test_every_command_is_of_a_kind_that_is_run_somewhere(snippets: dict[str, str]) -> None:
    rest = [command for command in COMMANDS if not command.startswith(("pip install ", "mcpenv "))]
    assert rest == []
    by_hand = [line for block in OF_HOSTS if block.language == "sh" for line in block.text.splitlines()]
    assert sorted(by_hand) == sorted([snippets["claude-code"], snippets["inspector"]])


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("mcpenv ") and " run " not in line])
def test_a_mcpenv_command_works(command: str, guess_number: Path, echo_url: str, run: Run) -> None:
    cwd = guess_number if "guess_number" in command else ROOT
    ended = run(command.replace(URL, echo_url), cwd)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


@pytest.mark.smoke
@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("mcpenv run ")])
def test_a_server_command_serves(command: str, guess_number: Path, run: Run) -> None:
    target, *options = shlex.split(command)[2:]
    with served(guess_number / target, *options) as url:
        assert run(f"mcpenv call {url} guess number=0", ROOT).stdout == "higher\n"


def test_the_environment_has_some_thirty_lines_and_is_that_of_the_examples() -> None:
    assert len([line for line in ENVIRONMENT.splitlines() if line.strip()]) <= 30
    assert ENVIRONMENT in (ROOT / "examples" / "write_an_environment.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", range(len(USES)))
def test_python_prints_what_its_comments_say(
    number: int, guess_number: Path, guess_number_url: str, forked: Forks, tmp_path: Path
) -> None:
    code = USES[number].replace(URL, guess_number_url)
    cwd = ROOT if "envs/" in code else guess_number
    (tmp_path / "use.py").write_text(code, encoding="utf-8")
    ended = forked.run(tmp_path / "use.py", cwd=cwd, path=[cwd])
    assert ended.returncode == 0, ended.stderr
    promised = re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert promised and ended.stdout.splitlines() == promised


def test_the_configurations_of_hosts_are_those_of_connect(snippets: dict[str, str]) -> None:
    of_page = [block.text.strip() for block in OF_HOSTS]
    assert [host for host, snippet in snippets.items() if snippet not in of_page] == []


def test_every_configuration_is_some_hosts_or_the_stdio_entry(snippets: dict[str, str]) -> None:
    configurations = [block.text.strip() for block in OF_HOSTS if block.language in ("json", "toml")]
    known = set(snippets.values()) | {STDIO_ENTRY.strip()}
    assert len(configurations) > 4 and set(configurations) <= known


@pytest.mark.smoke
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
