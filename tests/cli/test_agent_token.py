"""``connect``, ``call`` and ``inspect`` as an agent with a token: where it goes, and that it is never told."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvicorn
from command_line import TIMEOUT_S, Cli, Done, command_lines, write
from fastmcp import Client, FastMCP
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.utilities.tests import run_server_in_process
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mcpenv import MCPEnvironment
from mcpenv.cli.hosts.bearer import TOKEN
from mcpenv.cli.hosts.hosts import HOSTS
from mcpenv.cli.remote import Bearer
from mcpenv.server.security.agent_auth import agent_auth_from
from mcpenv.server.serve import serving

ADAS_TOKEN, WRONG_TOKEN = "secret-of-ada", "secret-of-nobody"
SECRETS = (ADAS_TOKEN, WRONG_TOKEN)
VARIABLE = "MCPENV_AGENT_TOKEN"
WITH_TOKEN = ("--agent-token", ADAS_TOKEN)
WANTED = f"it requires an agent's token (--agent-token-file, or {VARIABLE})\n"
REFUSED = f"it requires an agent's token, and refuses this one (--agent-token-file, or {VARIABLE})\n"
COMMANDS = [("call", "add"), ("inspect",), ("connect", "cursor")]
KEEP_FILES = ["claude-desktop", "cursor", "vscode", "gemini-cli"]

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


# -- call and inspect


def test_a_tool_is_called_with_the_token_however_it_is_given(cli: Cli, url: str, given: tuple[str, ...]) -> None:
    done = cli("call", url, "add", *given)
    assert (done.status, done.err) == (0, "")
    assert int(done.out) >= 1


def test_a_server_is_inspected_with_the_token_however_it_is_given(cli: Cli, url: str, given: tuple[str, ...]) -> None:
    done = cli("inspect", url, "--json", *given)
    assert (done.status, done.err) == (0, "")
    document = json.loads(done.out)
    assert (document["name"], [tool["name"] for tool in document["tools"]]) == ("World", ["add"])


def test_a_token_may_begin_with_a_dash(cli: Cli) -> None:
    with serving(World, auth=agent_auth_from(tokens={"ada": "-dashing-secret"})) as address:
        assert cli("call", address, "add", "--agent-token", "-dashing-secret") == Done(0, "1\n", "")


@pytest.mark.parametrize("command", [("call", "add"), ("call", "add", "--json"), ("inspect",), ("inspect", "--json")])
def test_a_server_that_answers_401_is_one_line_that_says_how_to_give_a_token(
    cli: Cli, url: str, command: tuple[str, ...]
) -> None:
    name, *rest = command
    for address in (url, f"{url}/mcp"):
        for given, said in (((), WANTED), (("--agent-token", WRONG_TOKEN), REFUSED)):
            done = cli(name, address, *rest, *given)
            assert (done.status, done.err) == (2, f"error: {address}: {said}")
            if "--json" in rest:
                assert json.loads(done.out)["error"]["message"] == f"{address}: {said.rstrip()}"
            else:
                assert done.out == ""


@pytest.mark.parametrize("token", [ADAS_TOKEN, WRONG_TOKEN])
def test_not_even_debug_tells_the_token(cli: Cli, url: str, token: str) -> None:
    done = cli("call", url, "add", "--debug", "--agent-token", token)
    assert "HTTP Request" in done.err
    assert ("Traceback" in done.err) is (token == WRONG_TOKEN)


def test_the_password_of_an_address_is_not_told_with_the_refusal(cli: Cli, url: str) -> None:
    done = cli("call", url.replace("http://", "http://user:a-password@"), "add")
    assert done == Done(2, "", f"error: {url}: {WANTED}")


# -- servers of others


class Gate:
    """Lets everybody do some things, and those with the token everything."""

    def __init__(self, app: ASGIApp, methods: tuple[str, ...]) -> None:
        self._app = app
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole request, and pass it on or answer 401."""
        if scope["type"] != "http" or (b"authorization", f"Bearer {ADAS_TOKEN}".encode()) in scope["headers"]:
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if not self._methods or (body and json.loads(body).get("method") in self._methods):
            await Response(status_code=401)(scope, receive, send)
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Any:
            return messages.pop() if messages else await receive()

        await self._app(scope, again, send)


def _serve_gated(host: str, port: int, methods: tuple[str, ...]) -> None:
    server: FastMCP = FastMCP("gated")
    server.tool(lambda: 1, name="add")
    uvicorn.run(Gate(server.http_app(path="/tools"), methods), host=host, port=port, log_level="error")


