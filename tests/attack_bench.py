"""The bench of attacks: a server, an orchestrator's episode on it, and bytes that an agent sends by hand."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from attack_worlds import TELLTALES, Vault
from fault_bench import modern

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

PATIENCE_S = 20.0
"""Longest wait for anything, in seconds; nothing is expected to take it."""

TOKEN = "the-control-token-of-this-test"
CONTROL = {"Authorization": f"Bearer {TOKEN}"}
HANDSHAKE, MODERN = "handshake", "2026-07-28"
ERAS = (HANDSHAKE, MODERN)
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
    "Sec-WebSocket-Version": "13",
}

Headers = dict[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Answer:
    """The answer on a connection until it was closed.

    Attributes:
        raw: all of it, but for the Date.
        more: what came after the first answer.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    raw: bytes
    more: bytes = b""

    @property
    def message(self) -> dict[str, Any]:
        """The JSON-RPC message, also where it came as an event."""
        text = self.body.decode()
        found = re.search(r"^data: (\{.*)$", text, re.MULTILINE)
        message: dict[str, Any] = json.loads(found.group(1) if found else text)
        return message

    @property
    def error(self) -> int:
        """The code of a JSON-RPC error."""
        code: int = self.message["error"]["code"]
        return code

    @property
    def text(self) -> str:
        """The text of a tool's result."""
        text: str = self.message["result"]["content"][0]["text"]
        return text


def exchange(url: str, data: bytes | Iterable[bytes]) -> Answer:
    """Send bytes, in pieces if they are given so, and read until the server closes the connection."""
    with connection(url) as wire:
        sender = threading.Thread(target=_send, args=(wire, [data] if isinstance(data, bytes) else data), daemon=True)
        sender.start()
        received = b""
        # A server that refuses does not read on: what it said is there to be read, then the connection is reset.
        with contextlib.suppress(ConnectionError):
            while piece := wire.recv(65536):
                received += piece
        sender.join(PATIENCE_S)
    return parsed(received)


@contextmanager
def connection(url: str) -> Iterator[socket.socket]:
    """Open a bare connection; no wait is longer than `PATIENCE_S`."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname or "", address.port or 0), PATIENCE_S) as wire:
        yield wire


def _send(wire: socket.socket, pieces: Iterable[bytes]) -> None:
    with contextlib.suppress(OSError):  # refused before all was sent
        for piece in pieces:
            wire.sendall(piece)


def parsed(received: bytes) -> Answer:
    """The first answer in what a server sent."""
    head, separator, rest = received.partition(b"\r\n\r\n")
    assert separator, f"no answer: {received!r}"
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    raw = re.sub(rb"\r\ndate: [^\r]*", b"", received, flags=re.IGNORECASE)
    status = int(first.split(" ")[1])
    if headers.get("transfer-encoding") == "chunked":
        body, rest = _dechunked(rest)
    else:
        length = int(headers.get("content-length", len(rest)))
        body, rest = rest[:length], rest[length:]
    return Answer(status, headers, body, raw, rest)


def _dechunked(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        if int(size, 16) == 0:
            return body, data.removeprefix(b"\r\n")
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]


@dataclass(frozen=True)
class Doors:
    """The addresses of a server: ``control`` is out of agents' reach if it is another address than ``agent``."""

    agent: str
    control: str

    @property
    def apart(self) -> bool:
        return self.agent != self.control

    @property
    def closed(self) -> int:
        """The status with which a route of the control plane answers an agent."""
        return 404 if self.apart else 401


@contextmanager
def beside() -> Iterator[Doors]:
    """Serve both planes at one address; the control plane has a token."""
    with serving(Vault, ServerConfig(control_token=TOKEN)) as url:
        yield Doors(url, url)


