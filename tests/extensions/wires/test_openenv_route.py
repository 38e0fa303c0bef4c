"""OpenEnv's plain JSON-RPC, on ``POST /mcp`` and in ``mcp`` frames: where it goes, what it answers, what it counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastmcp import Client
from starlette.applications import Starlette
from starlette.testclient import TestClient
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from worlds import Ledger, World

from mcpenv.extensions.wires.openenv import OpenEnvRoute
from mcpenv.server.app import EnvServer
from mcpenv.server.config import ServerConfig
from mcpenv.server.security.agent_auth import agent_auth_from
from mcpenv.server.serve import serving

TIMEOUT_S = 30
TOKEN = "the-control-token"
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
LIST = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(World) as base_url:
        yield base_url


def post(url: str, method: str, params: dict[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
    """Send what OpenEnv's client sends (httpx says ``Accept: */*``), and the reply's body."""
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}}
    response = httpx.post(f"{url}/mcp", json=body, timeout=TIMEOUT_S, **kwargs)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    assert reply["jsonrpc"] == "2.0" and reply["id"] == 7
    return reply


def result(url: str, method: str, params: dict[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
    reply = post(url, method, params, **kwargs)
    assert "error" not in reply, reply
    found: dict[str, Any] = reply["result"]
    return found


def error(url: str, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    reply = post(url, method, params)
    assert "result" not in reply
    found: dict[str, Any] = reply["error"]
    return found


def created(url: str) -> str:
    session_id: str = result(url, "openenv/session/create")["session_id"]
    return session_id


def call(url: str, name: str, session_id: str | None = None, **arguments: Any) -> dict[str, Any]:
    return result(url, "tools/call", {"name": name, "arguments": arguments, "session_id": session_id})


class Frames:
    """A raw control socket."""

    def __init__(self, url: str, query: str = "") -> None:
        self._manager = connect(url.replace("http", "ws") + "/ws" + query)

    def __enter__(self) -> Frames:
        self.socket = self._manager.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._manager.__exit__(None, None, None)

    def send(self, kind: str, data: Any = None, **more: Any) -> dict[str, Any]:
        self.socket.send(json.dumps({"type": kind, "data": data, **more}))
        return self.hear()

    def hear(self) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(self.socket.recv(TIMEOUT_S))
        return reply

    def rpc(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        reply = self.send("mcp", {"jsonrpc": "2.0", "id": "a", "method": method, "params": params or {}})
        assert reply["type"] == "mcp"
        assert reply["data"]["jsonrpc"] == "2.0" and reply["data"]["id"] == "a"
        data: dict[str, Any] = reply["data"]
        return data


# -- what it answers


def test_a_listing_has_the_whole_schemas(url: str) -> None:
    tools = {tool["name"]: tool for tool in result(url, "tools/list")["tools"]}
    env = World()
    assert {name: tool["inputSchema"] for name, tool in tools.items()} == {
        tool.name: tool.input_schema for tool in env.list_tools()
    }
    env.close()
    assert tools["draw"]["inputSchema"]["properties"]["scale"] == {
        "default": 1.0,
        "exclusiveMinimum": 0,
        "maximum": 10,
        "type": "number",
    }
    assert all(isinstance(tool["description"], str) for tool in tools.values())


def test_a_call_answers_the_result_with_its_data(url: str) -> None:
    answered = call(url, "add", by=2)
    assert answered["data"] == 2
    assert answered["is_error"] is False
    assert answered["content"] == [{"type": "text", "text": "2"}]


def test_without_a_session_every_call_has_a_throw_away_episode(url: str) -> None:
    before = httpx.get(f"{url}/capacity").json()["active_sessions"]
    assert [call(url, "add")["data"] for _ in range(3)] == [1, 1, 1]
    assert httpx.get(f"{url}/capacity").json()["active_sessions"] == before


def test_a_session_keeps_its_state_until_it_is_closed(url: str) -> None:
    session_id = created(url)
    assert [call(url, "add", session_id)["data"] for _ in range(3)] == [1, 2, 3]
    assert result(url, "tools/list", {"session_id": session_id})["tools"]
    closed = result(url, "openenv/session/close", {"session_id": session_id})
    assert closed == {"session_id": session_id, "closed": True}
    for method, params in (
        ("tools/call", {"name": "add", "session_id": session_id}),
        ("tools/list", {"session_id": session_id}),
        ("openenv/session/close", {"session_id": session_id}),
    ):
        refused = error(url, method, params)
        assert (refused["code"], refused["data"]["code"]) == (-32602, "SESSION_LOST")


@pytest.mark.parametrize(
    ("name", "arguments", "number", "kind"),
    [
        ("fails", {}, -32603, "execution_error"),
        ("refuses", {}, -32603, "execution_error"),
        ("add", {"by": "many"}, -32602, "invalid_args"),
        ("shout", {}, -32602, "tool_not_found"),
        ("ticket", {"text": "a tool of the other mode"}, -32602, "tool_not_found"),
        ("late", {}, -32603, "timeout"),
    ],
)
def test_a_failure_of_a_tool_has_its_type(
    url: str, name: str, arguments: dict[str, Any], number: int, kind: str
) -> None:
    refused = error(url, "tools/call", {"name": name, "arguments": arguments})
    assert (refused["code"], refused["data"]) == (number, {"error_type": kind})
    assert refused["message"]


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (b"{", -32700),
        (b"", -32700),
        (b"[]", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc": "1.0", "method": "tools/list"}', -32600),
        (b'{"jsonrpc": "2.0", "method": ["initialize"]}', -32600),
        (b'{"jsonrpc": "2.0", "method": "tools/list", "id": [1]}', -32600),
        (b'{"jsonrpc": "2.0", "method": "tools/list", "id": true}', -32600),
        (b'{"jsonrpc": "2.0", "method": "tools/list", "params": []}', -32600),
        (b'{"jsonrpc": "2.0", "method": "resources/list"}', -32601),
        (b'{"jsonrpc": "2.0", "method": "tools/call"}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": 5}}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "add", "arguments": [1]}}', -32602),
        (b'{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "add", "session_id": 5}}', -32602),
        (b'{"jsonrpc": "2.0", "method": "openenv/session/close"}', -32602),
    ],
)
def test_what_is_wrong_with_a_request_has_its_number_and_status_200(url: str, body: bytes, number: int) -> None:
    response = httpx.post(f"{url}/mcp", content=body)
    assert response.status_code == 200
    assert response.json()["jsonrpc"] == "2.0"
    assert response.json()["error"]["code"] == number


def test_a_body_above_the_limit_is_refused() -> None:
    with serving(World, ServerConfig(max_message_bytes=1000)) as url:
        assert httpx.post(f"{url}/mcp", json={**LIST, "params": {"x": "y" * 1000}}).status_code >= 400
        assert post(url, "tools/list")["result"]["tools"]


def test_a_request_whose_client_leaves_in_the_middle_of_it_is_not_done() -> None:
    whole = json.dumps({**LIST, "method": "openenv/session/create"}).encode()
    told: list[Any] = []

    async def leave() -> None:
        server = EnvServer(World)
        messages = iter([{"type": "http.request", "body": whole, "more_body": True}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            told.append(message)

        async with server.running():
            await OpenEnvRoute(server.pool, server.source, server.config)({"type": "http"}, receive, send)
            assert server.pool.slots.taken == 0

    asyncio.run(leave())
    assert told == []


def test_when_every_slot_is_taken_the_reply_says_so() -> None:
    with serving(Ledger, ServerConfig(max_concurrent_envs=1, queue_timeout_s=0.01)) as url:
        session_id = created(url)
        refused = error(url, "openenv/session/create")
        assert refused["code"] == -32000
        assert refused["data"]["code"] == "CAPACITY_REACHED"
        assert (refused["data"]["active_sessions"], refused["data"]["max_sessions"]) == (1, 1)
        assert call(url, "book", session_id, amount=5)["data"] == 5


def test_an_exception_of_the_scoring_is_an_error_and_no_reward() -> None:
    class Broken(World):
        def score(self, call: Any, outcome: Any) -> Any:
            raise ZeroDivisionError

    with serving(Broken) as url:
        refused = error(url, "tools/call", {"name": "add"})
        assert (refused["code"], refused["data"]["code"]) == (-32603, "EXECUTION_ERROR")
        assert refused["data"]["incident"]


# -- the one core


def test_invariant_1_calls_over_json_rpc_are_counted_scored_and_recorded_as_those_of_every_plane(url: str) -> None:
    session_id = created(url)
    call(url, "add", session_id, by=2)
    error(url, "tools/call", {"name": "fails", "session_id": session_id})
    with Frames(url, f"?session_id={session_id}") as frames:
        rpc = frames.rpc("tools/call", {"name": "add", "arguments": {"by": 3}})
        assert rpc["result"]["data"] == 5
        step = frames.send("step", {"type": "call_tool", "tool_name": "add", "arguments": {}})["data"]
        assert (step["observation"]["result"]["data"], step["reward"], step["info"]["return"]) == (6, 0.5, 0.5)
        assert frames.send("state")["data"]["step_count"] == 4
        steps = frames.send("trajectory")["data"]["steps"]
    assert [(s["call"]["name"], s["call"]["plane"], s["reward"]["value"]) for s in steps] == [
        ("add", "control", 0.5),
        ("fails", "control", -1.0),
        ("add", "control", 0.5),
        ("add", "control", 0.5),
    ]
    result(url, "openenv/session/close", {"session_id": session_id})


def test_the_end_of_an_episode_is_kept_and_left_only_by_a_reset(url: str) -> None:
    session_id = created(url)
    call(url, "submit", session_id, answer="42")
    refused = error(url, "tools/call", {"name": "add", "session_id": session_id})
    assert (refused["code"], refused["data"]["code"]) == (-32000, "EPISODE_DONE")
    body = {"session_id": session_id, "start": 5}
    assert httpx.post(f"{url}/reset", json=body).status_code == 200
    assert call(url, "add", session_id)["data"] == 6
    result(url, "openenv/session/close", {"session_id": session_id})


# -- frames and sockets


def test_an_mcp_frame_is_about_its_sockets_own_session(url: str) -> None:
    with Frames(url) as frames:
        own = frames.rpc("openenv/session/create")["result"]["session_id"]
        assert frames.rpc("tools/list")["result"]["tools"]
        assert frames.rpc("tools/call", {"name": "add", "session_id": "another"})["result"]["data"] == 1
        assert call(url, "add", own)["data"] == 2
        assert frames.rpc("openenv/session/close", {"session_id": own})["error"]["code"] == -32600
        assert frames.rpc("tools/dance")["error"]["code"] == -32601
        assert frames.rpc("tools/call", {"name": "add"})["result"]["data"] == 3
    assert error(url, "tools/list", {"session_id": own})["data"]["code"] == "SESSION_LOST"


def test_an_mcp_frame_with_a_request_id_runs_once(url: str) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}}
    with Frames(url) as frames:
        first = frames.send("mcp", message, request_id="r-1")
        assert first["data"]["result"]["data"] == 1
        assert frames.send("mcp", message, request_id="r-1") == first
        assert frames.send("mcp", message, request_id="r-2")["data"]["result"]["data"] == 2


@pytest.mark.parametrize("data", [None, [], "tools/list"])
def test_an_mcp_frame_without_a_request_is_refused_and_the_session_goes_on(url: str, data: Any) -> None:
    with Frames(url) as frames:
        assert frames.rpc("tools/call", {"name": "add"})["result"]["data"] == 1
        assert frames.send("mcp", data)["data"]["code"] == "VALIDATION_ERROR"
        assert frames.send("mcp", {})["data"]["error"]["code"] == -32600
        assert frames.rpc("tools/call", {"name": "add"})["result"]["data"] == 2


def test_a_socket_joins_a_session_and_leaves_it_as_it_is(url: str) -> None:
    session_id = created(url)
    for expected in (1, 3):
        with Frames(url, f"?session_id={session_id}") as frames:
            step = frames.send("step", {"type": "call_tool", "tool_name": "add", "arguments": {}})
            assert step["data"]["observation"]["result"]["data"] == expected
            frames.socket.send('{"type": "close"}')
            with pytest.raises(ConnectionClosed):
                frames.hear()
        assert call(url, "add", session_id)["data"] == expected + 1
    reset = httpx.post(f"{url}/reset", json={"session_id": session_id}).json()
    assert reset["info"]["mcp_url"].startswith(url)
    result(url, "openenv/session/close", {"session_id": session_id})


def test_closing_a_session_ends_the_socket_that_joined_it(url: str) -> None:
    session_id = created(url)
    with Frames(url, f"?session_id={session_id}") as frames:
        frames.send("reset")
        assert result(url, "openenv/session/close", {"session_id": session_id})["closed"] is True
        with pytest.raises(ConnectionClosed):
            frames.hear()


def test_a_second_socket_takes_a_joined_session_over(url: str) -> None:
    session_id = created(url)
    with Frames(url, f"?session_id={session_id}") as first:
        first.send("reset")
        with Frames(url, f"?session_id={session_id}") as second:
            assert second.send("state")["data"]["step_count"] == 0
            with pytest.raises(ConnectionClosed) as closed:
                first.hear()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4409
            second.send("step", {"type": "call_tool", "tool_name": "add", "arguments": {}})
    assert call(url, "add", session_id)["data"] == 2
    result(url, "openenv/session/close", {"session_id": session_id})


def test_a_session_id_that_nobody_has_is_refused_in_words(url: str) -> None:
    with Frames(url, "?session_id=nobody-has-this-id") as frames:
        assert frames.hear()["data"]["code"] == "SESSION_LOST"


def test_a_session_that_a_secret_protects_is_not_joined_by_its_id() -> None:
    headers = {"MCPEnv-Session-Id": "chosen-by-the-client", "MCPEnv-Session-Token": "a-secret-of-the-client"}
    with serving(World) as url:
        with connect(url.replace("http", "ws") + "/ws", additional_headers=headers) as socket:
            socket.send('{"type": "reset"}')
            assert json.loads(socket.recv(TIMEOUT_S))["type"] == "observation"
            refused = error(url, "tools/call", {"name": "add", "session_id": "chosen-by-the-client"})
            assert refused["data"]["code"] == "SESSION_LOST"
            with Frames(url, "?session_id=chosen-by-the-client") as frames:
                assert frames.hear()["data"]["code"] == "SESSION_LOST"


def test_an_agents_session_is_not_joined_by_its_id() -> None:
    async def agent(url: str) -> None:
        async with Client(f"{url}/mcp", mode="legacy") as client:
            assert (await client.call_tool("add", {})).data == 1
            sessions = (await asyncio.to_thread(httpx.get, f"{url}/sessions")).json()["sessions"]
            (own,) = [s["session_id"] for s in sessions if s["origin"] == "connection"]
            refused = await asyncio.to_thread(error, url, "tools/call", {"name": "add", "session_id": own})
            assert refused["data"]["code"] == "SESSION_LOST"
            assert (await client.call_tool("add", {})).data == 2

    with serving(World) as url:
        asyncio.run(agent(url))


# -- who may, and where


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Accept": "application/json, text/event-stream"}, LIST),
        ({"Accept": "Text/Event-Stream"}, LIST),
        ({"Mcp-Session-Id": "x", "Accept": "application/json"}, LIST),
        ({"MCP-Protocol-Version": "2025-11-25", "Accept": "application/json"}, LIST),
        ({"Accept": "application/json"}, {**LIST, "method": "initialize", "params": INITIALIZE}),
    ],
)
def test_invariant_3_what_an_mcp_client_sends_is_answered_by_mcp(
    url: str, headers: dict[str, str], body: dict[str, Any]
) -> None:
    # MCP refuses a request that is only half its own; OpenEnv's route would have answered it with status 200.
    assert httpx.post(f"{url}/mcp", json=body, headers=headers).status_code in (400, 404, 406)


def test_production_has_no_plain_json_rpc() -> None:
    with serving(World, mode="production") as url:
        response = httpx.post(f"{url}/mcp", json={**LIST, "method": "openenv/session/create"})
        assert response.status_code >= 400
        assert "session_id" not in response.text


def test_in_production_an_mcp_frame_needs_the_control_token_as_every_frame_does() -> None:
    with serving(World, ServerConfig(control_token=TOKEN), mode="production") as url:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with connect(url.replace("http", "ws") + "/ws", additional_headers=headers) as socket:
            socket.send(json.dumps({"type": "mcp", "data": LIST}))
            names = [tool["name"] for tool in json.loads(socket.recv(TIMEOUT_S))["data"]["result"]["tools"]]
        assert "ticket" in names and "hint" not in names


def test_where_a_control_token_is_set_it_is_needed() -> None:
    with serving(World, ServerConfig(control_token=TOKEN)) as url:
        for headers in ({}, {"Authorization": "Bearer of-somebody-else"}):
            response = httpx.post(f"{url}/mcp", json=LIST, headers=headers)
            assert response.status_code == 401
            assert response.json()["code"] == "UNAUTHORIZED"
        assert result(url, "tools/list", headers={"Authorization": f"Bearer {TOKEN}"})["tools"]


def test_an_agents_token_is_no_control_token() -> None:
    auth = agent_auth_from(tokens={"ada": "the-token-of-ada"})
    with serving(World, ServerConfig(control_token=TOKEN), auth=auth) as url:
        headers = {"Authorization": "Bearer the-token-of-ada"}
        assert httpx.post(f"{url}/mcp", json=LIST, headers=headers).status_code == 401


def test_at_addresses_of_their_own_only_the_control_plane_has_plain_json_rpc() -> None:
    server = EnvServer(World)
    agent = Starlette(routes=server.agent_routes(), lifespan=server.lifespan)
    with TestClient(agent, base_url="http://127.0.0.1") as client:
        answered = client.post("/mcp", json=LIST)
        assert answered.status_code >= 400 and "inputSchema" not in answered.text
    server = EnvServer(World)
    control = Starlette(routes=server.control_routes(), lifespan=server.lifespan)
    with TestClient(control, base_url="http://127.0.0.1") as client:
        assert client.post("/mcp", json=LIST).json()["result"]["tools"]
