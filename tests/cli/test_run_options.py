"""The options of ``mcpenv run``: which settings they come to, what is refused, and what tokens and addresses guard."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import TIMEOUT_S, Process, started, write
from fastmcp import Client
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from mcpenv import Mode
from mcpenv.cli import command_line, execute
from mcpenv.cli.run_options import Addresses, Limits, Sessions, config_from
from mcpenv.server.config import ServerConfig
from mcpenv_client import EnvClient

CONTROL_TOKEN, ADAS_TOKEN, BOBS_TOKEN = "secret-of-control", "secret-of-ada", "secret-of-bob"
SECRETS = (CONTROL_TOKEN, ADAS_TOKEN, BOBS_TOKEN)
CONTROL = {"Authorization": f"Bearer {CONTROL_TOKEN}"}

WORLD = '''
import asyncio
import os
import subprocess

from mcpenv import MCPEnvironment

AT_LOADING = sorted(name for name in os.environ if name.startswith("MCPENV_"))


class World(MCPEnvironment):
    """A small world."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        def add(by: int = 1) -> int:
            self.count += by
            return self.count

        @self.tool(terminal=True)
        def finish() -> str:
            return "the end"

        @self.tool
        def environment() -> str:
            """What the process and the programs that it starts find in their environment."""
            return f"{AT_LOADING} {subprocess.run(['env'], capture_output=True, text=True).stdout}"

        @self.tool
        async def work(folder: str) -> str:
            """Make a file when it begins, and end when there is another."""
            open(os.path.join(folder, "begun"), "w").close()
            while not os.path.exists(os.path.join(folder, "go on")):
                await asyncio.sleep(0.01)
            return "done"

    def score(self, call, outcome):
        return 0.5 if call.name == "add" else None
