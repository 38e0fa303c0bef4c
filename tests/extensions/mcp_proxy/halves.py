"""A server that writes halves of characters (lone surrogates) and bytes that are no UTF-8 wherever it writes text."""

from __future__ import annotations

import json
import sys
from typing import Any

from raw_protocol import HANDSHAKE, METHOD_NOT_FOUND, TOOLS, error, result, said

HALF, OTHER = "\ud83d", "\ude00"
WHOLE = f"a \U0001f600, a backslash \\ud83d, two \\\\{HALF}"
"""Two halves that are one character, and texts that only look like halves; the last is one, after two backslashes."""


def answers(message: dict[str, Any]) -> list[bytes]:
    """Return the messages that answer one."""
    return [json.dumps(each).encode().replace(b"RAW", b"\xff\xed\xa0\xbd") for each in _answers(message)]


def _answers(message: dict[str, Any]) -> list[Any]:
    number, method = message.get("id"), message.get("method")
    if number is None:
        return []
    if method == "initialize":
        capabilities: dict[str, Any] = {"tools": {}, "resources": {}, "logging": {}}
        info = {"name": f"halves{HALF}", "version": "1"}
        body = {"protocolVersion": HANDSHAKE, "capabilities": capabilities, "serverInfo": info}
        return [result(number, HANDSHAKE, {**body, "instructions": f"act {HALF}"})]
    if method == "tools/list":
        odd = {**TOOLS[0], "name": f"odd{HALF}"}
        described = {**TOOLS[1], "description": f"look {OTHER} RAW", "title": HALF}
        return [result(number, HANDSHAKE, {"tools": [TOOLS[0], described, odd]})]
    if method == "resources/list":
        listed = {"uri": "note://a", "name": f"a{HALF}", "description": f"a {HALF}"}
        return [result(number, HANDSHAKE, {"resources": [listed]})]
    if method == "resources/read":
        return [result(number, HANDSHAKE, {"contents": [{"uri": "note://a", "text": f"read {HALF} RAW"}]})]
    if method == "tools/call":
        return _call(number, message["params"])
    return [error(number, METHOD_NOT_FOUND, f"there is no {method} {HALF}")]


def _call(number: Any, params: dict[str, Any]) -> list[Any]:
    how = params["arguments"]["how"]
    good = said(number, HANDSHAKE, f"did {how}")
    token = params.get("_meta", {}).get("progressToken")
    notes = {
        "progress": {"progressToken": token, "progress": 1, "message": f"half {HALF}"},
        "message": {"level": "info", "data": f"log {HALF}", "logger": HALF},
    }
    match how:
        case "text":
            return [said(number, HANDSHAKE, f"half {HALF} other {OTHER} raw RAW")]
        case "whole":
            return [said(number, HANDSHAKE, WHOLE)]
        case "structured":
            good["result"]["structuredContent"] = {"a": HALF, f"key{OTHER}": [f"{HALF}b"]}
            return [good]
        case "error":
            return [error(number, -32000, f"not today {HALF}")]
        case "failed":
            good = said(number, HANDSHAKE, f"failed {HALF}")
            return [{**good, "result": {**good["result"], "isError": True}}]
        case "progress" | "message":
            return [{"jsonrpc": "2.0", "method": f"notifications/{how}", "params": notes[how]}, good]
        case _:
            return [good]


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        for answer in answers(json.loads(line)):
            sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()
