"""The answers of a minimal MCP server, as plain JSON, for servers that go wrong in ways no library would let them."""

from __future__ import annotations

from typing import Any

HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"

METHOD_NOT_FOUND = -32601

TOOLS = [
    {
        "name": name,
        "description": "Act, in the way that `how` says.",
        "inputSchema": {"type": "object", "properties": {"how": {"type": "string"}}, "required": ["how"]},
        "annotations": annotations,
    }
    for name, annotations in (("act", {}), ("look", {"readOnlyHint": True}))
]

INFO = {"name": "faulty", "version": "1.0"}


def result(number: Any, version: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the response to a request, with what results of its version must have."""
    if version == MODERN:
        body = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **body}
    return {"jsonrpc": "2.0", "id": number, "result": body}


def error(number: Any, code: int, message: str) -> dict[str, Any]:
    """Return the error for a request."""
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def said(number: Any, version: str, text: str) -> dict[str, Any]:
    """Return the response to a tool call."""
    body: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": False}
    if version == MODERN:
        body["resultType"] = "complete"
    return {"jsonrpc": "2.0", "id": number, "result": body}


def start(message: dict[str, Any], version: str) -> dict[str, Any] | None:
    """Return the response to a request that starts a session or lists; None for a call, and for a notification."""
    number, method = message.get("id"), message.get("method")
    if number is None or method == "tools/call":
        return None
    capabilities: dict[str, Any] = {"tools": {}}
    if method == "server/discover" and version == MODERN:
        return result(
            number, version, {"supportedVersions": [MODERN], "capabilities": capabilities, "serverInfo": INFO}
        )
    if method == "initialize" and version == HANDSHAKE:
        body = {"protocolVersion": HANDSHAKE, "capabilities": capabilities, "serverInfo": INFO}
        return result(number, version, body)
    if method == "tools/list":
        return result(number, version, {"tools": TOOLS})
    return error(number, METHOD_NOT_FOUND, f"there is no {method}")
