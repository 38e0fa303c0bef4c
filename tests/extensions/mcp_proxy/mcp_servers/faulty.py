"""A server over stdio that fails as a call says. Arguments: a file that gets a line for each run, and its version."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from raw_protocol import HANDSHAKE, error, said, start

runs, version = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else HANDSHAKE


def write(message: Any) -> None:
    sys.stdout.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
    sys.stdout.flush()


def act(number: Any, how: str) -> None:
    with runs.open("a") as file:
        file.write(f"{how}\n")
    good = said(number, version, f"did {how}")
    match how:
        case "exit":
            os._exit(3)
        case "close stdout":
            os.close(1)
        case "own error":
            write(error(number, -32000, "not today"))
        case "silence":
            pass
        case "garbage only":
            write("this is no message")
        case "wrong id":
            write({**good, "id": 4711})
        case "no object":
            write({**good, "result": 5})
        case "wrong shape":
            write({**good, "result": {**good["result"], "content": 7}})
        case "nan":
            write({**good, "result": {**good["result"], "structuredContent": {"a": float("nan")}}})
        case "long":
            good["result"]["content"][0]["text"] = "x" * 300_000
            write(good)
        case "garbage before":
            write("this is no message")
            write("")
            write({"jsonrpc": "2.0"})
            write(good)
        case "id as text":
            write({**good, "id": str(number)})
        case "twice":
            write(good)
            write(good)
        case "process":
            write(said(number, version, str(os.getpid())))
        case _:
            write(good)


for line in sys.stdin:
    message = json.loads(line)
    answer = start(message, version)
    if answer is not None:
        write(answer)
    elif message.get("method") == "tools/call":
        act(message["id"], message["params"]["arguments"]["how"])