@pytest.mark.process
@pytest.mark.parametrize(
    ("methods", "inspected"),
    [((), 2), (("tools/list",), 2), (("tools/call",), 0)],
    ids=["everything", "listing", "calling"],
)
def test_any_mcp_server_may_want_a_token_for_any_request(cli: Cli, methods: tuple[str, ...], inspected: int) -> None:
    with run_server_in_process(_serve_gated, methods=methods) as address:
        endpoint = f"{address}/tools"
        assert cli("call", endpoint, "add") == Done(2, "", f"error: {endpoint}: {WANTED}")
        assert cli("inspect", endpoint).status == inspected
        assert cli("call", endpoint, "add", *WITH_TOKEN) == Done(0, "1\n", "")
        assert cli("inspect", endpoint, *WITH_TOKEN).status == 0


@contextmanager
def recording(status: int, location: str = "") -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that gives everybody the same answer, and the headers that it was sent."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *args: Any) -> None:
            """Nothing is logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [302, 307])
def test_a_token_goes_nowhere_else_by_a_redirection(cli: Cli, status: int) -> None:
    with recording(404) as (elsewhere, there), recording(status, f"{elsewhere}/mcp") as (address, here):
        assert cli("call", address, "add", *WITH_TOKEN).status == 2
    assert {headers["authorization"] for headers in here} == {f"Bearer {ADAS_TOKEN}"}
    assert there == []


@pytest.mark.parametrize("command", [("call", "add"), ("inspect",)])
def test_a_server_on_this_machine_is_reached_without_the_proxy(
    cli: Cli, url: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording(502) as (proxy, seen):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert cli(command[0], url, *command[1:], *WITH_TOKEN).status == 0
    assert seen == []


# -- what is given


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--agent-token", "short"), "--agent-token needs 8 or more printable ASCII characters"),
        (("--agent-token", f"{ADAS_TOKEN} too"), "--agent-token needs 8"),
        ((*WITH_TOKEN, "--agent-token-file", "x"), "--agent-token and --agent-token-file: give only one of them"),
        (("--agent-token-file", "nowhere"), "--agent-token-file nowhere: No such file or directory"),
        (("--agent-token-file", "two"), "--agent-token-file two: the token needs 8"),
    ],
)
def test_a_token_that_cannot_be_used_is_one_line_and_status_2(
    cli: Cli, command: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    Path("two").write_text(f"{ADAS_TOKEN}\n{WRONG_TOKEN}\n", encoding="utf-8")
    done = cli(*on(command, "http://127.0.0.1:1"), *options)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {said}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_variable_that_cannot_be_used_is_one_line_and_status_2(
    cli: Cli, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    done = cli(*on(command, "http://127.0.0.1:1"))
    said = f"error: {VARIABLE} needs 8 or more printable ASCII characters without blanks\n"
    assert done == Done(2, "", said)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_environments_code_takes_no_token(cli: Cli, command: tuple[str, ...]) -> None:
    write(Path.cwd(), "world", PRINTS_ITS_ENVIRONMENT)
    said = "--agent-token and --agent-token-file are for a server at a URL; an environment's code requires none"
    for options in (WITH_TOKEN, ("--agent-token-file", "x")):
        assert cli(*on(command, "world"), *options) == Done(2, "", f"error: {said}\n")


def test_the_variable_is_gone_before_an_environments_code_is_loaded(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path.cwd(), "world", PRINTS_ITS_ENVIRONMENT)
    # For code it need not be a token.
    monkeypatch.setenv(VARIABLE, "short")
    done = cli("call", "world", "add")
    assert done.status == 0
    assert '"PATH"' in done.out
    assert VARIABLE not in done.out


def on(command: tuple[str, ...], target: str) -> list[str]:
    """The arguments by which a command is about ``target``."""
    name, *rest = command
    return [name, *rest, target] if name == "connect" else [name, target, *rest]


# -- connect, printing


@pytest.mark.parametrize("key", HOSTS)
def test_what_is_printed_has_a_placeholder(cli: Cli, home: Path, url: str, key: str) -> None:
    done = cli("connect", key, url, *WITH_TOKEN)
    assert (done.status, done.err) == (0, "")
    assert (f"Bearer {TOKEN}" in done.out) is (key != "codex")
    if key == "codex":
        assert f'\nbearer_token_env_var = "{VARIABLE}"\n' in done.out
        assert f"\nCodex stores no token: set {VARIABLE} in the environment in which Codex starts.\n" in done.out
    else:
        assert "\nThe token is not shown; put it in place of TOKEN.\n" in done.out
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("key", HOSTS)
def test_bearer_is_the_same_without_a_token(cli: Cli, url: str, key: str) -> None:
    bare, with_token = cli("connect", key, url, "--bearer"), cli("connect", key, url, *WITH_TOKEN)
    assert bare.status == 0
    put, not_shown = "Put an agent's token in place of TOKEN.", "The token is not shown; put it in place of TOKEN."
    assert bare.out == with_token.out.replace(not_shown, put)
    documents = [json.loads(cli("connect", key, url, *o, "--json").out) for o in (("--bearer",), WITH_TOKEN)]
    assert documents[0] == documents[1]
    assert documents[0]["snippet"] in bare.out


@pytest.mark.parametrize("key", HOSTS)
def test_without_both_nothing_is_said_of_tokens(cli: Cli, url: str, key: str) -> None:
    done = cli("connect", key, url)
    assert done.status == 0
    assert "Bearer" not in done.out
    assert "token" not in done.out.lower()


# -- connect, writing


@pytest.mark.parametrize("key", KEEP_FILES)
def test_what_is_installed_lets_the_agent_in(cli: Cli, home: Path, url: str, key: str) -> None:
    done = cli("connect", key, url, "--write", *WITH_TOKEN)
    assert (done.status, done.err) == (0, "")
    assert "\nThe file contains the token.\n" in done.out
    document = json.loads(cli("connect", key, url, "--json", "--write", *WITH_TOKEN).out)
    assert (document["written"], f"Bearer {TOKEN}" in document["snippet"]) == (False, True)
    entry = json.loads(Path(document["file"]).read_text(encoding="utf-8"))[HOSTS[key].servers_key]["mcpenv"]
    assert asyncio.run(tools_of(*address_of(entry))) == ["add"]


def test_the_token_is_installed_however_it_is_given(cli: Cli, home: Path, url: str, given: tuple[str, ...]) -> None:
    done = cli("connect", "cursor", url, "--write", *given)
    assert (done.status, done.err) == (0, "")
    assert "\nThe file contains the token.\n" in done.out
    file = Path(json.loads(cli("connect", "cursor", url, "--json", "--write", *WITH_TOKEN).out)["file"])
    assert f"Bearer {ADAS_TOKEN}" in file.read_text(encoding="utf-8")


def test_codex_is_told_by_which_variable_it_gets_the_token(cli: Cli, home: Path, url: str) -> None:
    done = cli("connect", "codex", url, "--write", *WITH_TOKEN)
    assert (done.status, done.err) == (0, "")
    assert f"\nCodex stores no token: set {VARIABLE} in the environment in which Codex starts.\n" in done.out
    text = (home / ".codex" / "config.toml").read_text(encoding="utf-8")
    assert ADAS_TOKEN not in text
    entry = {"url": f"{url}/mcp", "required": True, "bearer_token_env_var": VARIABLE}
    assert tomllib.loads(text) == {"mcp_servers": {"mcpenv": entry}}


def address_of(entry: dict[str, Any]) -> tuple[str, str]:
    """Return the address of an entry, and the header that a host sends."""
    if "command" not in entry:
        return entry.get("url") or entry["httpUrl"], entry["headers"]["Authorization"]
    assert entry["args"][:2] == ["-y", "mcp-remote"]
    assert entry["args"][3:] == ["--header", "Authorization:${AUTHORIZATION}"]
    return entry["args"][2], entry["env"]["AUTHORIZATION"]


async def tools_of(address: str, authorization: str) -> list[str]:
    transport = StreamableHttpTransport(address, headers={"Authorization": authorization})
    async with asyncio.timeout(TIMEOUT_S), Client(transport) as client:
        return [tool.name for tool in await client.list_tools()]


@pytest.mark.skipif(os.name != "posix", reason="modes of files mean nothing there")
def test_a_file_that_is_made_for_the_token_is_the_users_alone(cli: Cli, home: Path, url: str) -> None:
    before = os.umask(0)
    try:
        assert cli("connect", "cursor", url, "--write", *WITH_TOKEN).status == 0
    finally:
        os.umask(before)
    file = home / ".cursor" / "mcp.json"
    assert ADAS_TOKEN in file.read_text(encoding="utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.skipif(os.name != "posix", reason="modes of files mean nothing there")
def test_of_a_file_that_others_can_read_that_is_said(cli: Cli, url: str) -> None:
    file = Path("mcp.json")
    file.write_text("{}", encoding="utf-8")
    file.chmod(0o644)
    done = cli("connect", "cursor", url, "--write", "--config", "mcp.json", *WITH_TOKEN)
    assert done.status == 0
    assert "\nThe file contains the token, and other users of this machine may read it.\n" in done.out
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_another_token_replaces_the_entry_only_by_force(cli: Cli, home: Path, url: str) -> None:
    assert cli("connect", "cursor", url, "--write", "--agent-token", WRONG_TOKEN).status == 0
    refused = cli("connect", "cursor", url, "--write", *WITH_TOKEN)
    assert refused.status == 2
    assert "it has another server 'mcpenv'" in refused.err
    assert cli("connect", "cursor", url, "--write", "--force", *WITH_TOKEN).status == 0
    text = (home / ".cursor" / "mcp.json").read_text(encoding="utf-8")
    assert (ADAS_TOKEN in text, WRONG_TOKEN in text) == (True, False)
    assert cli("connect", "cursor", url, "--write", *WITH_TOKEN).out.startswith("Cursor has mcpenv already:")


def test_a_project_file_of_claude_code_has_the_token_where_it_was_asked_for(cli: Cli, url: str) -> None:
    assert cli("connect", "claude-code", url, "--write", "--config", ".mcp.json", *WITH_TOKEN).status == 0
    entry = json.loads(Path(".mcp.json").read_text(encoding="utf-8"))["mcpServers"]["mcpenv"]
    assert asyncio.run(tools_of(*address_of(entry))) == ["add"]


# What the stand-in for Claude Code's command does with its arguments.
KEEPS = """printf '%s\\n' "$@" > log"""
REPEATS = 'echo "not by me: $*" >&2; exit 1'


@pytest.fixture
def claude(request: pytest.FixtureRequest, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "bin" / "claude"
    command.parent.mkdir()
    version = 'if [ "$1" = "--version" ]; then echo "2.0.0 (Claude Code)"; exit 0; fi'
    command.write_text(f"#!/bin/sh\n{version}\n{request.param}\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.smoke
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for claude is a shell script")
@pytest.mark.parametrize("claude", [KEEPS], indirect=True)
@pytest.mark.usefixtures("claude")
def test_claude_code_gets_the_token_by_its_own_command(cli: Cli, url: str) -> None:
    done = cli("connect", "claude-code", url, "--write", *WITH_TOKEN)
    assert (done.status, done.err) == (0, "")
    assert Path("log").read_text(encoding="utf-8").splitlines() == [
        *("mcp", "add", "--transport", "http", "mcpenv", f"{url}/mcp"),
        *("--header", f"Authorization: Bearer {ADAS_TOKEN}"),
    ]


@pytest.mark.smoke
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for claude is a shell script")
@pytest.mark.parametrize("claude", [REPEATS], indirect=True)
@pytest.mark.usefixtures("claude")
def test_what_claude_code_repeats_of_a_token_is_not_told(cli: Cli, url: str) -> None:
    said = f"claude mcp add: not by me: mcp add --transport http mcpenv {url}/mcp --header Authorization: Bearer ..."
    done = cli("connect", "claude-code", url, "--write", *WITH_TOKEN)
    assert done == Done(2, "", f"error: {said}\n")
    assert "Traceback" in cli("connect", "claude-code", url, "--write", "--debug", *WITH_TOKEN).err


# -- connect, what is refused


@pytest.mark.parametrize("key", HOSTS)
def test_to_write_a_token_is_needed(cli: Cli, home: Path, url: str, key: str) -> None:
    said = f"error: --bearer with --write needs the token (--agent-token-file, or {VARIABLE})\n"
    assert cli("connect", key, url, "--write", "--bearer") == Done(2, "", said)
    assert list(home.iterdir()) == []


def test_bearer_is_for_servers_at_a_url(cli: Cli) -> None:
    write(Path.cwd(), "world", PRINTS_ITS_ENVIRONMENT)
    said = "error: --bearer is for a server at a URL; an environment's code requires no token\n"
    assert cli("connect", "cursor", "world", "--bearer") == Done(2, "", said)


@pytest.mark.parametrize("options", [("--write",), ("--config", "x.json", "--write")])
def test_inspector_is_started_by_hand_and_its_command_has_the_placeholder(
    cli: Cli, url: str, options: tuple[str, ...]
) -> None:
    done = cli("connect", "inspector", url, *options, *WITH_TOKEN)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: Inspector has no configuration file; run: npx -y")
    assert done.err.endswith(f"--header 'Authorization: Bearer {TOKEN}'\n")


def test_a_token_is_not_in_the_text_of_what_holds_it() -> None:
    assert ADAS_TOKEN not in repr(Bearer(ADAS_TOKEN))
