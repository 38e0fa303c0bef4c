"""Secrets of a busy server: no log, record, description or error text has one, at any level and in both formats."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import TIMEOUT_S, Process, started, write
from fastmcp import Client
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from mcpenv.redaction import HIDDEN, MAX_TEXT, Redacting, Secrets, redact, redacted_name
from mcpenv_client import EnvClient

CONTROL, ADA, WRONG = "control-secret-Q7", "ada's=secret/Q8", "wrong-secret-Q9-of-somebody"
API_KEY, PASSWORD = "sk-key-Q10+/=", 'pass"word Q11'
RESUME_ID, RESUME_TOKEN = "chosen-session-id-Q12", "resume-token-secret-Q13"
BEARER = {"Authorization": f"Bearer {CONTROL}"}

WORLD = """
import logging

from pydantic import SecretStr

from mcpenv import MCPEnvironment, Observation


class World(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, api_key: str, login: SecretStr, token_limit: int = 5) -> None:
        self.api_key, self.login, self.limit = api_key, login, token_limit

        @self.tool
        def add(by: int = 1) -> int:
            logging.getLogger("author").warning("with %s and %s", self.api_key, self.login.get_secret_value())
            return by

        @self.tool
        def fail() -> int:
            raise RuntimeError(f"401 for key {self.api_key}")

    def reset(self, seed=None, episode_id=None, **options):
        if options.get("fail"):
            raise RuntimeError(f"no login with {self.login.get_secret_value()}")
        return Observation()
