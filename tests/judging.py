"""A model's endpoint that answers as a test demands."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]
"""A status and a body, or a function that writes to the connection itself."""


def said(content: Any, finish_reason: str = "stop", tokens: int = 10, **message: Any) -> Answer:
    """A chat completion."""
    text = content if isinstance(content, str) else json.dumps(content)
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text, **message}}
    return 200, {"choices": [choice], "usage": {"total_tokens": tokens}}


def judged(score: Any, reason: Any = "because") -> Answer:
    return said({"reason": reason, "score": score})


class Endpoint:
    """A model that answers what the test says, the last answer again and again; keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [judged(0.75)]
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                endpoint.headers.append({"path": self.path, **dict(self.headers)})
                status, body = endpoint.answers.pop(0) if len(endpoint.answers) > 1 else endpoint.answers[0]
                if callable(body):
                    with suppress(OSError):
                        body(self)
                    self.close_connection = True
                    return
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
