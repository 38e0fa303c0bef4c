"""``mcpenv sessions``: the table, the document, the end of a session, and one line for everything that can be wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fcntl import ioctl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from command_line import TIMEOUT_S, Cli, Done, command_lines, free_port
from fastmcp import Client

from mcpenv import MCPEnvironment, Mode, Reward, ToolCall, ToolOutcome
from mcpenv.extensions.sessions.command import _duration
from mcpenv.server.config import ServerConfig
from mcpenv.server.security.agent_auth import agent_auth_from
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

CONTROL_TOKEN, ADAS_TOKEN = "secret-of-control", "secret-of-ada"
CONTROL = {"Authorization": f"Bearer {CONTROL_TOKEN}"}


class World(MCPEnvironment):
    """Counts, and waits."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def add() -> int:
            return 1

        @self.tool(terminal=True)
        def finish() -> str:
            return "the end"

        @self.tool
        async def work() -> None:
            await asyncio.Event().wait()


class Scored(MCPEnvironment):
    """Earns something."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def add() -> str:
            """Add."""
            return "added"

    def score(self, call: ToolCall, outcome: ToolOutcome) -> Reward:
        return Reward(0.5, {"right": 1, "cost": -0.5})


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Command lines in this process."""
    with command_lines(None, monkeypatch, capfd) as run:
        yield run


@pytest.fixture
def url() -> Iterator[str]:
    with serving(World, ServerConfig(max_concurrent_envs=9)) as address:
        yield address


def reset(url: str, **kwargs: Any) -> str:
    session_id: str = httpx.post(f"{url}/reset", **kwargs).raise_for_status().json()["session_id"]
    return session_id


def step(url: str, session_id: str, tool: str = "add") -> None:
    action = {"type": "call_tool", "tool_name": tool}
    httpx.post(f"{url}/step", json={"session_id": session_id, "action": action}).raise_for_status()


def rows(out: str) -> list[list[str]]:
    """The table's cells, without its heading."""
    return [line.split() for line in out.splitlines()[3:]]


# -- the table


def test_a_server_without_sessions_says_how_many_it_takes(cli: Cli, url: str) -> None:
    assert cli("sessions", url) == Done(0, "0 of 9 sessions\n", "")


def test_the_table_has_every_session_and_the_latest_first(cli: Cli, url: str) -> None:
    async def use() -> Done:
        async with asyncio.timeout(TIMEOUT_S), EnvClient(url) as env:
            mcp_url = (await env.reset()).info["mcp_url"]
            async with Client(mcp_url) as agent, Client(f"{url}/mcp", mode="2026-07-28") as anonymous:
                await anonymous.call_tool("add")
                await agent.call_tool("add")
                await agent.call_tool("finish")
                return await asyncio.to_thread(cli, "sessions", url)

    over = reset(url)
    step(url, over)
    done = asyncio.run(use())
    assert (done.status, done.err) == (0, "")
    summary, empty, heading, *_ = done.out.splitlines()
    assert (summary, empty) == ("3 of 9 sessions", "")
    assert heading.split() == ["id", "origin", "state", "steps", "age", "idle", "planes", "busy"]
    table = rows(done.out)
    assert [row[1:4] for row in table] == [
        ["socket", "done", "2"],
        ["service", "running", "1"],
        ["http", "running", "1"],
    ]
    assert [row[6] for row in table] == ["control+agent", "agent", "control"]
    assert table[1][0] == "service"
    assert table[2][0] == over[:13] + "…"
    for row in table:
        assert re.fullmatch(r"\d+s", row[4])
        assert re.fullmatch(r"\d+s", row[5])
    assert max(map(len, done.out.splitlines())) <= 80
    assert "\x1b" not in done.out


def test_what_an_episode_has_earned_is_shown_with_its_parts(cli: Cli) -> None:
    with serving(Scored, ServerConfig(max_concurrent_envs=9)) as url:
        session_id = reset(url)
        step(url, session_id)
        reset(url)
        done = cli("sessions", url)
        table = {row[0]: row[7:] for row in rows(done.out)}  # nothing stands under "busy"
        assert done.out.splitlines()[2].split()[8:] == ["return", "last", "reward"]
        assert table[session_id[:13] + "…"] == ["0.5", "right", "1,", "cost", "-0.5"]
        assert sorted(map(len, table.values())) == [0, 5]


