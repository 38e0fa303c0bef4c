"""docs/reference/openenv-differences.md, row by row.

Each test shows what OpenEnv's own server does with the echo environment, and what mcpenv does.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import httpx
import pytest
from fastmcp import Client
from openenv_servers import ECHO, WITHOUT_GRADIO, openenvs_own_server, program, run, run_each
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from mcpenv_client import EnvClient, SessionLost

# Each process that imports OpenEnv needs seconds for it, and a test has up to four of them.
pytestmark = [pytest.mark.world, pytest.mark.timeout(300)]

TIMEOUT_S = 60


class Frames:
    """A raw control socket."""

    def __init__(self, url: str) -> None:
        self._manager = connect(url.replace("http", "ws") + "/ws")

    def __enter__(self) -> Frames:
        self.socket = self._manager.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._manager.__exit__(None, None, None)

    def send(self, frame: Any) -> dict[str, Any]:
        self.socket.send(json.dumps(frame))
        return self.hear()

    def hear(self) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(self.socket.recv(TIMEOUT_S))
        data: dict[str, Any] = reply["data"]
        return data

    def call(self, name: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self.send(
            {"type": "step", "data": {"type": "call_tool", "tool_name": name, "arguments": arguments}, **more}
        )

    def tools(self) -> dict[str, dict[str, Any]]:
        listed = self.send({"type": "step", "data": {"type": "list_tools"}})
        return {tool["name"]: tool for tool in listed["observation"]["tools"]}


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
def test_mcp_at_mcp_is_mcp(theirs: str, ours: str, era: Literal["legacy", "2026-07-28"]) -> None:
    async def use(url: str) -> Any:
        async with asyncio.timeout(TIMEOUT_S), Client(f"{url}/mcp", mode=era) as client:
            return (await client.call_tool("echo_message", {"message": "hello"})).data

    with pytest.raises(Exception, match=r"."):  # of many kinds: what answers is no MCP server
        asyncio.run(use(theirs))
    assert asyncio.run(use(ours)) == "hello"


def test_tools_of_one_mode_are_listed_and_can_be_called(theirs: str, ours: str) -> None:
    call = {"topics": ["to"]}
    with Frames(theirs) as frames:
        frames.send({"type": "reset"})
        assert "hint" not in frames.tools()
        assert frames.call("hint", call)["observation"]["error"]["error_type"] == "tool_not_found"
    with Frames(ours) as frames:
        frames.send({"type": "reset"})
        assert "hint" in frames.tools()
        assert frames.call("hint", call)["observation"]["result"]["data"] == "echo to"


def test_schemas_are_whole(theirs: str, ours: str) -> None:
    shown = (
        "import json; from server.echo_environment import EchoEnvironment as E; "
        "from openenv.core.env_server.mcp_types import ListToolsAction as L; e = E(); e._mode = 'simulation'; "
        "print(json.dumps({t.name: t.input_schema for t in e.step(L()).tools}))"
    )
    assert json.loads(run(WITHOUT_GRADIO + shown, cwd=ECHO))["hint"]["properties"]["topics"] == {"type": "string"}
    with Frames(theirs) as frames:
        assert frames.tools()["echo_message"].keys() == {"name", "description", "input_schema"}
    with Frames(ours) as frames:
        tools = frames.tools()
    assert tools["hint"]["input_schema"]["properties"]["topics"] == {"type": "array", "items": {"type": "string"}}
    assert tools["echo_message"]["output_schema"]["properties"] == {"result": {"type": "string"}}


def test_errors_are_sorted_by_type(theirs: str, ours: str) -> None:
    kinds = []
    for url in (theirs, ours):
        with Frames(url) as frames:
            frames.send({"type": "reset"})
            failed = frames.call("echo_with_length", {"message": "x", "times": 0})
            kinds.append(failed["observation"]["error"]["error_type"])
    assert kinds == ["invalid_args", "execution_error"]


def test_a_rubric_scores_tool_calls(theirs: str, ours: str) -> None:
    rewards = []
    for url in (theirs, ours):
        with Frames(url) as frames:
            frames.send({"type": "reset"})
            rewards.append(frames.call("echo_message", {"message": "two words"})["reward"])
    assert rewards == [None, 0.2]


def test_calls_over_json_rpc_are_steps(theirs: str, ours: str) -> None:
    counts = []
    for url in (theirs, ours):
        call = {"name": "echo_message", "arguments": {"message": "hello"}}
        with Frames(url) as frames:
            frames.send({"type": "reset"})
            answered = frames.send(
                {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}}
            )
            assert answered["result"]["data"] == "hello"
            counts.append(frames.send({"type": "state"})["step_count"])
    assert counts == [0, 1]


@pytest.mark.parametrize("frame", [[], 5, "reset", None])
def test_a_bad_frame_keeps_the_session(theirs: str, ours: str, frame: Any) -> None:
    with Frames(theirs) as frames:
        frames.send({"type": "reset"})
        assert frames.send(frame)["code"] == "SESSION_ERROR"
        with pytest.raises(ConnectionClosed):
            frames.hear()
    with Frames(ours) as frames:
        frames.send({"type": "reset"})
        frames.call("echo_message", {"message": "one"})
        assert frames.send(frame)["code"] == "VALIDATION_ERROR"
        assert frames.send({"type": "state"})["step_count"] == 1


def test_a_step_over_the_wire_has_a_deadline(theirs: str, ours: str) -> None:
    late = {"message": "x", "seconds": 30}
    with Frames(theirs) as frames:
        frames.send({"type": "reset"})
        assert frames.call("echo_late", late, timeout_s=0.1)["code"] == "VALIDATION_ERROR"
    with Frames(ours) as frames:
        frames.send({"type": "reset"})
        assert frames.call("echo_late", late, timeout_s=0.1)["observation"]["error"]["error_type"] == "timeout"


def test_after_a_timeout_nobody_slides_into_a_new_episode(theirs: str, ours: str) -> None:
    late, after, episode_id, steps = json.loads(run_each(program("impatient", theirs))[0])
    assert (late, after, steps) == ("timed out", "three", 1)
    assert episode_id != "mine"
    with EnvClient(ours, message_timeout_s=0.5).sync() as env:
        env.reset(episode_id="mine")
        env.call_tool("echo_message", {"message": "one"})
        with pytest.raises(SessionLost):
            env.call_tool("echo_late", {"message": "two", "seconds": 30})
        with pytest.raises(SessionLost):
            env.call_tool("echo_message", {"message": "three"})


def test_production_has_no_control_routes_with_a_web_page_on(ours_in_production: str) -> None:
    with openenvs_own_server(ECHO, OPENENV_MODE="production", ENABLE_WEB_INTERFACE="true") as url:
        assert httpx.post(f"{url}/reset").status_code == 404
        assert httpx.post(f"{url}/web/reset", timeout=TIMEOUT_S).status_code == 200
    url = ours_in_production
    assert httpx.get(f"{url}/docs").status_code == 200
    paths = ("/reset", "/step", "/web/reset", "/web/step", "/openenv_echo/tasks")
    assert [httpx.post(url + path).status_code for path in paths] == [404] * len(paths)
    assert [httpx.get(url + path).status_code for path in ("/state", "/web/state", "/sessions")] == [404] * 3
