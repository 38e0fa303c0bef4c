"""A raw MCP server over HTTP that fails as a call says."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from raw_protocol import HANDSHAKE, error, said, start

JSON, EVENTS, HTML = "application/json", "text/event-stream", "text/html"


class FaultyServer(ThreadingHTTPServer):
    """A server at a port of its own.

    Attributes:
        version: the version of the protocol that it speaks.
        runs: the faults of the calls that ran, in order.
        sessions: the sessions that it knows. Only a handshake-era server has any.
        refusing: the number of further calls that are refused before they run, with `status`.
        status: the status of refused calls.
    """

    daemon_threads = True

    def __init__(self, version: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.version = version
        self.runs: list[str] = []
        self.sessions: set[str] = set()
        self.refusing = 0
        self.status = 503
        self._connections: list[socket.socket] = []

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"

    def get_request(self) -> tuple[socket.socket, Any]:
        """Return the next connection, and keep it to be cut when the server ends."""
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def server_close(self) -> None:
        """Cut all connections."""
        super().server_close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a client that is gone."""


@contextmanager
def faulty_server(version: str = HANDSHAKE) -> Iterator[FaultyServer]:
    """Run a server in a thread."""
    server = FaultyServer(version)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyServer

    def do_GET(self) -> None:
        self._send(405, HTML, "<p>no</p>")

    def do_DELETE(self) -> None:
        self.server.sessions.discard(self.headers.get("mcp-session-id", ""))
        self._send(200, JSON, "")

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            self._send(202, JSON, "")
        elif message["method"] == "tools/call":
            self._call(message["id"], message["params"]["arguments"]["how"])
        else:
            headers = {}
            if message["method"] == "initialize" and self.server.version == HANDSHAKE:
                session = f"session-{len(self.server.sessions)}-{id(message)}"
                self.server.sessions.add(session)
                headers["mcp-session-id"] = session
            self._send(200, JSON, json.dumps(start(message, self.server.version)), headers)

    def _call(self, number: Any, how: str) -> None:
        server, session = self.server, self.headers.get("mcp-session-id")
        if session is not None and session not in server.sessions:
            self._send(404, JSON, json.dumps(error(number, -32600, "Session terminated")))
            return
        if server.refusing:
            server.refusing -= 1
            self._send(server.status, HTML, "<p>not now</p>")
            return
        if how == "cut at once":
            self._cut()
            return
        server.runs.append(how)
        good = said(number, server.version, f"did {how}")
        text = json.dumps(good)
        if how.isdecimal():
            self._send(int(how), HTML, "<p>something went wrong</p>")
            return
        match how:
            case "cut before":
                self._cut()
            case "cut within":
                self._begin(JSON, len(text))
                self.wfile.write(text[:20].encode())
                self._cut()
            case "events end early":
                self._begin(EVENTS)
                self._chunk(f"event: message\ndata: {json.dumps(_progress())}\n\n")
                self._chunk("")
            case "events cut":
                self._begin(EVENTS)
                self._chunk(f"event: message\ndata: {text[:20]}")
                self._cut()
            case "events":
                self._begin(EVENTS)
                self._chunk(f"event: message\ndata: {text}\n\n")
                self._chunk("")
            case "events with an error":
                self._begin(EVENTS)
                self._chunk(f"event: message\ndata: {json.dumps(error(number, -32000, 'not today'))}\n\n")
                self._chunk("")
            case "events without JSON":
                self._begin(EVENTS)
                self._chunk("event: message\ndata: this is no message\n\n")
                self._chunk("")
            case "own error":
                self._send(200, JSON, json.dumps(error(number, -32000, "not today")))
            case "own error with a status":
                self._send(400, JSON, json.dumps(error(number, -32602, "not today")))
            case "html":
                self._send(200, HTML, "<p>hello</p>")
            case "no JSON":
                self._send(200, JSON, "this is no message")
            case "wrong id":
                self._send(200, JSON, json.dumps({**good, "id": 4711}))
            case "accepted":
                self._send(202, JSON, "")
            case "wrong shape":
                self._send(200, JSON, json.dumps({**good, "result": {**good["result"], "content": 7}}))
            case "nan":
                bad = {**good["result"], "structuredContent": {"a": float("nan")}}
                self._send(200, JSON, json.dumps({**good, "result": bad}))
            case "long":
                good["result"]["content"][0]["text"] = "x" * 300_000
                self._send(200, JSON, json.dumps(good))
            case "long events":
                good["result"]["content"][0]["text"] = "x" * 300_000
                self._begin(EVENTS)
                self._chunk(f"event: message\ndata: {json.dumps(good)}\n\n")
                self._chunk("")
            case "elsewhere":
                self._send(307, HTML, "", {"location": "http://localhost:9/other"})
            case _:
                self._send(200, JSON, text)

    def _send(self, status: int, kind: str, body: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def _begin(self, kind: str, size: int | None = None) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header(*(("transfer-encoding", "chunked") if size is None else ("content-length", str(size))))
        self.end_headers()

    def _chunk(self, text: str) -> None:
        self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
        self.wfile.flush()

    def _cut(self) -> None:
        """Reset the connection."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def _progress() -> dict[str, Any]:
    params = {"progressToken": 1, "progress": 0.5}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