def test_a_session_at_work_is_busy_and_not_idle(cli: Cli, url: str) -> None:
    async def use() -> Done:
        async with asyncio.timeout(TIMEOUT_S), EnvClient(url) as env:
            await env.reset()
            working = asyncio.ensure_future(env.call_tool("work"))
            async with httpx.AsyncClient() as http:
                while not (await http.get(f"{url}/sessions")).json()["sessions"][0]["busy"]:
                    await asyncio.sleep(0.01)
            done = await asyncio.to_thread(cli, "sessions", url)
            working.cancel()
            return done

    (row,) = rows(asyncio.run(use()).out)
    assert row[5:] == ["0s", "control", "yes"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0.9, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (86399, "23h59m"),
        (86400, "1d00h"),
        (400 * 86400 + 7200, "400d02h"),
    ],
)
def test_times_are_in_their_two_largest_units(seconds: float, text: str) -> None:
    assert _duration(seconds) == text


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/mcp", "{ws}", "{ws}/ws", "{ws}/ws/"])
def test_any_address_of_a_server_will_do(cli: Cli, url: str, form: str) -> None:
    assert cli("sessions", form.format(url, ws=url.replace("http", "ws"))).out == "0 of 9 sessions\n"


def test_the_document_is_what_the_server_says(cli: Cli, url: str) -> None:
    session_id = reset(url)
    done = cli("sessions", url, "--json")
    assert (done.status, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["sessions"] == httpx.get(f"{url}/sessions").json()["sessions"]
    assert document["sessions"][0]["session_id"] == session_id
    assert document["capacity"] == httpx.get(f"{url}/capacity").json()


# -- the end of one


def test_a_session_is_ended_by_its_id_or_how_it_begins(cli: Cli, url: str) -> None:
    first, second, third = (reset(url) for _ in range(3))
    assert cli("sessions", url, "--end", first) == Done(0, f"{first} has ended.\n", "")
    assert cli("sessions", url, f"--end={second[:13]}") == Done(0, f"{second} has ended.\n", "")
    assert [session["session_id"] for session in httpx.get(f"{url}/sessions").json()["sessions"]] == [third]
    assert json.loads(cli("sessions", url, "--end", third, "--json").out) == {"session_id": third, "closed": True}
    assert cli("sessions", url).out == "0 of 9 sessions\n"


def test_an_id_that_is_not_there_or_not_the_only_one_ends_nothing(cli: Cli, url: str) -> None:
    async def use() -> tuple[Done, ...]:
        async with asyncio.timeout(TIMEOUT_S):
            async with Client(f"{url}/mcp", mode="legacy") as one, Client(f"{url}/mcp", mode="legacy") as other:
                await one.call_tool("add")
                await other.call_tool("add")
                ends = ("nobody", "", "mcp:")
                return tuple([await asyncio.to_thread(cli, "sessions", url, f"--end={end}") for end in ends])

    nobody, empty, several = asyncio.run(use())
    assert nobody == Done(2, "", f"error: there is no session 'nobody' at {url}\n")
    assert empty == Done(2, "", f"error: there is no session '' at {url}\n")
    assert several.status == 2
    assert several.err.startswith("error: 2 session ids start with 'mcp:': mcp:")
    assert several.err.count("\n") == 1


# -- credentials


@pytest.fixture
def guarded() -> Iterator[str]:
    auth = agent_auth_from(tokens={"ada": ADAS_TOKEN})
    with serving(World, ServerConfig(control_token=CONTROL_TOKEN), auth=auth) as address:
        yield address


def test_the_token_comes_by_option_file_or_variable(
    cli: Cli, guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{CONTROL_TOKEN}\n")
    for options in (("--control-token", CONTROL_TOKEN), ("--control-token-file", str(file))):
        assert cli("sessions", guarded, *options) == Done(0, "0 of 1024 sessions\n", "")
    monkeypatch.setenv("MCPENV_CONTROL_TOKEN", CONTROL_TOKEN)
    assert cli("sessions", guarded).status == 0


def test_without_the_token_nothing_is_told(cli: Cli, guarded: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "mcpenv")  # the server, which warns of refusals, logs to the stderr of this process
    said = f"error: {guarded}: it requires its control token%s (--control-token-file, or MCPENV_CONTROL_TOKEN)\n"
    for options in ((), ("--end", "x")):
        assert cli("sessions", guarded, *options) == Done(2, "", said % "")
    asked = cli("sessions", guarded, "--json")
    assert (asked.status, asked.err) == (2, said % "") and list(json.loads(asked.out)) == ["error"]
    wrong = cli("sessions", guarded, "--control-token", "another-secret")
    assert wrong == Done(2, "", said % ", and refuses this one")


def test_an_agents_session_has_its_name(cli: Cli, guarded: str) -> None:
    async def visit() -> None:
        async with asyncio.timeout(TIMEOUT_S), Client(f"{guarded}/mcp", auth=ADAS_TOKEN) as agent:
            await agent.call_tool("add")

    asyncio.run(visit())
    options = ("--control-token", CONTROL_TOKEN)
    (row,) = rows(cli("sessions", guarded, *options).out)
    assert row[:4] == ["principal:ada", "principal", "running", "1"]
    assert cli("sessions", guarded, *options, "--end", "principal:ada").out == "principal:ada has ended.\n"
    assert cli("sessions", guarded, *options).out == "0 of 1024 sessions\n"


# -- what can be wrong


def test_a_url_where_nobody_listens_is_one_line(cli: Cli) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    done = cli("sessions", address)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: cannot connect to {address}: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sessions",), 'Command "sessions" parameter'),
        (("sessions", "world"), "URL 'world' is not an http(s):// or ws(s):// URL"),
        (("sessions", "http://127.0.0.1:1", "--watch", "--json"), "--watch cannot be combined with --json or --end"),
        (
            ("sessions", "http://127.0.0.1:1", "--watch", "--end", "x"),
            "--watch cannot be combined with --json or --end",
        ),
        (("sessions", "http://127.0.0.1:1", "--control-token", "short"), "--control-token needs 8 or more"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    done = cli(*arguments)
    assert done.status == 2 and bool(done.out) is ("--json" in arguments)
    assert done.err.startswith(f"error: {said}")
    assert done.err.count("\n") == 1


def test_to_watch_a_terminal_is_needed(cli: Cli, url: str) -> None:
    done = cli("sessions", url, "--watch")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: --watch needs a terminal")


def test_a_server_in_production_without_a_control_token_shows_no_sessions(cli: Cli) -> None:
    with serving(World, mode="production") as address:
        done = cli("sessions", address)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {address}: it has no /sessions: in production it needs a control token, or its")


@pytest.mark.parametrize("workers", [1, 2])
def test_in_production_the_control_token_shows_and_ends_sessions(cli: Cli, workers: int) -> None:
    async def act(url: str, address: str) -> Done:
        async with Client(url) as client:
            await client.call_tool("add")
            return await asyncio.to_thread(cli, "sessions", address, "--json", "--control-token", CONTROL_TOKEN)

    config = ServerConfig(mode=Mode.PRODUCTION, control_token=CONTROL_TOKEN)
    with serving(World, config, workers=workers) as address:
        shown = json.loads(asyncio.run(act(f"{address}/mcp", address)).out)
        assert httpx.get(f"{address}/capacity").status_code == 401
        assert httpx.post(f"{address}/sessions", headers=CONTROL).status_code == 405
        (session,) = shown["sessions"]
        ended = cli("sessions", address, "--end", session["session_id"], "--control-token", CONTROL_TOKEN)
    assert (session["mode"], session["origin"], shown["capacity"]["active_sessions"]) == ("production", "service", 1)
    assert session["episode_id"] is None
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b'{"sessions": [{"id": 1}]}', "cannot connect to {url}: its answer about sessions is not that"),
        (200, b"[]", "{url}: it answered /sessions with status 200"),
        (200, b"<html>", "{url}: it answered /sessions with status 200"),
        (302, b"", "{url}: it answered /sessions with status 302"),
        (503, b"later", "{url}: it answered /sessions with status 503"),
        (421, b'{"message": "not by that name"}', "{url}: not by that name"),
    ],
)
def test_somebody_elses_server_is_one_line(cli: Cli, status: int, body: bytes, said: str) -> None:
    with other_server(status, body) as address:
        done = cli("sessions", address)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {said.format(url=address)}")
    assert done.err.count("\n") == 1


