"""``mcpenv top``: the figures of a server, once, as JSON, and in a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable

import pytest
from command_line import TIMEOUT_S, Done
from fastmcp import Client

from mcpenv import MCPEnvironment, Mode, ToolCall, ToolOutcome
from mcpenv.cli import execute
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

CONTROL_TOKEN, METRICS_TOKEN = "secret-of-control", "secret-of-metrics"
CONTROL = {"Authorization": f"Bearer {CONTROL_TOKEN}"}
CONFIG = ServerConfig(control_token=CONTROL_TOKEN, metrics_token=METRICS_TOKEN)


class Scored(MCPEnvironment):
    """Earns something."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def add() -> str:
            return "added"

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return 0.5


Cli = Callable[..., Done]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Command lines in this process."""
    monkeypatch.delenv("MCPENV_CONTROL_TOKEN", raising=False)

    def run(*arguments: str) -> Done:
        capfd.readouterr()
        return Done(execute(arguments), *capfd.readouterr())

    return run


@pytest.mark.parametrize("token", [CONTROL_TOKEN, METRICS_TOKEN])
def test_it_shows_load_and_tools_once(cli: Cli, token: str) -> None:
    with serving(Scored, CONFIG) as url, EnvClient(url, headers=CONTROL).sync() as env:
        env.reset()
        env.call_tool("add")
        env.call_tool("\x1b[31m")
        shown = cli("top", url, "--once", "--control-token", token)
        document = json.loads(cli("top", url, "--json", "--control-token", token).out)
    assert shown.status == 0
    assert "Scored simulation" in shown.out
    assert "1 of 1024 sessions, 0 waiting, 0 quarantined" in shown.out
    assert "1 episodes run, 0 ended" in shown.out
    assert any(line.split()[:2] == ["add", "1"] for line in shown.out.splitlines())
    assert any(line.split()[:3] == ["(unknown)", "1", "1"] for line in shown.out.splitlines())
    assert {"labels": {"tool": "add", "status": "completed"}, "value": 1.0} in document["mcpenv_steps_total"]


def test_it_works_in_production(cli: Cli) -> None:
    async def act(url: str) -> None:
        async with Client(f"{url}/mcp") as client:
            await client.call_tool("add")

    with serving(Scored, ServerConfig(mode=Mode.PRODUCTION, control_token=CONTROL_TOKEN)) as url:
        asyncio.run(act(url))
        shown = cli("top", url, "--once", "--control-token", CONTROL_TOKEN)
    assert "Scored production" in shown.out
    assert "add" in shown.out


def test_a_wrong_token_and_a_pipe_are_one_line_each(cli: Cli) -> None:
    with serving(Scored, CONFIG) as url:
        refused = cli("top", url, "--once")
        piped = cli("top", url, "--control-token", CONTROL_TOKEN)
    assert (refused.status, piped.status) == (2, 2)
    assert refused.err.startswith(f"error: {url}: it requires its control token")
    assert piped.err == "error: top needs a terminal; use --once or --json\n"


def test_in_a_terminal_it_is_drawn_again(cli: Cli) -> None:
    with serving(Scored) as url:
        own, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "mcpenv", "top", url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(theirs)
        said = b""
        while b"/s)" not in said:  # rates need a second look
            said += os.read(own, 4096)
        process.terminate()
        process.wait(TIMEOUT_S)
        os.close(own)
    assert b"Scored simulation" in said
