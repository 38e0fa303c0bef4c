"""A server of the standard library only, which starts at once. Its tools show and change what a reset must restore.

The argument is the folder that it works in.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
from pathlib import Path
from typing import Any

NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = {
    "read": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    "write": {"type": "object", "properties": {"name": {"type": "string"}, "text": {"type": "string"}}},
    "about": NO_ARGUMENTS,
    "learn": NO_ARGUMENTS,
    "never": NO_ARGUMENTS,
    "connect": {"type": "object", "properties": {"port": {"type": "integer"}}},
    "end": NO_ARGUMENTS,
}
HELD = {"learned": False}


def call(name: str, arguments: dict[str, Any]) -> str | None:
    """Return the text of a result; None for no answer."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    if name == "read":
        return Path(folder, arguments["name"]).read_text()
    if name == "write":
        (folder / arguments["name"]).write_text(arguments["text"])
        return f"written to {folder / arguments['name']}"
    if name == "about":
        about = {
            "arguments": sys.argv[1:],
            "cwd": os.getcwd(),
            "variables": dict(os.environ),
            "process": os.getpid(),
            "parent": os.getppid(),
            "random": random.random(),
        }
        return json.dumps(about)
    if name == "learn":
        HELD["learned"] = True
        return "learned"
    if name == "connect":
        with socket.create_connection(("127.0.0.1", arguments["port"]), timeout=10):
            return "connected"
    if name == "end":
        os._exit(3)
    return None


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request, or an error; None for no answer."""
    method, parameters = message["method"], message.get("params", {})
    if method == "initialize":
        about = {"name": "plain", "version": "1.0"}
        version = parameters["protocolVersion"]
        # It has resources, but no method that lists templates, as many servers.
        capabilities: dict[str, Any] = {"tools": {}, "resources": {}}
        return {"result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": about}}
    if method == "resources/list":
        return {"result": {"resources": [{"uri": "plain://note", "name": "note"}]}}
    if method == "tools/list":
        listed = TOOLS | ({"learned": NO_ARGUMENTS} if HELD["learned"] else {})
        return {"result": {"tools": [{"name": name, "inputSchema": schema} for name, schema in listed.items()]}}
    if method == "tools/call":
        try:
            text = call(parameters["name"], parameters.get("arguments") or {})
        except OSError as error:
            return {"result": {"content": [{"type": "text", "text": str(error)}], "isError": True}}
        return None if text is None else {"result": {"content": [{"type": "text", "text": text}]}}
    return {"error": {"code": -32601, "message": f"there is no method {method}"}}


def main() -> None:
    """Answer until stdin is closed."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            answered = answer(message)
            if answered is not None:
                print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answered}), flush=True)


if __name__ == "__main__":
    main()
