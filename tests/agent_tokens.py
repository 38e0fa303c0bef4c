"""A server whose agents have tokens, and command lines that use one. Nothing may print a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, Done, command_lines

from mcpenv import MCPEnvironment
from mcpenv.server.security.agent_auth import agent_auth_from
from mcpenv.server.serve import serving

ADAS_TOKEN, WRONG_TOKEN = "secret-of-ada", "secret-of-nobody"
SECRETS = (ADAS_TOKEN, WRONG_TOKEN)
VARIABLE = "MCPENV_AGENT_TOKEN"
WITH_TOKEN = ("--agent-token", ADAS_TOKEN)
WANTED = f"it requires an agent's token (--agent-token-file, or {VARIABLE})\n"
REFUSED = f"it requires an agent's token, and refuses this one (--agent-token-file, or {VARIABLE})\n"

PRINTS_ITS_ENVIRONMENT = """
import os
from mcpenv import MCPEnvironment

AT_LOADING = sorted(os.environ)


class World(MCPEnvironment):
    def __init__(self) -> None:
        self.tool(lambda: AT_LOADING, name="add")
"""


class World(MCPEnvironment):
    """Says who calls."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        def add() -> int:
            self.count += 1
            return self.count


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Command lines in this process, with a working directory and a user's folder of their own; none tells a token."""
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CODEX_HOME", "XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    with command_lines(tmp_path / "work", monkeypatch, capfd) as run:

        def telling_nothing(*arguments: str) -> Done:
            done = run(*arguments)
            assert not [secret for secret in SECRETS if secret in done.out + done.err]
            return done

        yield telling_nothing


@pytest.fixture
def home(cli: Cli, tmp_path: Path) -> Path:
    """The user's folder."""
    return tmp_path / "home"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose agents have tokens."""
    with serving(World, auth=agent_auth_from(tokens={"ada": ADAS_TOKEN})) as address:
        yield address


@pytest.fixture(params=["option", "file", "variable"])
def given(request: pytest.FixtureRequest, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Options by which the token is given, if not by the variable."""
    if request.param == "option":
        # Options win over the variable.
        monkeypatch.setenv(VARIABLE, WRONG_TOKEN)
        return WITH_TOKEN
    if request.param == "file":
        monkeypatch.setenv(VARIABLE, WRONG_TOKEN)
        (tmp_path / "token").write_text(f"{ADAS_TOKEN}\n", encoding="utf-8")
        return "--agent-token-file", str(tmp_path / "token")
    monkeypatch.setenv(VARIABLE, ADAS_TOKEN)
    return ()
