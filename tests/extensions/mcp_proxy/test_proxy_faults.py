"""Test what comes of calls whose server fails: each row is one fault, with real processes and a raw HTTP server.

A row says what the agent reads, what the orchestrator sees, and how often the tool ran. Another episode, which has a
process or session of its own, acts before and after the fault and does not notice.
"""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faulty_http import FaultyServer, faulty_server
from proxying import has_ended
from raw_protocol import HANDSHAKE, MODERN

from mcpenv import CallToolAction
from mcpenv.extensions.mcp_proxy import http, stdio
from mcpenv.extensions.mcp_proxy.delivery import DiscoveryFailed
from mcpenv.extensions.mcp_proxy.environment import RETRIES, ProxyEnvironment

FAULTY = str(Path(__file__).parent / "mcp_servers" / "faulty.py")

LOST = {"code": "transport_lost", "stage": "tool", "retryable": True}
TOLD = {"code": "agent_error", "stage": "tool", "retryable": False}
LATE = {"code": "env_error", "stage": "tool", "retryable": True, "limit": "timeout"}
UNUSABLE = {"code": "env_error", "stage": "tool", "retryable": True}
FINE = {"code": "completed", "retryable": False}


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        how: the fault.
        text: a pattern of what the agent reads.
        status: the status that the orchestrator sees.
        runs: the number of times that the tool ran.
        truncated: True if the episode was truncated.
        more: the number of runs if the tool only reads, so that the call may be sent again.
    """

    how: str
    text: str
    status: dict[str, Any]
    runs: int = 1
    truncated: bool = True
    more: int | None = None


def call(env: Any, how: str, tool: str = "act") -> Any:
    return env.step(CallToolAction(tool_name=tool, arguments={"how": how}))


def proxied(**settings: Any) -> Any:
    return ProxyEnvironment.from_config({"mcpServers": {"faulty": settings}})


def check(row: Row, seen: Any) -> None:
    assert re.search(row.text, seen.text if seen.error is None else seen.error.message), seen
    assert seen.info["status"] == row.status
    assert (seen.truncated, seen.terminated) == (row.truncated, False)
    if row.truncated:
        assert seen.info["episode_status"]["code"] == ("truncated" if row.status is LATE else "transport_lost")


# -- over stdio

SECONDS = 1.5
"""The limit of a call that is not answered."""

STDIO = [
    Row("exit", "server 'faulty': it has ended with status 3", LOST),
    Row("close stdout", "server 'faulty': it has ended", LOST),
    Row("own error", "^not today$", TOLD, truncated=False),
    Row("silence", "act: no result within 1.5 s", LATE),
    Row("garbage only", "act: no result within 1.5 s", LATE),
    Row("wrong id", "act: no result within 1.5 s", LATE),
    Row("no object", "act: no result within 1.5 s", LATE),
    Row("wrong shape", "server 'faulty' gave an answer that is no tool result", LOST),
    Row("nan", "has no JSON form", UNUSABLE, truncated=False),
    Row("long", "server 'faulty': it wrote a message of more than 100000 bytes", LOST),
    Row("garbage before", "^did garbage before$", FINE, truncated=False),
    Row("id as text", "^did id as text$", FINE, truncated=False),
    Row("twice", "^did twice$", FINE, truncated=False),
]


@pytest.mark.slow
@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
@pytest.mark.parametrize("row", STDIO, ids=lambda row: row.how)
def test_a_fault_over_stdio(row: Row, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "MAX_LINE", 100_000)
    runs = tmp_path / "runs"
    args = [FAULTY, str(runs), version]
    cls = proxied(command=sys.executable, args=args, tools={"act": {"timeout_s": SECONDS}})
    assert cls.catalog.servers["faulty"]["protocol"] == version
    with cls() as env, cls() as other:
        env.reset()
        other.reset()
        process = call(other, "process").text
        check(row, call(env, row.how))
        assert call(other, "process").text == process
        assert runs.read_text().splitlines().count(row.how) == row.runs
        env.reset()
        assert call(env, "well").text == "did well"


@pytest.mark.slow
@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
def test_a_server_killed_before_the_call_over_stdio(version: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with proxied(command=sys.executable, args=[FAULTY, str(runs), version])() as env:
        env.reset()
        process = int(call(env, "process").text)
        ends = os.pidfd_open(process)
        os.kill(process, 9)
        assert select.select([ends], [], [], 20)[0]
        os.close(ends)
        check(Row("well", "server 'faulty'.* has ended", LOST), call(env, "well"))
        assert "well" not in runs.read_text().splitlines()


@pytest.mark.slow
def test_a_server_that_does_not_start_again_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program, runs = tmp_path / "program", tmp_path / "runs"
    program.symlink_to(sys.executable)
    with proxied(command=str(program), args=[FAULTY, str(runs)], state="none")() as env:
        env.reset()
        program.unlink()
        check(Row("exit", "server 'faulty': it has ended with status 3", LOST), call(env, "exit"))
        program.symlink_to(sys.executable)
        env.reset()
        killed = int(call(env, "process").text)
        os.kill(killed, 9)
        assert has_ended(killed)
        program.unlink()
        check(Row("well", "server 'faulty'.* ended", LOST), call(env, "well"))
    assert "there is no program" in caplog.text


# -- over HTTP


def lost(how: str, text: str) -> Row:
    return Row(how, f"server 'faulty': {text}", LOST, more=1 + RETRIES)


HTTP = [
    lost("cut before", "the connection broke"),
    lost("cut within", "the connection broke within its answer"),
    lost("events end early", "its event stream ended without an answer"),
    lost("events cut", "the connection broke within its answer"),
    lost("events without JSON", "its event stream has what is no message"),
    Row("events", "^did events$", FINE, truncated=False),
    Row("events with an error", "^not today$", TOLD, truncated=False),
    lost("500", "it answered with HTTP status 500"),
    lost("502", "it answered with HTTP status 502"),
    lost("html", "it answered with text/html, which is no MCP"),
    lost("no JSON", "it answered with JSON that is no response to the call"),
    lost("wrong id", "it answered with JSON that is no response to the call"),
    lost("accepted", "it answered with JSON that is no response to the call"),
    Row("own error", "^not today$", TOLD, truncated=False),
    Row("own error with a status", "^not today$", TOLD, truncated=False),
    Row("wrong shape", "server 'faulty' gave an answer that is no tool result", LOST, more=1 + RETRIES),
    Row("nan", "has no JSON form", UNUSABLE, truncated=False),
    lost("long", "its answer has more than 100000 bytes"),
    lost("long events", "its answer has more than 100000 bytes"),
]


@pytest.fixture(params=[HANDSHAKE, MODERN])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    monkeypatch.setattr(http, "MAX_ANSWER", 100_000)
    with faulty_server(request.param) as made:
        yield made


@pytest.mark.parametrize("row", HTTP, ids=lambda row: row.how)
def test_a_fault_over_http(row: Row, server: FaultyServer) -> None:
    cls = proxied(url=server.url)
    assert cls.catalog.servers["faulty"]["protocol"] == server.version
    with cls() as env, cls() as other:
        env.reset()
        other.reset()
        check(row, call(env, row.how))
        assert server.runs == [row.how] * row.runs
        assert call(other, "well").text == "did well"
        env.reset()
        assert call(env, "well").text == "did well"


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in HTTP if row.more], ids=lambda row: row.how)
def test_a_tool_that_only_reads_is_called_again(row: Row, server: FaultyServer) -> None:
    with proxied(url=server.url)() as env:
        env.reset()
        check(row, call(env, row.how, "look"))
        assert server.runs == [row.how] * (row.more or 0)


REFUSALS = [(version, status) for version in (HANDSHAKE, MODERN) for status in (401, 403, 404, 429, 503)]
REFUSALS.remove((HANDSHAKE, 404))  # of a session, this says that it is gone


@pytest.mark.parametrize(("server", "status"), REFUSALS, indirect=["server"])
def test_a_call_that_was_refused_is_sent_again(server: FaultyServer, status: int) -> None:
    with proxied(url=server.url)() as env:
        env.reset()
        server.refusing, server.status = 2, status
        assert call(env, "well").text == "did well"
        server.refusing = RETRIES + 1
        check(Row("well", f"it answered with HTTP status {status}", LOST), call(env, "well"))
        assert server.runs == ["well"]


def test_a_session_that_is_gone_is_a_lost_world() -> None:
    with faulty_server() as server, proxied(url=server.url)() as env:
        env.reset()
        assert call(env, "well").text == "did well"
        server.sessions.clear()
        check(Row("well", "server 'faulty' has forgotten its session", LOST), call(env, "well", "look"))
        assert server.runs == ["well"]
        env.reset()
        assert call(env, "well").text == "did well"


def test_a_session_that_held_no_world_is_opened_again() -> None:
    with faulty_server() as server, proxied(url=server.url, state="none")() as env:
        env.reset()
        server.sessions.clear()
        assert call(env, "well").text == "did well"
        assert server.runs == ["well"]


def test_a_call_that_is_redirected_elsewhere_is_not_delivered(server: FaultyServer) -> None:
    with proxied(url=server.url)() as env:
        env.reset()
        check(Row("elsewhere", "it redirects to http://localhost:9/other", LOST), call(env, "elsewhere"))


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
def test_a_server_that_refuses_connections_ends_no_other_session(version: str) -> None:
    with faulty_server() as other_server, proxied(url=other_server.url)() as other:
        other.reset()
        with faulty_server(version) as server:
            env = proxied(url=server.url)()
            env.reset()
        check(Row("well", "it does not accept connections", LOST), call(env, "well"))
        assert server.runs == []
        assert call(other, "well").text == "did well"
        env.close()


# -- at the start


def test_a_server_that_cannot_start_is_an_error_of_discovery(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryFailed, match="server 'faulty' did not start: there is no program 'no-such-program'"):
        proxied(command="no-such-program")
    with faulty_server() as server:
        url = server.url
    with pytest.raises(DiscoveryFailed, match=r"server 'faulty' \(http.*\) cannot be used: "):
        proxied(url=url)
