"""The clients of the model's server: requests that stay in flight, sockets that can be cut, agents."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import CannotSendRequest, HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from fault_bench import PATIENCE_S, modern
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

SECRETS = ("reward", '"return"', '"done"', "truncated", "terminated", "step_count", "episode_id")
"""What nothing that an agent is told may have in it."""

TOKEN = "a-long-enough-secret"


@dataclass(frozen=True)
class Answer:
    """The answer to an HTTP request."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def data(self) -> Any:
        """Return its JSON; of an event stream, that of its last event."""
        text = self.text
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            text = [line[5:] for line in text.splitlines() if line.startswith("data:") and line[5:].strip()][-1]
        return json.loads(text)

    @property
    def reply(self) -> dict[str, Any]:
        """Return it in the form of a frame."""
        return {"type": "observation" if self.status < 400 else "error", "data": self.data}


class Request:
    """The HTTP request in flight."""

    def __init__(self, url: str, method: str, body: Any = None, headers: dict[str, str] | None = None) -> None:
        address = urlsplit(url)
        self._connection = HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_S)
        path = address.path + ("?" + address.query if address.query else "")
        self._connection.request(method, path, None if body is None else json.dumps(body), headers or {})

    def answer(self) -> Answer:
        """Wait for it."""
        response = self._connection.getresponse()
        text = response.read().decode()
        self._connection.close()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, text)

    def leave(self) -> None:
        """Do not wait for it."""
        self._connection.close()


class Bookkeeper:
    """Asks again and again, over one connection."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE_S)

    def get(self, path: str) -> Answer:
        try:
            self._connection.request("GET", path)
            response = self._connection.getresponse()
        except (ConnectionError, CannotSendRequest):  # the server ended it because it was idle
            self._connection.close()
            self._connection.request("GET", path)
            response = self._connection.getresponse()
        return Answer(response.status, {"content-type": "application/json"}, response.read().decode())

    def close(self) -> None:
        self._connection.close()


def ask(url: str, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    return Request(url, method, body, headers).answer()


# -- agents


def agent_asks(url: str, method: str, params: dict[str, Any] | None = None) -> Request:
    """Return a request of the 2026-07-28 era."""
    body, headers = modern(method, params)
    return Request(url, "POST", body, headers)


def told(answer: Answer) -> Any:
    """Return an agent's answer; nothing of it is the orchestrator's."""
    for secret in SECRETS:
        assert secret not in answer.text, answer
        assert secret not in str(answer.headers), answer
    return answer.data


class Handshake:
    """The MCP client of the handshake era, written by hand, so that its answers can be read to the last byte."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "by hand", "version": "1"}}
        answer = self._post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
        assert "tools" in told(answer)["result"]["capabilities"]
        self.id = answer.headers["mcp-session-id"]
        self._headers |= {"Mcp-Session-Id": self.id, "MCP-Protocol-Version": "2025-11-25"}
        assert self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status == 202

    def begin(self, method: str, params: dict[str, Any] | None = None) -> Request:
        """Send a request."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        return Request(self.url, "POST", body, self._headers)

    def end(self) -> int:
        """The status of DELETE."""
        return ask(self.url, "DELETE", None, self._headers).status

    def _post(self, body: dict[str, Any]) -> Answer:
        return ask(self.url, "POST", body, self._headers)


# -- sockets


def open_socket(
    url: str, session_id: str | None = None, *, token: str = TOKEN, resume: bool = False
) -> ClientConnection:
    """Open a control socket; with a session id, one that may resume."""
    address = url.replace("http", "ws", 1) + "/ws" + ("?resume=1" if resume else "")
    headers = {} if session_id is None else {"mcpenv-session-id": session_id, "mcpenv-session-token": token}
    opening = connect(address, additional_headers=headers, open_timeout=PATIENCE_S, compression=None, proxy=None)
    return opening.__enter__()  # its end is the server's, or a cut: whoever asked for it closes it


def send(control: ClientConnection, frame: dict[str, Any]) -> None:
    control.send(json.dumps(frame))


def hear(control: ClientConnection) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(control.recv(PATIENCE_S))
    return reply


def ending(control: ClientConnection) -> int | None:
    """The code with which the server closed it, having said nothing more."""
    try:
        said = control.recv(PATIENCE_S)
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd is not None else None
    raise AssertionError(f"not closed, but: {said!r}")


def cut(control: ClientConnection) -> None:
    """Lose the connection without a word."""
    control.socket.shutdown(socket.SHUT_RDWR)
    control.close()


def eventually(condition: Callable[[], bool], seen: Callable[[], Any]) -> None:
    """Wait for what the server's threads bring about; what was ``seen`` instead is in the error."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, seen()
        time.sleep(0.002)
