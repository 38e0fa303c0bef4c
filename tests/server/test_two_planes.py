"""Two planes, one episode: handles, wait, trajectory, cancel, exactly once, resume, credentials, capacity."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from fastmcp.exceptions import ToolError
from fault_bench import ERAS, agent, control
from mcp.shared.exceptions import MCPError
from slow_world import Slow, until, with_own_log
from websockets.exceptions import ConnectionClosed, InvalidStatus
from worlds import World

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.security.control_auth import AgentTokens
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, SessionLost

SECRET = {"mcpenv-session-id": "session-number-0001", "mcpenv-session-token": "a-long-enough-secret"}


def run(main: Any) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


@pytest.mark.parametrize("era", ERAS)
def test_invariant_2_an_agent_acts_and_the_orchestrator_gets_the_reward(era: str) -> None:
    async def main(url: str) -> None:
        async with control(url) as orchestrator:
            reset = await orchestrator.ask("reset", {"start": 98})
            mcp_url = reset["data"]["info"]["mcp_url"]
            await orchestrator.send("wait", request_id="w")
            async with agent(mcp_url, era) as client:
                names = {tool.name for tool in await client.list_tools()}
                assert not names & {"reset", "step", "state", "close"}
                first = await client.call_tool("add")
                assert first.data == 99
                last = await client.call_tool("add")
                for result in (first, last):
                    seen = json.dumps([result.structured_content, result.meta, [str(b) for b in result.content]])
                    assert "reward" not in seen
                    assert "done" not in seen
                with pytest.raises(ToolError, match=r"The episode is over\."):
                    await client.call_tool("add")
                assert await client.list_tools()
            done = await orchestrator.hear()
            assert done["request_id"] == "w"
            assert done["data"]["done"] is True
            assert done["data"]["reward"] == 10.5
            assert done["data"]["info"]["return"] == 11.0
            trajectory = (await orchestrator.ask("trajectory"))["data"]
            assert [step["call"]["plane"] for step in trajectory["steps"]] == ["agent", "agent"]
            assert [step["reward"]["value"] for step in trajectory["steps"]] == [0.5, 10.5]

    with serving(World) as url:
        run(main(url))


@pytest.fixture
def slow() -> type[Slow]:
    return with_own_log()


def test_cancel_stops_a_step_under_way(slow: type[Slow]) -> None:
    async def main(url: str) -> None:
        async with control(url) as orchestrator:
            await orchestrator.ask("reset")
            await orchestrator.send("step", {"type": "call_tool", "tool_name": "wait"}, request_id="s")
            await until(slow.log, "began")
            await orchestrator.send("cancel", {"request_id": "s"}, request_id="c")
            replies = {reply["request_id"]: reply for reply in [await orchestrator.hear(), await orchestrator.hear()]}
            assert replies["c"] == {"type": "cancel", "data": {"cancelled": True}, "request_id": "c"}
            assert replies["s"]["data"]["code"] == "CANCELLED"
            assert "stopped" in slow.log
            assert (await orchestrator.ask("cancel", {"request_id": "s"}))["data"] == {"cancelled": False}
            assert (await orchestrator.ask("cancel"))["data"]["code"] == "VALIDATION_ERROR"
            again = await orchestrator.call("wait", request_id="s")
            assert again["data"]["code"] in ("CANCELLED", "VALIDATION_ERROR")
            assert (await orchestrator.call("count"))["data"]["observation"]["result"]["data"] == 1

    with serving(slow) as url:
        run(main(url))


def test_resuming_needs_the_secret_and_something_to_resume(slow: type[Slow]) -> None:
    async def refused(url: str, headers: dict[str, str], query: str = "?resume=1") -> str:
        async with control(url, query, additional_headers=headers) as orchestrator:
            code: str = (await orchestrator.hear())["data"]["code"]
            with pytest.raises(ConnectionClosed):
                await orchestrator.hear()
            return code

    async def main(url: str) -> None:
        assert await refused(url, SECRET) == "SESSION_LOST"
        assert await refused(url, SECRET, "?resume") == "SESSION_LOST"
        assert await refused(url, {}) == "VALIDATION_ERROR"
        assert await refused(url, {}, "?protocol=") == "UNSUPPORTED_VERSION"
        assert (
            await refused(url, {"mcpenv-session-id": "short", "mcpenv-session-token": "x" * 20}) == "VALIDATION_ERROR"
        )
        async with control(url, additional_headers=SECRET) as orchestrator:
            await orchestrator.ask("reset")
            wrong = {**SECRET, "mcpenv-session-token": "not-the-right-secret"}
            assert await refused(url, wrong) == "UNAUTHORIZED"
            assert await refused(url, wrong, "") == "UNAUTHORIZED"
            assert (await orchestrator.ask("state"))["type"] == "state"

    with serving(slow, ServerConfig(resume_grace_s=30)) as url:
        run(main(url))


def test_the_grace_ends(slow: type[Slow]) -> None:
    async def main(url: str) -> None:
        async with control(url, additional_headers=SECRET) as orchestrator:
            await orchestrator.ask("reset")
            await orchestrator.send("step", {"type": "call_tool", "tool_name": "wait"}, request_id="s")
            await until(slow.log, "began")
            orchestrator.socket.transport.abort()
        await until(slow.log, "stopped")
        await until(slow.log, "closed", 2)
        async with control(url, "?resume=1", additional_headers=SECRET) as orchestrator:
            assert (await orchestrator.hear())["data"]["code"] == "SESSION_LOST"

    with serving(slow, ServerConfig(resume_grace_s=0.05)) as url:
        run(main(url))


def test_sessions_and_capacity_say_what_runs() -> None:
    async def main(url: str) -> None:
        async with control(url) as orchestrator, httpx.AsyncClient(base_url=url) as http:
            assert (await orchestrator.ask("state"))["data"]["step_count"] == 0  # from then on the session is there
            assert (await http.get("/sessions")).json()["sessions"][0]["state"] == "new"
            mcp_url = (await orchestrator.ask("reset"))["data"]["info"]["mcp_url"]
            async with agent(mcp_url, "2026-07-28") as client:
                await client.call_tool("add")
            (listed,) = (await http.get("/sessions")).json()["sessions"]
            assert listed["planes"] == ["control", "agent"]
            assert listed["step_count"] == 1
            assert (await http.get(f"/sessions/{listed['session_id']}")).json()["origin"] == "socket"
            opened = (await http.post("/sessions")).json()
            assert opened["state"] == "new"
            assert (await http.get("/capacity")).json()["active_sessions"] == 2
            assert (await http.delete(f"/sessions/{opened['session_id']}")).json()["closed"] is True
            assert (await http.get(f"/sessions/{opened['session_id']}")).status_code == 404
            await http.delete(f"/sessions/{listed['session_id']}")
            with pytest.raises(ConnectionClosed):
                await orchestrator.hear()

    with serving(World) as url:
        run(main(url))


def test_the_control_plane_needs_its_token() -> None:
    async def main(url: str) -> None:
        right = {"Authorization": "Bearer the-control-token"}
        async with httpx.AsyncClient(base_url=url) as http:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic dGhlOng="}):
                for method, path in (("POST", "/reset"), ("POST", "/step"), ("GET", "/state"), ("GET", "/sessions")):
                    response = await http.request(method, path, headers=headers)
                    assert response.status_code == 401
                    assert response.json()["code"] == "UNAUTHORIZED"
            assert (await http.post("/reset", headers=right)).status_code == 200
            assert (await http.get("/health")).status_code == 200
        with pytest.raises(InvalidStatus, match="401"):
            async with control(url):
                pass
        async with control(url, additional_headers=right) as orchestrator:
            assert (await orchestrator.ask("reset"))["type"] == "observation"
        subprotocols = ["mcpenv", "mcpenv.token.dGhlLWNvbnRyb2wtdG9rZW4"]
        async with control(url, subprotocols=subprotocols) as orchestrator:
            assert (await orchestrator.ask("reset"))["type"] == "observation"

    with serving(World, ServerConfig(control_token="the-control-token")) as url:
        run(main(url))


@pytest.mark.parametrize("era", ERAS)
def test_agents_with_tokens_have_their_own_worlds_and_handles_check_both(era: str) -> None:
    tokens = AgentTokens({"ada": "ada-secret-token", "bob": "bob-secret-token"})

    async def main(url: str) -> None:
        for _ in range(2):
            async with agent(f"{url}/mcp", era, "ada-secret-token") as client:
                result = await client.call_tool("add")
        assert result.data == 2
        async with agent(f"{url}/mcp", era, "bob-secret-token") as client:
            assert (await client.call_tool("add")).data == 1
        async with control(url) as orchestrator:
            mcp_url = (await orchestrator.ask("reset"))["data"]["info"]["mcp_url"]
            for token in (None, "wrong-secret-token"):
                with pytest.raises((MCPError, RuntimeError, httpx.HTTPError)):
                    async with agent(mcp_url, era, token) as client:
                        await client.call_tool("add")
            async with agent(mcp_url, era, "ada-secret-token") as client:
                assert (await client.call_tool("add")).data == 1
            (step,) = (await orchestrator.ask("trajectory"))["data"]["steps"]
            assert step["call"]["principal"] == "ada"

    with serving(World, auth=tokens) as url:
        run(main(url))


def test_the_public_url_stands_in_mcp_url() -> None:
    with serving(World, ServerConfig(public_url="https://env.example/base")) as url:
        assert httpx.post(url + "/reset").json()["info"]["mcp_url"].startswith("https://env.example/base/episodes/")
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "proxy.example"}
    with serving(World) as url:
        assert httpx.post(url + "/reset", headers=forwarded).json()["info"]["mcp_url"].startswith(url)
    for proxies, believed in ((("127.0.0.1",), True), (("::1", "127.0.0.0/8"), True), (("10.0.0.0/8",), False)):
        with serving(World, ServerConfig(trusted_proxies=proxies)) as url:
            mcp_url = httpx.post(url + "/reset", headers=forwarded).json()["info"]["mcp_url"]
            assert mcp_url.startswith("https://proxy.example/episodes/" if believed else url)


@pytest.mark.parametrize("era", ERAS)
def test_an_agent_that_asks_too_often_is_refused_and_nobody_else_is(era: str) -> None:
    async def main(url: str) -> None:
        async with control(url) as orchestrator, control(url) as other:
            mcp_url, theirs = [(await each.ask("reset"))["data"]["info"]["mcp_url"] for each in (orchestrator, other)]
            taken = 0
            async with agent(mcp_url, era) as client:
                with pytest.raises(ToolError, match=r"too many requests: at most 5 a second; try again in 0\.\d s"):
                    for _ in range(1000):
                        taken = (await client.call_tool("add")).data
            assert taken > 0
            async with agent(theirs, era) as client:
                assert (await client.call_tool("add")).data == 1
            assert (await orchestrator.ask("state"))["data"]["step_count"] == taken

    with serving(World, ServerConfig(max_requests_per_s=5)) as url:
        run(main(url))


def test_more_calls_at_once_than_a_session_takes_are_refused_and_are_no_steps() -> None:
    gate = threading.Event()

    class Slow(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            @self.tool
            def hold() -> str:
                """Wait for the gate."""
                gate.wait(30)
                return "held"

    async def main(url: str) -> None:
        async with control(url) as orchestrator, httpx.AsyncClient(base_url=url) as http:
            mcp_url = (await orchestrator.ask("reset"))["data"]["info"]["mcp_url"]
            refused = asyncio.Event()

            async def call() -> str:
                async with agent(mcp_url, "2026-07-28") as client:
                    try:
                        return str((await client.call_tool("hold")).data)
                    except ToolError as error:
                        refused.set()
                        return str(error)

            calls = [asyncio.create_task(call()) for _ in range(3)]
            await refused.wait()
            session_id = (await http.post("/reset")).json()["session_id"]
            body = {"session_id": session_id, "action": {"type": "call_tool", "tool_name": "hold"}}
            steps = [asyncio.create_task(http.post("/step", json=body, timeout=30)) for _ in range(3)]
            done, _ = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
            gate.set()
            assert [(step.result().status_code, step.result().json()["code"]) for step in done] == [
                (429, "RATE_LIMITED")
            ]
            assert sorted([step.status_code for step in await asyncio.gather(*steps)]) == [200, 200, 429]
            said = sorted(await asyncio.gather(*calls))
            assert said == ["2 calls are under way or wait their turn; no more are taken", "held", "held"]
            assert (await orchestrator.ask("state"))["data"]["step_count"] == 2

    with serving(Slow, ServerConfig(max_calls_in_flight=2)) as url:
        run(main(url))


def test_a_client_that_gave_its_lost_session_up_is_not_kept_out_by_it() -> None:
    class One(World):
        SUPPORTS_CONCURRENT_SESSIONS = False

    async def main(url: str) -> None:
        async with EnvClient(url, resume=True) as client, httpx.AsyncClient(base_url=url) as http:
            await client.reset()
            connection = client._session.connection
            assert connection is not None
            connection.abandon()
            await client.reset()
            assert (await client.call_tool("add")).text == "1"
            assert len((await http.get("/sessions")).json()["sessions"]) == 1

    with serving(One, ServerConfig(resume_grace_s=300, queue_timeout_s=20)) as url:
        run(main(url))


def test_who_loses_a_session_by_somebodys_word_is_told_so() -> None:
    async def main(url: str) -> None:
        async with EnvClient(url) as client, httpx.AsyncClient(base_url=url) as http:
            await client.reset()
            (session,) = (await http.get("/sessions")).json()["sessions"]
            await http.delete(f"/sessions/{session['session_id']}")
            with pytest.raises(SessionLost, match="this session was ended"):
                while True:
                    await client.call_tool("add")

    with serving(World) as url:
        run(main(url))


def test_the_size_of_a_frame_is_counted_in_bytes() -> None:
    async def main(url: str) -> None:
        async with control(url) as orchestrator:
            await orchestrator.socket.send(
                json.dumps({"type": "reset", "data": {"a": "\u4e16" * 400}}, ensure_ascii=False)
            )
            refused = await orchestrator.hear()
            assert refused["data"]["message"] == "the frame has more than 1000 bytes; send less at once"

    with serving(World, ServerConfig(max_message_bytes=1000)) as url:
        run(main(url))
