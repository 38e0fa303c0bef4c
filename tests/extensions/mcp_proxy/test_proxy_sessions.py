"""Test servers at a URL: one upstream session per episode where the protocol has sessions, and a warning elsewhere."""

from __future__ import annotations

import json
import logging
import uuid
from typing import Any

import httpx
import pytest
from fastmcp import FastMCP
from proxying import call, environment, plain
from served import served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving


class Sessions:
    """A server of the handshake era whose state is in its sessions: a counter for each."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.opened = 0

    async def answer(self, request: Request) -> Response:
        session = request.headers.get("mcp-session-id", "")
        if request.method == "DELETE":
            self.counts.pop(session, None)
            return Response(status_code=200)
        if request.method == "GET":
            return Response(status_code=405)
        message = json.loads(await request.body())
        if "id" not in message:
            return Response(status_code=202)
        headers, result = {}, self._result(message, session)
        if message["method"] == "initialize":
            session, self.opened = uuid.uuid4().hex, self.opened + 1
            self.counts[session] = 0
            headers = {"mcp-session-id": session}
        if result is None:
            error = {"code": -32601, "message": "there is no such method"}
            return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error}, 200)
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)

    def _result(self, message: dict[str, Any], session: str) -> dict[str, Any] | None:
        if message["method"] == "initialize":
            about = {"name": "sessions", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
        if message["method"] == "tools/list":
            return {"tools": [{"name": "add", "inputSchema": {"type": "object", "properties": {}}}]}
        if message["method"] == "tools/call":
            self.counts[session] += 1
            return {"content": [{"type": "text", "text": str(self.counts[session])}]}
        return None


def test_each_episode_has_a_session_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    sessions = Sessions()
    app = Starlette(routes=[Route("/mcp", sessions.answer, methods=["POST", "GET", "DELETE"])])
    with served(app) as url, caplog.at_level(logging.WARNING, "mcpenv.upstream"):
        cls = environment(server={"url": url})
        with cls() as one, cls() as other:
            one.reset()
            other.reset()
            assert [call(one, "add").text, call(one, "add").text, call(other, "add").text] == ["1", "2", "1"]
            before = sessions.opened
            one.reset()
            assert sessions.opened == before + 1
            assert [call(one, "add").text, call(other, "add").text] == ["1", "2"]
        assert sessions.counts == {}
    assert "shared by all episodes" not in caplog.text


def sessionless() -> FastMCP:
    server = FastMCP("sessionless")

    @server.tool
    def add() -> int:
        """Count."""
        return 1

    return server


@pytest.mark.parametrize(("state", "said"), [(None, True), ("none", False), ("external", False)])
def test_a_server_without_sessions_is_said_to_share_its_world(
    caplog: pytest.LogCaptureFixture, state: str | None, said: bool
) -> None:
    settings = {} if state is None else {"state": state}
    with served(sessionless().http_app()) as url, caplog.at_level(logging.WARNING, "mcpenv.upstream"):
        environment(remote={"url": url, **settings})
    assert ("server 'remote' speaks 2026-07-28" in caplog.text) is said
    assert ("its world is shared by all episodes" in caplog.text) is said


def test_metadata_and_record_name_the_servers_and_the_hashes_of_their_tools() -> None:
    cls = environment(server=plain("x"))
    expected = {"name": "plain", "version": "1.0", **cls.catalog.servers["server"]}
    assert set(expected) == {"name", "version", "protocol", "tools_hash"} and len(expected["tools_hash"]) == 64
    with serving(cls, ServerConfig()) as url:
        told = httpx.get(f"{url}/metadata").json()
    assert told["details"] == {"servers": {"server": expected}}
    with cls() as env:
        env.reset()
        assert env.trajectory is not None and env.trajectory.observation is not None
        assert env.trajectory.observation["metadata"]["servers"] == {"server": expected}