'''


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MCPENV_MODE", "MCPENV_CONTROL_TOKEN", "MCPENV_AGENT_TOKENS", "MCPENV_AGENT_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def world(tmp_path: Path) -> str:
    return write(tmp_path, "world", WORLD)


@dataclass
class Server:
    """A server in a process of its own."""

    process: Process
    url: str
    control: str

    @property
    def said(self) -> str:
        return "".join([*self.process.out, *self.process.err])


@contextmanager
def served(folder: Path, *options: str, **environ: str) -> Iterator[Server]:
    # A session that a test leaves open does not hold the end up.
    with started(folder, "run", "world", "--port", "0", "--drain-s", "0", *options, **environ) as process:
        process.wait_for("Ctrl-C stops the server")
        url = process.wait_for(r"MCP +(http://[^/\s]+)/")[1]
        control = re.search(r"(?:control|docs) +\w+(://[^/\s]+)/", "".join(process.out))
        yield Server(process, url, url if control is None else f"http{control[1]}")


def secrets_in(folder: Path) -> tuple[str, ...]:
    """Files with all tokens, as options."""
    (folder / "control").write_text(f"{CONTROL_TOKEN}\n")
    (folder / "agents").write_text(f"# who may\n\nada={ADAS_TOKEN}\nbob = {BOBS_TOKEN}\r\n")
    return "--control-token-file", str(folder / "control"), "--agent-tokens-file", str(folder / "agents")


async def call(url: str, name: str, token: str | None = None, era: Any = "auto", **arguments: Any) -> Any:
    async with asyncio.timeout(TIMEOUT_S), Client(url, auth=token, mode=era) as client:
        await client.list_tools()  # else the client does it after the answer, when the server may have ended
        return (await client.call_tool(name, arguments)).data


# -- settings


def parsed(*options: str) -> ServerConfig:
    """The settings that a command line comes to."""
    _, bound, _ = command_line().parse_args(["run", "world", *options], print_error=False, exit_on_error=False)
    given = bound.arguments
    return config_from(
        Mode.SIMULATION,
        given.get("addresses", Addresses()),
        given.get("sessions", Sessions()),
        given.get("limits", Limits()),
    )


OPTIONS: dict[str, tuple[tuple[str, ...], Any]] = {
    "max_concurrent_envs": (("--max-sessions", "7"), 7),
    "step_timeout_s": (("--step-timeout-s", "1.5"), 1.5),
    "session_timeout_s": (("--session-timeout-s", "2.5"), 2.5),
    "queue_timeout_s": (("--queue-timeout-s", "0"), 0.0),
    "resume_grace_s": (("--resume-grace-s", "60"), 60.0),
    "durable": (("--durable", "runs/store?lease_s=5"), "runs/store?lease_s=5"),
    "session_scope": (("--session-scope", "connection"), "connection"),
    "require_handle": (("--require-handle",), True),
    "public_url": (("--public-url", "https://Env.example.com/a/"), "https://Env.example.com/a"),
    "trusted_proxies": (
        ("--trusted-proxies", "10.0.0.1, ::1", "--trusted-proxies", "*,10.1.0.0/16"),
        ("10.0.0.1/32", "::1/128", "*", "10.1.0.0/16"),
    ),
    "max_calls_in_flight": (("--max-calls-in-flight", "1"), 1),
    "max_requests_per_s": (("--max-requests-per-s", "0.5"), 0.5),
    "max_message_bytes": (("--max-message-bytes", "1024"), 1024),
    "ping_interval_s": (("--ping-interval-s", "5"), 5.0),
    "allowed_hosts": (("--allowed-hosts", "A.example,b.example:8443"), ("a.example", "b.example:8443")),
    "allowed_origins": (("--allowed-origins", "https://App.example/"), ("https://app.example",)),
    "frame_ancestors": (("--frame-ancestors", "https://Space.example"), ("https://space.example",)),
    "max_quarantined": (("--max-quarantined", "0"), 0),
    "max_snapshots": (("--max-snapshots", "0"), 0),
    "max_snapshot_bytes": (("--max-snapshot-bytes", "1000"), 1000),
    "drain_s": (("--drain-s", "600"), 600.0),
    "shutdown_timeout_s": (("--shutdown-timeout-s", "0"), 0.0),
    "wires": (("--wire", "nemo-gym", "--wire", "ors"), ("nemo-gym", "ors")),
    "extensions": (("--extension", "one", "--extension", "two"), ("one", "two")),
}


def test_every_setting_has_an_option() -> None:
    elsewhere = {"mode", "control_token", "metrics_token", "record", "console"}  # `mcpenv run` itself has these
    assert {field.name for field in fields(ServerConfig)} == {*OPTIONS, *elsewhere}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_comes_to_its_setting_and_to_no_other(name: str) -> None:
    options, value = OPTIONS[name]
    config, usual = parsed(*options), ServerConfig()
    changed = {each.name for each in fields(config) if getattr(config, each.name) != getattr(usual, each.name)}
    assert getattr(config, name) == value
    # The server answers to the name by which others know it.
    assert changed == ({name, "allowed_hosts"} if name == "public_url" else {name})


def test_without_options_the_settings_are_the_usual_ones() -> None:
    assert parsed() == ServerConfig()


def test_the_public_name_is_one_that_the_server_answers_to() -> None:
    config = parsed("--public-url", "https://env.example.com:8443", "--allowed-hosts", "other.example")
    assert config.allowed_hosts == ("other.example", "env.example.com")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--queue-timeout-s", "-1"), "--queue-timeout-s is -1; it must be a number of seconds, 0 or more"),
        (("--resume-grace-s", "nan"), "--resume-grace-s is nan;"),
        (("--shutdown-timeout-s", "inf"), "--shutdown-timeout-s is inf;"),
        (("--step-timeout-s", "inf"), "--step-timeout-s is inf;"),
        (("--ping-interval-s", "0"), "--ping-interval-s is 0;"),
        (("--max-calls-in-flight", "0"), "--max-calls-in-flight is 0; it must be 1 or more"),
        (("--max-requests-per-s", "0"), "--max-requests-per-s is 0; it must be a number of requests a second above 0"),
        (("--max-message-bytes", "0"), "--max-message-bytes is 0; it must be 1 or more"),
        (("--max-quarantined", "-1"), "--max-quarantined is -1; it must be 0 or more"),
        (("--session-scope", "agent"), 'Invalid value "agent" for --session-scope'),
        (("--public-url", "env.example.com"), "--public-url env.example.com: it must be an http(s):// URL"),
        (("--public-url", "https://env.example.com?a=1"), "--public-url"),
        (("--public-url", "https://user:word@env.example.com"), "--public-url"),
        (("--public-url", "https://env.example.com:99999"), "--public-url"),
        (
            ("--allowed-hosts", "https://env.example.com"),
            "--allowed-hosts https://env.example.com: it must be a host name",
        ),
        (("--allowed-hosts", "*"), "--allowed-hosts *: it must be a host name"),
        (("--allowed-origins", "app.example"), "--allowed-origins app.example"),
        (("--allowed-origins", "https://app.example/a"), "--allowed-origins https://app.example/a: an origin has no"),
        (
            ("--trusted-proxies", "proxy.example"),
            "--trusted-proxies proxy.example: it must be an IP address, a network such as 10.0.0.0/8, or *",
        ),
        (("--trusted-proxies", "10.0.0.1/8"), "--trusted-proxies 10.0.0.1/8: it must be an IP address, a network"),
        (("--control-host", "127.0.0.1"), "--control-host needs --control-port"),
        (("--require-handle", "--mode", "production"), "--require-handle: production mode has no episodes"),
        (("--host", "0.0.0.0"), "host 0.0.0.0 is not loopback, and has no credentials (a control token and agent"),
        (
            ("--host", "0.0.0.0", "--control-token", CONTROL_TOKEN),
            "host 0.0.0.0 is not loopback, and has no credentials (agent",
        ),
        (
            ("--host", "0.0.0.0", "--agent-token", f"ada={ADAS_TOKEN}"),
            "host 0.0.0.0 is not loopback, and has no credentials (a control token): use",
        ),
        (
            ("--control-host", "0.0.0.0", "--control-port", "0"),
            "host 0.0.0.0 is not loopback, and has no credentials (a cont",
        ),
        (
            ("--host", "0.0.0.0", "--control-port", "0", "--insecure"),
            "host 0.0.0.0 is no address that a client can use: with a control plane of its own, mcp_url needs",
        ),
        (("--control-port", "99999"), 'Invalid value "99999" for --control-port. Must be <= 65535.'),
        # Tokens, which no message repeats.
        (("--control-token", "short"), "--control-token needs 8 or more printable ASCII characters"),
        (("--control-token", "with a blank in it"), "--control-token needs 8"),
        (("--control-token", CONTROL_TOKEN, "--control-token-file", "x"), "--control-token and --control-token-file"),
        (("--control-token-file", "nowhere"), "--control-token-file nowhere: No such file or directory"),
        (("--control-token-file", "."), "--control-token-file .: Is a directory"),
        (("--control-token-file", "two"), "--control-token-file two: the token needs 8"),
        (("--control-token-file", "binary"), "--control-token-file binary: it is not UTF-8 text"),
        (("--agent-tokens-file", "empty"), "--agent-tokens-file empty: the file has no token"),
        (("--agent-tokens-file", "two"), "--agent-tokens-file two: entry 1 is not name=token"),
        (("--agent-token", ADAS_TOKEN), "--agent-token: entry 1 is not name=token"),
        (("--agent-token", f"={ADAS_TOKEN}"), "--agent-token: entry 1 is not name=token"),
        (("--agent-token", f"{ADAS_TOKEN}=="), "--agent-token: entry 1: the token needs 8"),
        (
            ("--agent-token", f"ada={ADAS_TOKEN}", "--agent-token", f"ada={BOBS_TOKEN}"),
            "--agent-token: entry 2 has the name of an earlier entry",
        ),
        (
            ("--agent-token", f"ada={ADAS_TOKEN}", "--agent-token", f"bob={ADAS_TOKEN}"),
            "two agents have the same token",
        ),
        (("--agent-jwks-url", "https://issuer.example/keys"), "JSON Web Tokens of agents need all three"),
        (("--agent-scopes", "ada"), "--agent-scopes ada: it must be name=scope,scope"),
        (("--agent-scopes", "ada=write"), "there are scopes of 'ada', but no token"),
        (("--agent-oauth",), "--agent-oauth needs --public-url"),
        (("--agent-oauth", "--public-url", "https://env.example"), "OAuth needs an issuer"),
        (("--agent-algorithm", "HS256"), 'Invalid value "HS256" for --agent-algorithm'),
    ],
)
def test_an_option_that_cannot_be_served_is_one_line_and_status_2(
    world: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two").write_text(f"{CONTROL_TOKEN}\n{ADAS_TOKEN}\n")
    Path("empty").write_text("\n# nobody\n")
    Path("binary").write_bytes(b"\xff\xfe\x00secret")
    assert execute(("run", world, "--port", "0", *options)) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1
    assert not any(secret in err for secret in SECRETS)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("MCPENV_CONTROL_TOKEN", "", "MCPENV_CONTROL_TOKEN needs 8"),
        ("MCPENV_CONTROL_TOKEN", "short", "MCPENV_CONTROL_TOKEN needs 8"),
        ("MCPENV_AGENT_TOKENS", "", "MCPENV_AGENT_TOKENS: entry 1 is not name=token"),
        ("MCPENV_AGENT_TOKENS", f"ada={ADAS_TOKEN},{BOBS_TOKEN}", "MCPENV_AGENT_TOKENS: entry 2 is not name=token"),
    ],
)
def test_a_variable_that_guards_nothing_is_refused(
    world: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, value)
    assert execute(("run", world, "--port", "0")) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"error: {said}")
    assert not any(secret in err for secret in SECRETS)


# -- help


def test_help_fits_a_terminal_and_has_its_options_in_groups(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert execute(("run", "--help")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    titles = [found[1] for line in lines if (found := re.match(r"╭─ (\w+) ─", line))]
    assert titles == ["Arguments", "Parameters", "Addresses", "Credentials", "Sessions", "Limits"]
    credentials = "\n".join(lines).partition("─ Credentials ─")[2].partition("─ Sessions ─")[0]
    assert "(ps)" in credentials
    for (option, *_), _ in OPTIONS.values():
        assert any(option in line for line in lines), option
    for name in ("control-token", "control-token-file", "agent-token", "agent-tokens-file", "agent-jwks-url"):
        assert f"--{name} " in credentials
    assert "MCPENV_CONTROL_TOKEN" in credentials
    assert "MCPENV_AGENT_TOKENS" in credentials


# -- tokens


def options_in(folder: Path, source: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """All tokens by option, by file, or by environment variable."""
    if source == "file":
        return secrets_in(folder), {}
    if source == "variable":
        agents = f"ada={ADAS_TOKEN}, bob={BOBS_TOKEN}"
        return (), {"MCPENV_CONTROL_TOKEN": CONTROL_TOKEN, "MCPENV_AGENT_TOKENS": agents}
    given = ("--control-token", CONTROL_TOKEN, "--agent-token", f"ada={ADAS_TOKEN}", f"--agent-token=bob={BOBS_TOKEN}")
    # Options win over variables.
    return given, {"MCPENV_CONTROL_TOKEN": "another-secret", "MCPENV_AGENT_TOKENS": "ada=another-secret"}


@pytest.mark.slow
@pytest.mark.parametrize("source", ["option", "file", "variable"])
def test_tokens_guard_both_planes_and_are_never_told(tmp_path: Path, world: str, source: str) -> None:
    options, environ = options_in(tmp_path, source)
    with served(tmp_path, *options, "--log-level", "debug", **environ) as server:
        assert httpx.get(f"{server.url}/sessions").status_code == 401
        assert httpx.get(f"{server.url}/sessions", headers={"Authorization": "Bearer wrong-token"}).status_code == 401
        assert httpx.get(f"{server.url}/sessions", headers=CONTROL).status_code == 200
        with pytest.raises(InvalidStatus, match="401"), connect(server.url.replace("http", "ws") + "/ws"):
            pass
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            httpx.post(f"{server.url}/mcp", json={}).raise_for_status()
        mcp_url = httpx.post(f"{server.url}/reset", headers=CONTROL).json()["info"]["mcp_url"]
        for era in ("legacy", "2026-07-28"):
            assert asyncio.run(call(f"{server.url}/mcp", "add", BOBS_TOKEN, era)) == 1 + (era != "legacy")
        assert asyncio.run(call(mcp_url, "add", ADAS_TOKEN)) == 1
        found = asyncio.run(call(mcp_url, "environment", ADAS_TOKEN))
        listed = httpx.get(f"{server.url}/sessions", headers=CONTROL).text
        assert server.process.end(signal.SIGTERM) == 0
    assert "PATH=" in found
    assert "MCPENV_CONTROL_TOKEN" not in found
    assert "MCPENV_AGENT_TOKENS" not in found
    for text in (server.said, found, listed):
        assert not any(secret in text for secret in (*SECRETS, "another-secret"))
    assert "Without a token" not in server.said


@pytest.mark.process
def test_a_token_may_begin_with_a_dash(tmp_path: Path, world: str) -> None:
    with served(tmp_path, "--control-token", "-dashing-secret") as server:
        headers = {"Authorization": "Bearer -dashing-secret"}
        assert httpx.get(f"{server.url}/sessions").status_code == 401
        assert httpx.get(f"{server.url}/sessions", headers=headers).status_code == 200


@pytest.mark.process
def test_agents_and_orchestrators_are_told_that_they_need_tokens(tmp_path: Path, world: str) -> None:
    with served(tmp_path, *secrets_in(tmp_path), HOME=str(tmp_path)) as server:
        text = "".join(server.process.out)
    assert f"  agents   mcpenv connect claude-code {server.url}/mcp --bearer\n" in text
    assert f'EnvClient("{server.url}", token="...").sync()' in text
    assert text.endswith(
        "Agents need a token (MCPENV_AGENT_TOKEN); mcpenv connect --bearer shows where it goes.\n"
        "Ctrl-C stops the server.\n"
    )


@pytest.mark.process
def test_in_production_the_control_socket_comes_with_its_token(tmp_path: Path, world: str) -> None:
    with served(tmp_path, "--mode", "production", *secrets_in(tmp_path)) as server:
        assert re.search(r"control +ws://\S+/ws\n", server.said)
        assert httpx.post(f"{server.url}/reset", headers=CONTROL).status_code == 404
        with connect(server.url.replace("http", "ws") + "/ws", additional_headers=CONTROL) as control:
            control.send('{"type":"state"}')
            assert json.loads(control.recv(TIMEOUT_S))["type"] == "state"


@pytest.mark.slow
@pytest.mark.extension("stdio")
def test_over_stdio_the_environment_has_no_tokens_either(tmp_path: Path, world: str) -> None:
    environ = {**os.environ, "MCPENV_CONTROL_TOKEN": CONTROL_TOKEN, "MCPENV_AGENT_TOKEN": ADAS_TOKEN}
    servers = {"mcpServers": {"world": {"command": "mcpenv", "args": STDIO, "env": environ, "cwd": str(tmp_path)}}}

    async def ask() -> Any:
        async with asyncio.timeout(TIMEOUT_S), Client(servers) as client:
            return (await client.call_tool("environment")).data

    found = asyncio.run(ask())
    assert "PATH=" in found
    assert CONTROL_TOKEN not in found
    # By which a tool could act as somebody else.
    assert ADAS_TOKEN not in found


STDIO = ["run", "world", "--transport", "stdio"]


# -- addresses

AGENT_PLANE = {"/mcp", "/episodes/x/mcp"}
CONTROL_PLANE = {"/reset", "/step", "/state", "/sessions", "/sessions/x", "/capacity"}
DESCRIPTIONS = {"/metadata", "/schema"}
PROBES = {"/health", "/ready"}


def answered(url: str) -> set[str]:
    """The paths for which there is a route. A wrong method, a missing token or a missing session is an answer too."""
    found = set()
    for path in sorted(AGENT_PLANE | CONTROL_PLANE | DESCRIPTIONS | PROBES):
        reply = httpx.get(url + path, headers={"Accept": "application/json"})
        if reply.status_code != 404 or "code" in reply.text:
            found.add(path)
    try:
        with connect(url.replace("http", "ws") + "/ws"):
            found.add("/ws")
    except InvalidStatus:
        pass
    return found


@pytest.mark.slow
def test_at_one_address_both_planes_answer(tmp_path: Path, world: str) -> None:
    with served(tmp_path) as server:
        assert server.control == server.url
        assert answered(server.url) == AGENT_PLANE | CONTROL_PLANE | DESCRIPTIONS | PROBES | {"/ws"}


@pytest.mark.slow
def test_a_control_plane_of_its_own_is_out_of_agents_reach(tmp_path: Path, world: str) -> None:
    with served(tmp_path, "--control-port", "0") as server:
        assert server.control != server.url
        assert answered(server.url) == AGENT_PLANE | PROBES
        assert answered(server.control) == CONTROL_PLANE | DESCRIPTIONS | PROBES | {"/ws", "/mcp"}
        # What is at /mcp there is OpenEnv's JSON-RPC, and no MCP.
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
        initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        refused = httpx.post(server.control + "/mcp", json=initialize, headers=headers).json()
        assert refused["error"]["message"] == "Method not found: initialize"
        # Neither by a path that means another, nor by a Host that names the other address.
        for path in ("//sessions", "/mcp/../sessions", "/mcp/%2e%2e/sessions", "/./sessions", "/sessions/"):
            assert raw(server.url, path).startswith("HTTP/1.1 404"), path
        assert raw(server.url, "/sessions", host=server.control.removeprefix("http://")).startswith("HTTP/1.1 404")
        assert raw(server.control, "/sessions").startswith("HTTP/1.1 200")


def raw(url: str, path: str, host: str | None = None) -> str:
    """The answer to a GET whose path is sent as it is."""
    name, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((name, int(port)), TIMEOUT_S) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host or f'{name}:{port}'}\r\nConnection: close\r\n\r\n".encode()
        )
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


@pytest.mark.slow
@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
def test_an_episode_spans_both_addresses(tmp_path: Path, world: str, era: str) -> None:
    async def episode(server: Server) -> tuple[str, float | None, bool]:
        async with asyncio.timeout(TIMEOUT_S), EnvClient(server.control, headers=CONTROL) as env:
            mcp_url = (await env.reset()).info["mcp_url"]
            waiting = asyncio.ensure_future(env.wait())
            assert await call(mcp_url, "add", ADAS_TOKEN, era, by=2) == 2
            assert await call(mcp_url, "finish", ADAS_TOKEN, era) == "the end"
            last = await waiting
            return mcp_url, last.info["return"], last.terminated

    with served(tmp_path, "--control-port", "0", *secrets_in(tmp_path)) as server:
        mcp_url, total, terminated = asyncio.run(episode(server))
        by_http = httpx.post(f"{server.control}/reset", headers=CONTROL).json()["info"]["mcp_url"]
    assert (total, terminated) == (0.5, True)
    for url in (mcp_url, by_http):
        assert re.fullmatch(rf"{re.escape(server.url)}/episodes/[\w-]{{22}}/mcp", url)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [True, False])
def test_the_public_url_is_what_agents_are_given(tmp_path: Path, world: str, apart: bool) -> None:
    options = ("--public-url", "https://env.example.com/a/", *(("--control-port", "0") if apart else ()))
    with served(tmp_path, *options) as server:
        mcp_url = httpx.post(f"{server.control}/reset").json()["info"]["mcp_url"]
        assert mcp_url.startswith("https://env.example.com/a/episodes/")
        # A proxy passes the name on by which it was asked.
        local = mcp_url.replace("https://env.example.com/a", server.url)
        asked = {"Host": "env.example.com", "Accept": "application/json, text/event-stream"}
        assert httpx.post(local, json=INITIALIZE, headers=asked).status_code == 200
        assert httpx.post(local, json=INITIALIZE, headers=asked | {"Host": "elsewhere.example"}).status_code == 421
    assert "  public   https://env.example.com/a/mcp\n" in server.said
    assert "mcpenv connect claude-code https://env.example.com/a/mcp\n" in server.said


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@pytest.mark.slow
def test_both_addresses_end_together_after_the_step_under_way(tmp_path: Path, world: str) -> None:
    async def step(server: Server) -> str:
        async with asyncio.timeout(TIMEOUT_S), EnvClient(server.control) as env:
            mcp_url = (await env.reset()).info["mcp_url"]
            working = asyncio.ensure_future(call(mcp_url, "work", folder=str(tmp_path)))
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
            server.process.popen.send_signal(signal.SIGTERM)
            async with httpx.AsyncClient() as http:
                # Both still answer, and say that they will not for long.
                for url in (server.url, server.control):
                    while (await http.get(f"{url}/ready")).status_code != 503:
                        await asyncio.sleep(0.01)
            (tmp_path / "go on").touch()
            said: str = await working
            return said

    with served(tmp_path, "--control-port", "0", "--no-access-log") as server:
        assert asyncio.run(step(server)) == "done"
        assert server.process.end() == 0
        for url in (server.url, server.control):
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{url}/health")
    ends = ("SIGTERM: this server takes no new sessions, and ends\n", "this server has ended\n")
    assert [line for line in server.process.err if not line.endswith(ends)] == []


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_the_step(tmp_path: Path, world: str) -> None:
    async def step(server: Server) -> None:
        async with asyncio.timeout(TIMEOUT_S), EnvClient(server.control) as env:
            await env.reset()
            working = asyncio.ensure_future(env.call_tool("work", {"folder": str(tmp_path)}))
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
            server.process.popen.send_signal(signal.SIGINT)
            async with httpx.AsyncClient() as http:
                while (await http.get(f"{server.url}/ready")).status_code != 503:
                    await asyncio.sleep(0.01)
            server.process.popen.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(server.process.end) == 0
            working.cancel()

    with served(tmp_path, "--control-port", "0", "--shutdown-timeout-s", "600") as server:
        asyncio.run(step(server))


@pytest.mark.process
def test_only_episodes_are_served_when_a_handle_is_needed(tmp_path: Path, world: str) -> None:
    with served(tmp_path, "--require-handle") as server:
        assert f"  MCP      {server.url}/episodes/HANDLE/mcp\n" in server.said
        assert "claude mcp add" not in server.said
        mcp_url = httpx.post(f"{server.url}/reset").json()["info"]["mcp_url"]
        assert asyncio.run(call(mcp_url, "add")) == 1
        with pytest.raises(Exception, match="only on an episode's own address"):
            asyncio.run(call(f"{server.url}/mcp", "add"))
