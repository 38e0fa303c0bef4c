"""``mcpenv run --ready-file``: the address of a server for the program that started it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, command_lines, write

from mcpenv.cli.ready_file import ready_file_at, write_ready_file
from mcpenv_client import EnvClient

ENVIRONMENT = "from mcpenv import MCPEnvironment\n\n\nclass Shop(MCPEnvironment):\n    '''Sell.'''\n"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with command_lines(tmp_path, monkeypatch, capfd) as run:
        write(tmp_path, "shop", ENVIRONMENT)
        yield run


@pytest.mark.smoke
@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--workers", "2"], marks=pytest.mark.extension("workers")),
        pytest.param(["--reload"], marks=pytest.mark.extension("reload")),
        pytest.param(
            ["--reload", "--workers", "2"], marks=[pytest.mark.extension("reload"), pytest.mark.extension("workers")]
        ),
    ],
)
def test_the_file_has_the_addresses_of_a_server_as_long_as_that_answers(
    cli: Cli, tmp_path: Path, options: list[str]
) -> None:
    ready = tmp_path / "ready.json"
    ready.write_text("of an earlier server", encoding="utf-8")
    command = [sys.executable, "-m", "mcpenv", "run", "shop", "--port", "0", "--ready-file", str(ready), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            assert any("Ctrl-C" in line for line in process.stdout)
            addresses = json.loads(ready.read_text(encoding="utf-8"))
            assert addresses["mcp_url"] == f"{addresses['url']}/mcp"
            with EnvClient(addresses["url"]).sync() as env:
                env.reset()
        finally:
            process.terminate()
        assert process.wait(60) == 0
    assert not ready.exists()


def test_a_file_that_another_server_has_written_since_stays(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    with ready_file_at(ready):
        write_ready_file(ready, url="http://127.0.0.1:1")
        ready.unlink()  # as another server does at its start
        ready.write_text("of another server", encoding="utf-8")
    assert ready.read_text(encoding="utf-8") == "of another server"
    with ready_file_at(ready), pytest.raises(FileNotFoundError):
        ready.read_text(encoding="utf-8")


def test_a_file_that_cannot_be_written_is_refused_before_the_start(cli: Cli, tmp_path: Path) -> None:
    gone = cli("run", "shop", "--port", "0", "--ready-file", "gone/ready.json")
    assert gone.status == 2 and "the folder does not exist, or cannot be written to" in gone.err
    folder = cli("run", "shop", "--port", "0", "--ready-file", str(tmp_path))
    assert folder.status == 2 and "it is a folder; name a file" in folder.err


@pytest.mark.extension("stdio")
def test_a_server_over_stdio_has_no_address_to_write(cli: Cli) -> None:
    stdio = cli("run", "shop", "--transport", "stdio", "--ready-file", "ready.json")
    assert stdio.status == 2 and "--ready-file needs --transport http" in stdio.err
