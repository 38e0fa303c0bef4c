"""An endpoint of models whose answers are functions, with the requests that it got."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JSON = dict[str, Any]
Answering = Callable[["Handler", JSON], None]


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Endpoint:
    url: str
    asked: list[Asked] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    endpoint: Endpoint
    answering: Answering

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.endpoint.asked.append(Asked(self.command, self.path, headers, body))
        type(self).answering(self, json.loads(body) if body.startswith(b"{") else {})

    do_GET = do_POST

    def whole(self, status: int, answer: Any, **headers: str) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, **headers: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def event(self, data: Any, name: str | None = None) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        self.piece(((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode())

    def piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def cut(self) -> None:
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@contextmanager
def endpoint(answering: Answering) -> Iterator[Endpoint]:
    """Serve an endpoint in threads."""
    made = Endpoint("")
    handler = type("Answering", (Handler,), {"endpoint": made, "answering": staticmethod(answering)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=lambda: server.serve_forever(0.05))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
