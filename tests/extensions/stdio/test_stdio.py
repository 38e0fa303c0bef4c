"""MCP over stdin and stdout: nothing else is on stdout, and every request is answered."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpenv.extensions.stdio.serving import refusal_of

TIMEOUT_S = 60.0

CHATTY = '''
import atexit
import os
import subprocess
import sys
import threading
from contextlib import asynccontextmanager

from mcpenv import MCPEnvironment

print("import")
os.system("echo a child of the import; cat")
atexit.register(print, "exit", flush=True)
atexit.register(os.write, 1, b"raw at exit")
threading.Thread(target=lambda: [print("thread", flush=True) for _ in range(100)]).start()


class Chatty(MCPEnvironment):
    """It prints."""

    @classmethod
    @asynccontextmanager
    async def lifespan(cls):
        print("lifespan begins", flush=True)
        sys.__stdout__.write("by the first stdout")
        yield None
        print("lifespan ends", flush=True)

    def __init__(self):
        os.write(1, b"raw")
        os.system("echo a child of the constructor; cat")

        @self.tool
        def speak() -> str:
            print("tool", flush=True)
            subprocess.run([sys.executable, "-c", "print('child'); print(input())"])
            return "spoken"

    def reset(self, seed=None, episode_id=None):
        print("reset", flush=True)

    def close(self):
        print("close", flush=True)
        os.system("echo a child of close; cat")
'''
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


def request(id: int, method: str, params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def serve(folder: Path) -> subprocess.Popen[str]:
    (folder / "environment.py").write_text(CHATTY)
    return subprocess.Popen(
        [sys.executable, "-m", "mcpenv", "run", str(folder), "--transport", "stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )


def begin(server: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Shake hands and call a tool; return the lines of the server until the tool is answered."""
    assert server.stdin is not None and server.stdout is not None
    for line in (
        request(1, "initialize", HELLO),
        '{"jsonrpc": "2.0", "method": "notifications/initialized"}',
        request(2, "tools/call", {"name": "speak", "arguments": {}}),
    ):
        server.stdin.write(line + "\n")
    server.stdin.flush()
    answers: list[Any] = []
    while not answers or answers[-1].get("id") != 2:
        answers.append(json.loads(server.stdout.readline()))
    return answers


@pytest.mark.process
@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_but_mcp_is_on_stdout_from_the_first_byte_to_the_last(
    tmp_path: Path, number: signal.Signals | None
) -> None:
    with serve(tmp_path) as server:
        answers = begin(server)
        if number is None:
            rest, _ = server.communicate(timeout=TIMEOUT_S)
        else:
            server.send_signal(number)
            assert server.wait(TIMEOUT_S) == 0
            assert server.stdout is not None
            rest = server.stdout.read()
    assert rest == ""
    assert server.returncode == 0
    assert answers[-1]["result"]["content"][0]["text"] == "spoken"


@pytest.mark.process
def test_a_request_that_cannot_be_read_is_answered(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        begin(server)
        half = '{"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "half an emoji: \\ud83d"}}'
        lines = [half, "no JSON", "", "[1]", '{"jsonrpc": "2.0", "id": 4}', request(5, "ping", {})]
        out, _ = server.communicate("".join(line + "\n" for line in lines), timeout=TIMEOUT_S)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [(each["id"], each.get("error", {}).get("code")) for each in answers] == [
        (3, -32700),
        (None, -32700),
        (None, -32600),
        (4, -32600),
        (5, None),
    ]


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ('{"id": 7, "x": "\\ud800"}', 7),
        ('{"id": "seven", "x": "\\udfff"}', "seven"),
        ('{"id": true, "x": "\\ud800"}', None),
        ('{"id": 1.5, "x": "\\ud800"}', None),
        ('{"id": "\\ud800"}', "\ud800"),
        ("[" * 100_000, None),
        ('{"id": 7, "method": ', None),
        ("\ufffd", None),
    ],
)
def test_the_refusal_of_a_line_has_the_id_of_its_request(line: str, id: object) -> None:
    refusal = refusal_of(line)
    assert refusal is not None
    refusal.encode("utf-8")
    assert json.loads(refusal)["id"] == id
    assert json.loads(refusal)["error"]["code"] in (-32700, -32600)


def test_a_line_of_too_many_parts_is_refused_with_the_id_of_its_request() -> None:
    refusal = json.loads(refusal_of(request(7, "tools/call", {"name": "a", "arguments": {"b": [0] * 200_001}})) or "")
    assert refusal["id"] == 7 and refusal["error"]["code"] == -32602
    assert re.search(r"has 2000\d\d lists, objects and commas", refusal["error"]["message"])


def test_messages_are_not_refused() -> None:
    assert refusal_of(request(1, "ping", {})) is None
    assert refusal_of('{"jsonrpc": "2.0", "method": "notifications/initialized"}') is None
    assert refusal_of(" \n") == ""