@contextmanager
def apart() -> Iterator[Doors]:
    """Run a program whose control plane has an address of its own, and a token too. Check its log at the end."""
    program = subprocess.Popen(
        [sys.executable, "-m", "mcpenv", "run", "attack_worlds:Vault", "--port", "0", "--control-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parent,
        env={**os.environ, "MCPENV_CONTROL_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"},
    )
    assert program.stdout is not None
    said: list[str] = []
    doors: dict[str, str] = {}
    try:
        for line in program.stdout:
            said.append(line)
            found = re.match(r"  (MCP|control) +\w+://([^\s/]+)", line)
            if found:
                doors[found.group(1)] = f"http://{found.group(2)}"
            if len(doors) == 2:
                break
        else:
            raise AssertionError("".join(said))
        reader = threading.Thread(target=lambda: said.extend(program.stdout or ()), daemon=True)
        reader.start()
        yield Doors(doors["MCP"], doors["control"])
        program.terminate()
        assert program.wait(PATIENCE_S) == 0
        reader.join(PATIENCE_S)
        log = "".join(said)
        assert "Exception in ASGI application" not in log, log
        assert "could not be answered" not in log, log
        assert TOKEN not in log
    finally:
        program.kill()
        program.wait()


@dataclass
class Scene:
    """The orchestrator's episode, one of another orchestrator, and an agent that has the address of the first.

    Attributes:
        doors: of the server.
        session_id, episode_id, mcp_url: of the episode; the agent knows the last one only.
        theirs: what somebody else's reset answered.
        heard: everything that the agent was answered.
    """

    doors: Doors
    orchestrator: httpx.Client
    session_id: str = ""
    episode_id: str = ""
    mcp_url: str = ""
    theirs: dict[str, Any] = field(default_factory=dict)
    heard: list[bytes] = field(default_factory=list)
    _connections: dict[str, str] = field(default_factory=dict)

    # -- the orchestrators' side

    def begin(self) -> None:
        """Begin both episodes; the other one's agent takes a step."""
        mine = self.orchestrator.post("/reset").json()
        self.session_id, self.episode_id, self.mcp_url = mine["session_id"], *_address(mine)
        self.theirs = self.orchestrator.post("/reset").json()
        assert self.step("add", session_id=self.theirs["session_id"]) == 1

    def step(self, tool: str, arguments: Any = None, *, session_id: str | None = None, **headers: str) -> Any:
        """Take a step as an orchestrator."""
        action = {"type": "call_tool", "tool_name": tool, "arguments": arguments or {}}
        body = {"session_id": session_id or self.session_id, "action": action}
        response = self.orchestrator.post("/step", json=body, headers=headers)
        assert response.status_code == 200, response.text
        return response.json()["observation"]["result"]["data"]

    def busy(self, session_id: str) -> bool:
        """Return True if a session runs a call."""
        busy: bool = self.orchestrator.get(f"/sessions/{session_id}").json()["busy"]
        return busy

    def until_busy(self, session_id: str) -> None:
        until(lambda: self.busy(session_id), "a call is under way")

    def unharmed(self, steps: int = 0) -> None:
        """Check that both episodes changed by the agent's own steps only, and that nothing leaked.

        Args:
            steps: how many steps the agent has taken.
        """
        self.told_nothing()
        state = self.orchestrator.get("/state", params={"session_id": self.session_id}).json()
        assert (state["episode_id"], state["step_count"]) == (self.episode_id, steps)
        other = self.theirs["session_id"]
        state = self.orchestrator.get("/state", params={"session_id": other}).json()
        assert (state["episode_id"], state["step_count"]) == (self.theirs["info"]["episode_id"], 1)
        assert self.step("add", session_id=other) == 2
        sessions = self.orchestrator.get("/sessions").json()["sessions"]
        assert {session["session_id"] for session in sessions} == {self.session_id, other}
        assert self.orchestrator.get("/ready").status_code == 200

    def told_nothing(self) -> None:
        """Check that no answer to the agent contains anything of the orchestrator's."""
        secrets = (*TELLTALES, TOKEN, self.session_id, self.episode_id, self.theirs["session_id"], self.their_handle)
        for answer in self.heard:
            assert [secret for secret in secrets if secret.encode() in answer] == [], answer

    def end(self) -> None:
        for session_id in (self.session_id, self.theirs["session_id"]):
            self.orchestrator.delete(f"/sessions/{session_id}")

    # -- the agent's side

    @property
    def path(self) -> str:
        """The path of the agent's address."""
        return urlsplit(self.mcp_url).path

    @property
    def handle(self) -> str:
        return self.path.split("/")[2]

    @property
    def their_path(self) -> str:
        path: str = urlsplit(self.theirs["info"]["mcp_url"]).path
        return path

    @property
    def their_handle(self) -> str:
        return self.their_path.split("/")[2]

    @property
    def host(self) -> str:
        return urlsplit(self.doors.agent).netloc

    def send(self, data: bytes | Iterable[bytes]) -> Answer:
        """Put bytes on a connection to the agents' address."""
        answer = exchange(self.doors.agent, data)
        assert answer.status < 500, answer
        self.heard.append(answer.raw)
        return answer

    def ask(
        self,
        method: str = "POST",
        target: str | None = None,
        headers: Headers = (),
        body: bytes = b"",
        *,
        host: str | None = None,
    ) -> Answer:
        """Send one request; its target as it is written."""
        return self.send(self.request(method, target, headers, body, host=host))

    def request(
        self,
        method: str = "POST",
        target: str | None = None,
        headers: Headers = (),
        body: bytes = b"",
        *,
        host: str | None = None,
    ) -> bytes:
        """The bytes of a request after which the server closes."""
        given = list(headers.items() if isinstance(headers, dict) else headers)
        names = {name.lower() for name, _ in given}
        lines = [f"{method} {self.path if target is None else target} HTTP/1.1", f"Host: {host or self.host}"]
        if "connection" not in names:
            given.append(("Connection", "close"))
        if (body or method == "POST") and not names & {"content-length", "transfer-encoding"}:
            given.append(("Content-Length", str(len(body))))
        lines += [f"{name}: {text}" for name, text in given]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body

    def rpc(self, era: str, method: str, params: Any = None, *, path: str | None = None, **more: str) -> Answer:
        """Send a JSON-RPC request of this era to the agent's address.

        Args:
            path: another address.
            more: further headers, or other ones instead, with ``_`` for ``-``.
        """
        head, body = self.spoken(era, method, params, path=path)
        extra = {name.replace("_", "-").lower(): text for name, text in more.items()}
        kept = {name: text for name, text in head.items() if name.lower() not in extra}
        return self.ask("POST", path, {**kept, **extra}, json.dumps(body).encode())

    def spoken(
        self, era: str, method: str, params: Any = None, *, path: str | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Headers and body of such a request."""
        if era == MODERN:
            body, headers = modern(method, params)
            return {**ACCEPT, **headers}, body
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        return {**ACCEPT, "Mcp-Session-Id": self.connection_at(path or self.path)}, body

    def call(self, era: str, tool: str, arguments: Any = None, *, path: str | None = None, **more: str) -> Answer:
        """Call a tool at the agent's address."""
        return self.rpc(era, "tools/call", {"name": tool, "arguments": arguments or {}}, path=path, **more)

    def connection_at(self, path: str) -> str:
        """The id of a handshake session that was opened at an address."""
        if path not in self._connections:
            client = {"name": "agent", "version": "1"}
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
            body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
            answer = exchange(self.doors.agent, self.request("POST", path, ACCEPT, json.dumps(body).encode()))
            assert answer.status == 200, answer
            self._connections[path] = answer.headers["mcp-session-id"]
        return self._connections[path]


def _address(reset: dict[str, Any]) -> tuple[str, str]:
    return reset["info"]["episode_id"], reset["info"]["mcp_url"]


@contextmanager
def scene_at(doors: Doors) -> Iterator[Scene]:
    """Set a scene of its own on a running server."""
    with httpx.Client(base_url=doors.control, headers=CONTROL, timeout=PATIENCE_S) as orchestrator:
        scene = Scene(doors, orchestrator)
        scene.begin()
        try:
            yield scene
        finally:
            scene.end()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that another thread or process brings about."""
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit, f"never: {what}"
        time.sleep(0.005)