@contextmanager
def other_server(status: int, body: bytes) -> Iterator[str]:
    """A server that gives everybody the same answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Nothing is logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_an_id_that_a_terminal_would_obey_is_shown_harmless(cli: Cli) -> None:
    session = {
        "session_id": "principal:\x1b[2J",
        "origin": "principal",
        "state": "running",
        "step_count": 1,
        "environment_type": "World",
        "mode": "simulation",
        "created_at": 0.0,
        "last_activity_at": 0.0,
        "planes": ["agent"],
        "busy": False,
    }
    capacity = {"active_sessions": 1, "max_sessions": 1, "waiting": 2, "quarantined": 3, "ready": False}
    with other_server(200, json.dumps({"sessions": [session], **capacity}).encode()) as address:
        done = cli("sessions", address)
    assert done.status == 0
    assert "\x1b" not in done.out
    assert done.out.startswith("1 of 1 sessions, 2 waiting, 3 quarantined, no new sessions accepted\n")
    assert "principal:\\x1…" in done.out


# -- watching


def without_size(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES")}


class Terminal:
    """``mcpenv sessions --watch`` in a terminal of 80 columns and 24 lines."""

    def __init__(self, *arguments: str, lines: int = 24) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mcpenv", "sessions", *arguments, "--watch"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            # Of the size above: readline, where a test has loaded it, sets another.
            env={**without_size(os.environ), "TERM": "xterm-256color", "NO_COLOR": "1"},
        )
        os.close(slave)
        self._seen = ""

    def wait_for(self, pattern: str) -> None:
        """Read until there is a match in what came since the last one."""
        until = time.monotonic() + TIMEOUT_S
        while (found := re.search(pattern, self._seen)) is None:
            assert time.monotonic() < until, self._seen
            self._seen += self._read()
        self._seen = self._seen[found.end() :]

    def end(self, number: signal.Signals | None = None) -> int:
        """Its exit status, after a signal."""
        if number is not None:
            self.process.send_signal(number)
        while part := self._read():
            self._seen += part
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIMEOUT_S)
        os.close(self._master)

    @property
    def rest(self) -> str:
        return self._seen

    def _read(self) -> str:
        try:
            return os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # nobody has the other end any more
            return ""


@pytest.mark.process
def test_a_watched_table_changes_with_its_sessions_until_ctrl_c(url: str) -> None:
    first = reset(url)
    terminal = Terminal(url)
    try:
        terminal.wait_for(rf"1 of 9 sessions(?s:.)*{first[:13]}…  http +running +0 ")
        step(url, first)
        terminal.wait_for(rf"{first[:13]}…  http +running +1 ")
        second = reset(url)
        terminal.wait_for(rf"2 of 9 sessions(?s:.)*{second[:13]}…(?s:.)*{first[:13]}…")
        assert terminal.end(signal.SIGINT) == 130
        # The terminal is given back as it was.
        assert "\x1b[?1049l" in terminal.rest
        assert "Traceback" not in terminal.rest
    finally:
        terminal.close()


@pytest.mark.process
def test_a_watched_table_is_no_longer_than_the_terminal(url: str) -> None:
    for _ in range(8):
        reset(url)
    terminal = Terminal(url, lines=8)
    try:
        terminal.wait_for(r"8 of 9 sessions\s(?s:.)*and 4 more")
        assert terminal.end(signal.SIGINT) == 130
    finally:
        terminal.close()


@pytest.mark.process
def test_watching_ends_when_the_server_does() -> None:
    with serving(World) as address:
        terminal = Terminal(address)
        terminal.wait_for("0 of 1024 sessions")
    try:
        assert terminal.end() == 2
        assert f"cannot connect to {address}" in terminal.rest.rpartition("\x1b[?1049l")[2]
    finally:
        terminal.close()
