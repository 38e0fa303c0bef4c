"""A stand-in for the runtime in the pods of agent-sandbox, with its requests and its answers. It needs no package.

Run it in a namespace of its own: it runs each command that it is sent.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

FOLDER = Path("/app")


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/execute":
            self._answer(200, json.dumps(execute(json.loads(body)["command"])).encode(), "application/json")
        else:
            boundary = self.headers["Content-Type"].partition("boundary=")[2]
            head, _, rest = body.partition(b"\r\n\r\n")
            found = re.search(rb'filename="([^"]+)"', head)
            assert found is not None
            (FOLDER / found[1].decode()).write_bytes(rest[: -len(f"\r\n--{boundary}--\r\n")])
            self._answer(200, b"{}", "application/json")

    def do_GET(self) -> None:
        file = FOLDER / unquote(self.path.removeprefix("/download/"))
        if file.is_file():
            self._answer(200, file.read_bytes(), "application/octet-stream")
        else:
            self._answer(404, b"{}", "application/json")

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def execute(command: str) -> dict[str, object]:
    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, text=True, cwd=FOLDER, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, ValueError) as error:
        return {"stdout": "", "stderr": f"Failed to execute command: {error}", "exit_code": 1}
    return {"stdout": done.stdout, "stderr": done.stderr, "exit_code": done.returncode}


if __name__ == "__main__":
    with ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler) as server:
        print("ready", flush=True)
        server.serve_forever()