"""


@contextmanager
def busy(folder: Path, *options: str) -> Iterator[tuple[Process, str]]:
    """A server that logs everything, with a secret of each kind."""
    write(folder, "world", WORLD)
    (folder / "control").write_text(CONTROL)
    (folder / "agents").write_text(f"ada={ADA}\n")
    tokens = ("--control-token-file", "control", "--agent-tokens-file", "agents")
    settings = ("--set", f"api_key={API_KEY}", "--set", f"login={PASSWORD}")
    serving = ("--port", "0", "--log-level", "debug", "--record", "records", "--resume-grace-s", "20", "--drain-s", "0")
    with started(folder, "run", "world", *serving, *tokens, *settings, *options) as process:
        yield process, process.url()


def use(url: str) -> tuple[list[str], list[str]]:
    """Use every plane as clients do. Return the secrets that the server made, and what it said about faults."""
    made, said = [], []
    ws = url.replace("http", "ws") + "/ws"
    with EnvClient(url, headers=BEARER, resume=True).sync() as env:
        made.append(env.reset().info["mcp_url"].split("/")[-2])
        said += [str(env.call_tool(name).observation) for name in ("add", "fail", "no_such_tool")]
        for agent_url in (f"{url}/mcp", env.reset().info["mcp_url"]):
            for era in ("legacy", "2026-07-28"):
                made.append(asyncio.run(act(agent_url, era)))
        made.append(env.reset().info["mcp_url"].split("/")[-2])
    resuming = {**BEARER, "Mcpenv-Session-Id": RESUME_ID, "Mcpenv-Session-Token": RESUME_TOKEN}
    for query in ("", "?resume=1"):
        lost = connect(ws + query, additional_headers=resuming).__enter__()
        lost.send('{"type": "reset", "data": {}}')
        reply = json.loads(lost.recv(TIMEOUT_S))
        made.append(reply["data"]["info"]["mcp_url"].split("/")[-2])
        lost.socket.close()
    with (
        pytest.raises(InvalidStatus, match="401"),
        connect(ws, additional_headers={"Authorization": f"Bearer {WRONG}"}),
    ):
        pass
    encoded = base64.urlsafe_b64encode(CONTROL.encode()).decode().rstrip("=")
    with connect(ws, subprotocols=["mcpenv", f"mcpenv.token.{encoded}"]) as browser:  # type: ignore[list-item]
        browser.send('{"type": "reset", "data": {"fail": true}}')
        said.append(str(browser.recv(TIMEOUT_S)))
        browser.send("no json")
        said.append(str(browser.recv(TIMEOUT_S)))
    with httpx.Client(base_url=url, headers=BEARER, timeout=TIMEOUT_S) as http:
        begun = http.post("/reset", json={}).json()
        made.append(begun["session_id"])
        with connect(f"{ws}?session_id={begun['session_id']}", additional_headers=BEARER) as joined:
            joined.send('{"type": "state"}')
            joined.recv(TIMEOUT_S)
        for path in ("/metadata", "/schema", "/openapi.json", "/capacity", "/health", "/ready"):
            said.append(http.get(path).text)
        for token in (WRONG, CONTROL, ADA):
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
            said.append(http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}, headers=headers).text)
            said.append(http.post("/reset", content=b"{", headers=headers).text)
    return made, said


async def act(url: str, era: Any) -> str:
    async with asyncio.timeout(TIMEOUT_S), Client(url, auth=ADA, mode=era) as client:
        await client.call_tool("add", {"by": 2})
        await client.call_tool("fail", raise_on_error=False)
        ids = client.transport.get_session_id()
    return ids or CONTROL


def command_lines(root: int) -> Iterator[str]:
    """The command lines of the processes that the server started, as ``ps`` shows them."""
    for children in Path(f"/proc/{root}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            yield from command_lines(child)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--workers", "2", "--log-format", "json")], ids=["text", "json, workers"])
def test_no_secret_is_in_anything_that_a_busy_server_writes(tmp_path: Path, options: tuple[str, ...]) -> None:
    with busy(tmp_path, *options) as (process, url):
        made, said = use(url)
        titles = list(command_lines(process.popen.pid))
        assert process.end(signal.SIGTERM) == 0
    logged, told = "".join(process.err), "".join(process.out)
    files = (tmp_path / "records").glob("*.jsonl.gz")
    records = "".join(gzip.decompress(file.read_bytes()).decode() for file in files)
    # The server did log all that: the connections with their headers, the author's messages and the tracebacks.
    assert "--workers" in options or re.search(r"authorization", logged, re.IGNORECASE)
    assert HIDDEN in logged
    assert "no login with" in logged
    assert "401 for key" in logged
    assert "author" in logged
    assert not set("╭│╰") & set(logged)  # the boxes of FastMCP's own handlers
    assert '"add"' in records
    known = (CONTROL, ADA, WRONG, API_KEY, PASSWORD, RESUME_TOKEN, *made)
    encoded = [form for each in known for form in forms(each)]
    for where, text in {"log": logged, "output": told, "records": records, "replies": "".join(said)}.items():
        assert not [form for form in encoded if form in text], where
    assert not [form for form in encoded for title in titles if form in title]


def forms(secret: str) -> set[str]:
    """A secret as headers, JSON and reprs have it."""
    encoded = {base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")}
    return {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], *encoded}


@pytest.mark.process
def test_lines_of_json_logs_are_json(tmp_path: Path) -> None:
    with busy(tmp_path, "--log-format", "json") as (process, url):
        httpx.post(f"{url}/reset", json={"fail": True}, headers=BEARER)
        assert process.end(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in process.err]
    assert {"time", "level", "logger", "message"} <= set(lines[0])
    failed = next(line for line in lines if "reset raised" in line["message"])
    assert "Traceback" in failed["exception"]
    assert PASSWORD not in failed["exception"]


@pytest.mark.parametrize(
    "text",
    [
        "< authorization: Bearer {}",
        "< Sec-WebSocket-Protocol: mcpenv, mcpenv.token.{}",
        "headers [(b'host', b'h'), (b'authorization', b'Bearer {}')]",
        "{{'Mcpenv-Session-Token': '{}'}}",
        "GET /episodes/{}/mcp HTTP/1.1",
        '{{"mcp_url": "http://h/episodes/{}/mcp"}}',
        "GET /ws?session_id={}&resume=1 HTTP/1.1",
        "AccessToken(token='{}', client_id='ada')",
        "proxy http://user:{}@proxy.example.com:80/",
        '> TEXT \'{{"type":"fork","data":{{"token":"{}...\' [123 bytes]',
        "Created new transport with session ID: {}",
        "Terminating session: {}",
    ],
)
def test_a_secret_is_found_by_the_place_where_it_stands(text: str) -> None:
    secret = "unknownSecret0123456789"
    assert secret not in redact(text.format(secret))


@pytest.mark.parametrize("text", ["> TEXT ", "eyJ-", "token: ", "/episodes/"])
def test_a_long_text_of_an_agent_is_redacted_at_once_and_cut(text: str) -> None:
    began = time.monotonic()
    redacted = redact("the beginning " + text * 500_000 + "\nand the end")
    assert time.monotonic() - began < 5  # quadratic: 8 s for 8,000 of the first text
    assert len(redacted) < MAX_TEXT + 100
    assert redacted.startswith("the beginning ")
    assert redacted.endswith(" ... and the end")


def test_of_a_secret_at_the_cut_nothing_is_left() -> None:
    secrets = Secrets()
    secrets.add("a-known-secret-Q15")
    for before in range(MAX_TEXT // 2 - 40, MAX_TEXT // 2 + 10):
        for secret in ("a-known-secret-Q15", "Bearer unknownSecret0123456789"):
            text = "x" * (before - 1) + f" {secret} " + "y" * MAX_TEXT
            assert "ecret" not in secrets.redact(text), (before, secret)
            text = "y" * MAX_TEXT + f" {secret} " + "x" * before + "\nz"
            assert not re.search("ecret|012345", secrets.redact(text)), (before, secret)


def test_a_message_that_does_not_fit_its_arguments_fails_no_caller() -> None:
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "%d of %d", ("Bearer abcdefgh",), None)
    assert Redacting().filter(record)
    assert record.getMessage() == f"%d of %d ('Bearer {HIDDEN}',)"


def test_ordinary_messages_stay_as_they_are() -> None:
    text = "worker 1 ended: 3 tokens of 'ada' left, see https://example.com/episodes and key=5, at /tmp/x:7"
    assert redact(text) == text


def test_of_two_secrets_the_longer_is_hidden_whole() -> None:
    secrets = Secrets()
    secrets.add("secret")
    secrets.add("secret-and-more")
    secrets.add("abc")  # too short to be told from ordinary words
    assert secrets.redact("secret-and-more, secret, abc") == f"{HIDDEN}, {HIDDEN}, abc"


def test_tracebacks_are_redacted_for_every_handler() -> None:
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed with %s", ("Bearer abcdefgh",), None)
    try:
        raise ValueError("token=abcdefgh")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    assert Redacting().filter(record)
    assert "abcdefgh" not in logging.Formatter().format(record)


def test_a_long_name_is_cut_for_the_log_and_not_kept() -> None:
    name = "x" * 1_000_000
    before = sys.getrefcount(name)
    assert redacted_name(name) == "x" * 100
    assert sys.getrefcount(name) == before
