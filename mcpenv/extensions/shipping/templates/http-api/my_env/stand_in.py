"""A stand-in of the API, for tests and for the first look: an HTTP server of this process, on a port of its own.

PUT    /sandboxes/NAME            an empty world of that name
DELETE /sandboxes/NAME            delete it
GET    /sandboxes/NAME/rooms      rooms, with their seats
GET    /sandboxes/NAME/bookings   bookings
POST   /sandboxes/NAME/bookings   {"room", "hour", "who"}: book a room for an hour
"""

from __future__ import annotations

import functools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

ROOMS = {"attic": 2, "garden": 4, "library": 6, "hall": 12}


class _Handler(BaseHTTPRequestHandler):
    worlds: ClassVar[dict[str, list[dict[str, Any]]]] = {}
    lock = threading.Lock()

    def do_GET(self) -> None:
        self._answer()

    do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.lock:
            status, answer = self._found(json.loads(body or b"null"))
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _found(self, sent: Any) -> tuple[int, Any]:
        if not self.headers.get("Authorization", "").startswith("Bearer "):
            return 401, {"error": "no token"}
        _, _, name, *rest = self.path.split("/")
        if not rest and self.command == "PUT":
            self.worlds[name] = []
            return 201, {}
        if not rest and self.command == "DELETE":
            self.worlds.pop(name, None)
            return 200, {}
        if name not in self.worlds:
            return 404, {"error": "no such sandbox"}
        if rest == ["rooms"]:
            return 200, [{"name": room, "seats": seats} for room, seats in ROOMS.items()]
        if rest == ["bookings"]:
            return self._book(self.worlds[name], sent) if self.command == "POST" else (200, self.worlds[name])
        return 404, {"error": "no such path"}

    def _book(self, bookings: list[dict[str, Any]], sent: dict[str, Any]) -> tuple[int, Any]:
        if sent["room"] not in ROOMS:
            return 404, {"error": f"there is no room {sent['room']!r}"}
        if any((each["room"], each["hour"]) == (sent["room"], sent["hour"]) for each in bookings):
            return 409, {"error": f"{sent['room']} is taken at {sent['hour']}"}
        bookings.append(sent)
        return 201, sent


@functools.cache
def url() -> str:
    """Start the stand-in, once in a process, and return its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, name="stand-in", daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"
