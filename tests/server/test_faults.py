"""Faults, each brought about for real over sockets. docs/reference/faults.md has the table.

After each: the slots are right, no thread, task, socket or instance is left, and a witness with a session of its own
noticed nothing (`beside_a_witness`).
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastmcp.exceptions import ToolError
from fault_bench import (
    ADD,
    ERAS,
    PATIENCE_S,
    Bench,
    Control,
    agent,
    beside_a_witness,
    control,
    modern,
    run,
    until,
    wire,
    wire_socket,
)
from fault_worlds import (
    FAULTS,
    AsyncClosing,
    AsyncStages,
    Counted,
    EveryThird,
    Faulty,
    Gate,
    Gated,
    Stages,
    WithServer,
)
from mcp.shared.exceptions import MCPError
from websockets.exceptions import ConnectionClosed

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

HERE = Path(__file__).parents[1]
OVER = "The episode is over."
PING_S = 1.0
"""Between pings, and to wait for a pong; the witness answers in time also where the machine is busy."""
RESUMABLE = {"mcpenv-session-id": "session-number-0001", "mcpenv-session-token": "a-long-enough-secret"}


@pytest.fixture(autouse=True)
def no_log_holds_an_instance(caplog: pytest.LogCaptureFixture) -> None:
    """Keep pytest from capturing tracebacks: they hold the instances that are counted here."""
    for name in ("mcpenv", "uvicorn", "uvicorn.error"):
        caplog.set_level("CRITICAL", name)


@pytest.fixture
def world() -> type[Faulty]:
    class Own(Faulty):
        """A census and a gate of its own."""

    return Own


@pytest.fixture
def gated() -> type[Gated]:
    class Own(Gated):
        """A census and a gate of its own."""

    return Own


async def begun(orchestrator: Control) -> str:
    """Begin an episode; the address for its agent."""
    reply = await orchestrator.ask("reset")
    url: str = reply["data"]["info"]["mcp_url"]
    return url


def value(reply: dict[str, Any]) -> Any:
    """Return the text of a tool's result."""
    return reply["data"]["observation"]["result"]["data"]


def failure(reply: dict[str, Any]) -> dict[str, str]:
    """Return the message of a tool's failure."""
    assert reply["type"] == "observation", reply
    error: dict[str, str] = reply["data"]["observation"]["error"]
    return error


# -- the network


def test_a_socket_cut_in_the_middle_of_a_frame_ends_its_own_session_alone(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        for upto in (1, 4, 7, 20):
            async with wire_socket(bench.url) as cut:
                await cut.frame({"type": "reset"})
                await until(lambda: bench.census.in_use == 2, "a session of its own")
                await cut.frame({"type": "step", "data": ADD}, upto=upto)
                await bench.unaffected()
                cut.cut()
            await until(lambda: bench.census.in_use == 1, "its end")

    beside_a_witness(world, fault)


def test_a_handshake_or_a_body_cut_half_way_leaves_nothing(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        for start in (
            b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: webs",
            b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        ):
            async with wire(bench.url) as cut:
                cut.writer.write(start)
                await cut.writer.drain()
        for path in ("/reset", "/step", "/sessions", "/mcp"):
            async with wire(bench.url) as cut:
                head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
                cut.writer.write(f"{head}Content-Type: application/json\r\n\r\n{{".encode())
                await cut.writer.drain()
        await bench.unaffected()

    beside_a_witness(world, fault)


@pytest.mark.parametrize("request_id", [None, "s"])
def test_a_socket_cut_in_the_middle_of_a_step_stops_the_step(world: type[Faulty], request_id: str | None) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url) as cut:
            await cut.ask("reset")
            await cut.begin("hold", **({} if request_id is None else {"request_id": request_id}))
            await bench.inside()
            await bench.unaffected()
            cut.cut()
        await until(lambda: bench.gate.inside == 0, "the tool stopped")

    beside_a_witness(world, fault)


@pytest.mark.parametrize("tool", ["hold", "block"])
@pytest.mark.parametrize("lost", ["cut", "evicted"])
def test_a_step_without_an_id_goes_on_while_its_client_may_come_back(world: type[Faulty], tool: str, lost: str) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url, additional_headers=RESUMABLE) as first:
            await begun(first)
            await first.begin(tool)
            await bench.inside()
            if lost == "cut":
                first.cut()
            async with control(bench.url, "?resume=1", additional_headers=RESUMABLE) as second:
                with pytest.raises(ConnectionClosed):
                    await first.hear()
                assert (await second.ask("trajectory"))["data"]["steps"] == []
                bench.gate.open()
                assert (await second.call("submit"))["data"]["done"] is True
                steps = (await second.ask("trajectory"))["data"]["steps"]
                assert [(step["call"]["name"], step["reward"]["value"]) for step in steps] == [(tool, 1), ("submit", 1)]
                await second.send("close")

    beside_a_witness(world, fault, ServerConfig(resume_grace_s=PATIENCE_S))


def test_a_socket_cut_while_its_agent_acts_stops_the_agents_call(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url) as cut:
            async with agent(await begun(cut)) as client:
                calling = asyncio.create_task(client.call_tool("hold"))
                await bench.inside()
                cut.cut()
                await until(lambda: bench.gate.inside == 0, "the tool stopped")
                with pytest.raises(ToolError, match="over"):
                    await calling

    beside_a_witness(world, fault)


@pytest.mark.parametrize("era", ERAS)
def test_an_agent_that_leaves_in_the_middle_of_its_call_stops_the_call_and_not_the_episode(
    world: type[Faulty], era: str
) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url) as orchestrator:
            mcp_url = await begun(orchestrator)
            if era == "2026-07-28":
                body, headers = modern("tools/call", {"name": "hold", "arguments": {}})
                async with wire(bench.url) as cut:
                    await cut.post("/" + mcp_url.split("/", 3)[3], body, headers)
                    await bench.inside()
                    cut.cut()
            else:
                async with agent(mcp_url, era) as client:
                    calling = asyncio.create_task(client.call_tool("hold"))
                    await bench.inside()
                    calling.cancel()
                    await asyncio.wait({calling})
            await until(lambda: bench.gate.inside == 0, "the tool stopped")
            reply = await orchestrator.call("add")
            assert value(reply) == 2
            steps = (await orchestrator.ask("trajectory"))["data"]["steps"]
            assert [step["call"]["plane"] for step in steps] == ["agent", "control"]

    beside_a_witness(world, fault)


def test_a_client_that_never_reads_is_found_and_holds_up_nobody(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async with wire_socket(bench.url) as deaf:
            for _ in range(12):
                await deaf.frame({"type": "step", "data": {**ADD, "tool_name": "big", "arguments": {"megabytes": 2}}})
            await until(lambda: bench.census.in_use == 2, "a session of its own")
            await bench.unaffected()
            # The connection stays open at this end, and full.
            await until(lambda: bench.census.in_use == 1, "the end of the session")
            await bench.unaffected()

    beside_a_witness(world, fault, ServerConfig(ping_interval_s=PING_S))


def test_a_client_that_never_reads_and_says_goodbye_is_not_waited_for(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async with wire_socket(bench.url) as deaf:
            for _ in range(12):
                await deaf.frame({"type": "step", "data": {**ADD, "tool_name": "big", "arguments": {"megabytes": 2}}})
            await until(lambda: bench.census.in_use == 2, "a session of its own")
            deaf.writer.write(b"\x88\x80\x00\x00\x00\x00")  # a close frame
            await deaf.writer.drain()
            await until(lambda: bench.census.in_use == 1, "the end of the session")

    beside_a_witness(world, fault, ServerConfig(ping_interval_s=PING_S))


@pytest.mark.parametrize("doing", ["nothing", "hold"])
def test_a_half_open_peer_is_found_by_keep_alive(world: type[Faulty], doing: str) -> None:
    async def fault(bench: Bench) -> None:
        async with wire_socket(bench.url) as gone:
            await gone.frame({"type": "reset"})
            if doing == "hold":
                await gone.frame({"type": "step", "data": {**ADD, "tool_name": "hold"}})
                await bench.inside()
            await until(lambda: bench.census.in_use == 2, "a session of its own")
            await until(lambda: bench.census.in_use == 1, "its end")
            assert bench.gate.inside == 0

    beside_a_witness(world, fault, ServerConfig(ping_interval_s=PING_S))


def test_a_client_that_sends_faster_than_it_is_answered_loses_nothing(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url) as eager:
            await eager.ask("reset")
            await eager.begin("hold")
            await bench.inside()
            for number in range(600):
                await eager.begin("add", **({} if number % 3 else {"request_id": f"r{number}"}))
            # Longer than keep-alive has patience with a silent peer; this one answers its pings.
            for _ in range(6):
                await asyncio.sleep(PING_S / 2)
                await bench.unaffected()
            bench.gate.open()
            assert value(await eager.hear()) == 1
            replies = [await eager.hear() for _ in range(600)]
            assert [value(reply) for reply in replies] == list(range(2, 602))
            assert [reply.get("request_id") for reply in replies] == [
                None if number % 3 else f"r{number}" for number in range(600)
            ]

    beside_a_witness(world, fault, ServerConfig(ping_interval_s=PING_S))


# -- code that goes wrong


@asynccontextmanager
async def caller(bench: Bench, plane: str) -> AsyncIterator[Any]:
    """A function that calls a tool by the given plane; it gives the failure's text, or the value."""
    async with AsyncExitStack() as stack:
        if plane == "http":
            session_id = (await bench.http.post("/reset")).json()["session_id"]

            async def call(tool: str, arguments: dict[str, Any]) -> tuple[str | None, Any]:
                action = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
                response = await bench.http.post("/step", json={"session_id": session_id, "action": action})
                assert response.status_code == 200, response.text
                observation = response.json()["observation"]
                if observation["error"] is not None:
                    return observation["error"]["message"], None
                return None, observation["result"]["data"]

            stack.push_async_callback(bench.http.delete, f"/sessions/{session_id}")
        elif plane == "ws":
            orchestrator = await stack.enter_async_context(control(bench.url))
            await orchestrator.ask("reset")

            async def call(tool: str, arguments: dict[str, Any]) -> tuple[str | None, Any]:
                reply = await orchestrator.call(tool, arguments)
                observation = reply["data"]["observation"]
                if observation["error"] is not None:
                    return observation["error"]["message"], None
                return None, observation["result"]["data"]
        else:
            orchestrator = await stack.enter_async_context(control(bench.url))
            client = await stack.enter_async_context(agent(await begun(orchestrator), plane))

            async def call(tool: str, arguments: dict[str, Any]) -> tuple[str | None, Any]:
                try:
                    return None, (await client.call_tool(tool, arguments)).data
                except ToolError as error:
                    return str(error), None

        yield call


PLANES = ("ws", "http", *ERAS)


@pytest.mark.parametrize("plane", PLANES)
def test_whatever_a_tool_raises_is_a_failure_of_that_call(world: type[Faulty], plane: str) -> None:
    async def fault(bench: Bench) -> None:
        async with caller(bench, plane) as call:
            for kind in FAULTS:
                for tool in ("crash", "crash_async"):
                    said, _ = await call(tool, {"kind": kind})
                    assert said is not None, (tool, kind)
                    assert "Traceback" not in said
            assert await call("abandoned", {}) != (None, "never")
            await bench.unaffected()
            assert await call("add", {}) == (None, 1)

    beside_a_witness(world, fault)


@pytest.mark.parametrize("base", [Stages, AsyncStages])
@pytest.mark.parametrize("stage", ["reset", "score", "state", "close"])
def test_whatever_a_stage_raises_is_an_error_of_that_request(stage: str, base: type[Stages]) -> None:
    class Own(base):  # type: ignore[misc,valid-type]
        pass

    async def fault(bench: Bench) -> None:
        for kind in ("RuntimeError", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError"):
            Own.kind = kind
            await raised(bench)

    async def raised(bench: Bench) -> None:
        async with control(bench.url) as orchestrator:
            await orchestrator.ask("reset")
            Own.stage = stage
            asked: dict[str, tuple[str, Any]] = {
                "reset": ("reset", None),
                "score": ("step", {**ADD, "tool_name": "ping"}),
                "state": ("state", None),
            }
            if stage in asked:
                frame, data = asked[stage]
                error = (await orchestrator.ask(frame, data))["data"]
                assert error["code"] == "EXECUTION_ERROR"
                assert error["incident"] in error["message"] and "this went wrong" not in error["message"]
            if stage == "score":
                assert (await orchestrator.call("ping_async"))["data"]["code"] == "EXECUTION_ERROR"
            if stage != "close":
                Own.stage = ""
                await orchestrator.ask("reset")
                assert value(await orchestrator.call("ping")) == "pong"
        # An author's close that raises still closes.
        await until(lambda: bench.census.in_use == 1, "closed")
        Own.stage = ""

    beside_a_witness(Own, fault)


@pytest.mark.parametrize("plane", PLANES)
def test_a_tool_that_exhausts_the_stack_fails_alone(world: type[Faulty], plane: str) -> None:
    async def fault(bench: Bench) -> None:
        async with caller(bench, plane) as call:
            for tool, arguments in (
                ("recurse", {}),
                ("recurse_async", {}),
                ("cyclic", {}),
                ("deep", {"levels": 5_000}),
                ("deep", {"levels": 200_000}),
            ):
                said, _ = await call(tool, arguments)
                assert said is not None, tool
                await bench.unaffected()
            assert await call("add", {}) == (None, 1)

    beside_a_witness(world, fault)


@pytest.mark.slow
@pytest.mark.parametrize("plane", PLANES)
def test_a_result_of_50_megabytes_arrives_or_fails_loudly(world: type[Faulty], plane: str) -> None:
    async def fault(bench: Bench) -> None:
        async with caller(bench, plane) as call:
            if plane == "legacy":  # the stock client of that era reads no event above 1 MiB, and says so
                with pytest.raises(MCPError, match="1048576 byte limit"):
                    await call("big", {"megabytes": 50})
            else:
                said, text = await call("big", {"megabytes": 50})
                assert said is None
                assert len(text) == 50 * 1024 * 1024
                del text
            await bench.unaffected()
            assert await call("add", {}) == (None, 1)

    beside_a_witness(world, fault)


@pytest.mark.parametrize("base", [Faulty, AsyncClosing, Gated, WithServer])
@pytest.mark.parametrize("plane", ["ws", "2026-07-28"])
def test_a_tool_that_blocks_for_ever_is_quarantined_until_it_returns(base: type[Counted], plane: str) -> None:
    class Own(base):  # type: ignore[misc,valid-type]
        """A census and a gate of its own."""

    async def fault(bench: Bench) -> None:
        async with control(bench.url) as orchestrator:
            mcp_url = await begun(orchestrator)
            if plane == "ws":
                late = await orchestrator.call("block", timeout_s=0.05)
                assert failure(late)["error_type"] == "timeout"
                assert late["data"]["truncated"] is True
            else:
                async with agent(mcp_url) as client:
                    calling = asyncio.create_task(client.call_tool("block"))
                    await bench.inside()
                    calling.cancel()
                    await asyncio.wait({calling})
                # The call runs on without its client, until the server's deadline.
                done = await orchestrator.ask("wait", {"timeout_s": PATIENCE_S})
                assert done["data"]["truncated"] is True
            assert (await bench.capacity())["quarantined"] == 1
            assert (await bench.capacity())["active_sessions"] == 2
            assert (await orchestrator.call("add"))["data"]["code"] == "EPISODE_DONE"
            assert (await orchestrator.ask("reset"))["type"] == "observation"
            assert value(await orchestrator.call("add")) == 1
            await bench.unaffected()
            assert (await bench.capacity())["active_sessions"] == 2
        await bench.nothing_left(quarantined=1)
        bench.gate.open()

    beside_a_witness(Own, fault, ServerConfig(step_timeout_s=1.0))


async def blocked_and_returned(bench: Bench, orchestrator: Control) -> None:
    """Return a session whose abandoned tool has returned, without a reset since."""
    assert failure(await orchestrator.call("block", timeout_s=0.05))["error_type"] == "timeout"
    bench.gate.open()
    async with asyncio.timeout(PATIENCE_S):
        while (await bench.capacity())["quarantined"]:
            await asyncio.sleep(0.005)


@pytest.mark.one_worker("it counts instances, and each worker makes a prototype")
@pytest.mark.parametrize("affine", [False, True])
def test_invariant_6_an_instance_whose_blocked_tool_has_returned_is_closed_where_its_code_belongs(affine: bool) -> None:
    closed: list[tuple[threading.Thread, threading.Thread]] = []

    class Own(Faulty):
        """Knows its threads."""

        THREAD_AFFINE = affine

        def __init__(self) -> None:
            super().__init__()
            self.made_in = threading.current_thread()

        def close(self) -> None:
            closed.append((self.made_in, threading.current_thread()))
            super().close()

    async def fault(bench: Bench) -> None:
        async with control(bench.url) as orchestrator:
            await begun(orchestrator)
            await blocked_and_returned(bench, orchestrator)
            await begun(orchestrator)

    beside_a_witness(Own, fault)
    assert len(closed) == 4  # the prototype's, the witness's, and two of one session
    for made_in, closed_in in closed:
        assert closed_in.name != "mcpenv-serving"
        assert closed_in is made_in or not affine


def test_a_past_episode_lists_its_tools_also_when_its_blocked_tool_had_returned() -> None:
    class Own(Faulty):
        """Its instances alone know their tools."""

        DYNAMIC_TOOLS = True

    async def fault(bench: Bench) -> None:
        async with control(bench.url) as orchestrator:
            mcp_url = await begun(orchestrator)
            await blocked_and_returned(bench, orchestrator)
            await begun(orchestrator)
            async with agent(mcp_url) as late:
                assert "block" in {tool.name for tool in await late.list_tools()}
                with pytest.raises(ToolError, match=OVER):
                    await late.call_tool("add")

    beside_a_witness(Own, fault)


@pytest.mark.one_worker("it counts instances, and each worker makes a prototype")
def test_an_instance_in_which_two_tools_blocked_is_closed_when_both_have_returned() -> None:
    other, beside = Gate(), list[int]()

    class Own(Faulty):
        """Two tools that block beside each other."""

        def __init__(self) -> None:
            super().__init__()

            @self.tool(concurrent=True, timeout_s=0.2)
            def first() -> None:
                """Block until one gate opens."""
                self.gate.wait()

            @self.tool(concurrent=True, timeout_s=0.2)
            def second() -> None:
                """Block until the other gate opens."""
                other.wait()

        def close(self) -> None:
            beside.append(other.inside)
            super().close()

    async def fault(bench: Bench) -> None:
        async with control(bench.url) as orchestrator, agent(await begun(orchestrator)) as client:
            calls = [asyncio.create_task(client.call_tool(name)) for name in ("first", "second")]
            await asyncio.wait(calls)
            assert all(isinstance(call.exception(), ToolError) for call in calls)
            await bench.inside()
            await until(lambda: other.inside == 1, "both inside")
        bench.gate.open()
        await until(lambda: bench.gate.inside == 0, "one returned")
        await bench.unaffected()
        assert (await bench.capacity())["quarantined"] == 1
        other.open()

    beside_a_witness(Own, fault)
    assert beside == [0, 0, 0]


def test_above_the_limit_of_quarantine_new_sessions_are_refused_until_one_returns(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        for _ in range(3):
            async with control(bench.url) as orchestrator:
                await orchestrator.ask("reset")
                await orchestrator.call("block", timeout_s=0.05)
        assert (await bench.capacity())["quarantined"] == 3
        assert (await bench.http.get("/ready")).status_code == 503
        async with control(bench.url) as refused:
            assert (await refused.hear())["data"]["code"] == "CAPACITY_REACHED"
        response = await bench.http.post("/reset")
        assert (response.status_code, response.json()["code"]) == (503, "CAPACITY_REACHED")
        assert "retry-after" in response.headers
        await bench.unaffected()
        bench.gate.open()
        await until(lambda: bench.gate.inside == 0, "returned")
        await bench.nothing_left()
        assert (await bench.http.get("/ready")).status_code == 200

    beside_a_witness(world, fault, ServerConfig(max_quarantined=2))


@pytest.mark.parametrize("era", ERAS)
def test_a_blocked_tool_of_a_client_without_an_orchestrator_does_not_end_its_service(
    world: type[Faulty], era: str
) -> None:
    async def fault(bench: Bench) -> None:
        async with agent(f"{bench.url}/mcp", era) as client:
            await client.call_tool("add")
            with pytest.raises(ToolError, match="no result within"):
                await client.call_tool("block")
            await bench.unaffected()
            assert (await client.call_tool("add")).data == 1
            bench.gate.open()
            assert (await client.call_tool("add")).data == 2
        await until(lambda: bench.gate.inside == 0, "returned")
        for session in (await bench.http.get("/sessions")).json()["sessions"]:
            if session["origin"] != "socket":
                await bench.http.delete(f"/sessions/{session['session_id']}")

    beside_a_witness(world, fault, ServerConfig(step_timeout_s=0.5))


@pytest.mark.one_worker("it counts instances, and each worker makes a prototype")
def test_a_constructor_that_fails_every_third_time_costs_nothing_but_that_session() -> None:
    class Own(EveryThird):
        """A census and a gate of its own."""

    async def fault(bench: Bench) -> None:
        seen: Counter[str] = Counter()

        async def one(number: int) -> None:
            if number % 2:
                response = await bench.http.post("/reset")
                if response.is_success:
                    seen["opened"] += 1
                    await bench.http.delete(f"/sessions/{response.json()['session_id']}")
                else:
                    seen[f"{response.status_code} {response.json()['code']}"] += 1
                return
            async with control(bench.url) as orchestrator:
                reply = await orchestrator.ask("reset")
                seen["opened" if reply["type"] == "observation" else f"ws {reply['data']['code']}"] += 1

        await asyncio.gather(*(one(number) for number in range(60)))
        assert seen["opened"] == 40
        assert seen["500 FACTORY_ERROR"] + seen["ws FACTORY_ERROR"] == 20
        assert bench.census.most <= 8

    beside_a_witness(Own, fault, ServerConfig(max_concurrent_envs=8))


# -- races


@pytest.mark.parametrize("tool", ["hold", "block"])
@pytest.mark.parametrize("plane", ["ws", "http", "http-key", "agent"])
def test_close_racing_a_step_stops_the_step_and_closes_once(world: type[Faulty], plane: str, tool: str) -> None:
    async def fault(bench: Bench) -> None:
        async with AsyncExitStack() as stack:
            action = {**ADD, "tool_name": tool}
            if plane.startswith("http"):
                http = await stack.enter_async_context(httpx.AsyncClient(base_url=bench.url, timeout=PATIENCE_S))
                session_id = (await http.post("/reset")).json()["session_id"]
                headers = {"Idempotency-Key": "k"} if plane == "http-key" else {}
                stepping: asyncio.Task[Any] = asyncio.create_task(
                    http.post("/step", json={"session_id": session_id, "action": action}, headers=headers)
                )
            else:
                orchestrator = await stack.enter_async_context(control(bench.url))
                mcp_url = await begun(orchestrator)
                sessions = (await bench.http.get("/sessions")).json()["sessions"]
                session_id = next(s["session_id"] for s in sessions if s["step_count"] == 0)
                if plane == "ws":
                    stepping = asyncio.create_task(orchestrator.ask("step", action))
                else:
                    client = await stack.enter_async_context(agent(mcp_url))
                    stepping = asyncio.create_task(client.call_tool(tool))
            await bench.inside()
            closed = await asyncio.gather(*(bench.http.delete(f"/sessions/{session_id}") for _ in range(3)))
            assert closed[0].status_code == 200
            assert (await bench.http.get(f"/sessions/{session_id}")).status_code == 404
            if plane.startswith("http"):
                response = await stepping
                assert response.json()["code"] in ("SESSION_LOST", "CANCELLED")
            else:
                with pytest.raises((ConnectionClosed, ToolError)):
                    await stepping
        await bench.nothing_left(quarantined=int(tool == "block"))
        bench.gate.open()

    beside_a_witness(world, fault)


def test_a_session_closed_while_others_wait_for_their_turn_refuses_them(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url) as orchestrator:
            async with agent(await begun(orchestrator)) as client:
                calls = [asyncio.create_task(client.call_tool("hold")) for _ in range(3)]
                await bench.inside()
                await orchestrator.send("close")
                for call in calls:
                    with pytest.raises(ToolError, match="over"):
                        await call

    beside_a_witness(world, fault)


def test_a_reset_racing_an_agents_calls_lets_none_into_the_next_episode(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url) as orchestrator, agent(await begun(orchestrator)) as client:
            for _ in range(5):
                mcp_url = await begun(orchestrator)
                async with agent(mcp_url) as client:
                    first = asyncio.create_task(client.call_tool("hold"))
                    await bench.inside()
                    queued = [asyncio.create_task(client.call_tool("add")) for _ in range(5)]
                    async with httpx.AsyncClient(base_url=bench.url) as http:
                        while not (await http.get("/sessions")).json()["sessions"][-1]["busy"]:
                            await asyncio.sleep(0)
                    await orchestrator.send("reset", request_id=f"r{mcp_url}"[:200])
                    late = [asyncio.create_task(client.call_tool("add")) for _ in range(5)]
                    bench.gate.open()
                    reset = await orchestrator.hear()
                    assert reset["type"] == "observation"
                    assert (await first).data == 1
                    counted = 0
                    for call in (*queued, *late):
                        try:
                            counted += 1 if (await call).data else 0
                        except ToolError as error:
                            assert str(error) == OVER
                    # What was counted, was counted in the episode before the reset.
                    assert (await orchestrator.ask("state"))["data"]["step_count"] == 0
                    assert value(await orchestrator.call("add")) == 1
                    bench.gate.shut()

    beside_a_witness(world, fault)


def test_the_reaper_racing_steps_takes_no_session_with_a_step_under_way(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async def session(number: int) -> None:
            session_id = (await bench.http.post("/reset")).json()["session_id"]
            async with httpx.AsyncClient(base_url=bench.url, timeout=PATIENCE_S) as http:
                held = {"session_id": session_id, "action": {**ADD, "tool_name": "hold"}}
                stepping = asyncio.create_task(http.post("/step", json=held))
                await bench.inside(number + 1)
                # The reaper comes several times.
                async with asyncio.timeout(PATIENCE_S):
                    while reaped.count < 2:
                        await asyncio.sleep(0.01)
                assert not stepping.done()
                assert (await bench.http.get(f"/sessions/{session_id}")).json()["busy"] is True
                ready.append(number)
                await until(lambda: len(ready) == 4, "all were seen at work")
                bench.gate.open()
                assert (await stepping).json()["observation"]["result"]["data"] == 1
                added = await http.post("/step", json={"session_id": session_id, "action": ADD})
                assert added.json()["observation"]["result"]["data"] == 2

        class reaped:
            """Idle sessions that were opened meanwhile, and are gone."""

            count = 0

        async def bait() -> None:
            for _ in range(2):
                idle = (await bench.http.post("/sessions")).json()["session_id"]
                async with asyncio.timeout(PATIENCE_S):
                    while (await bench.http.get(f"/sessions/{idle}")).status_code == 200:
                        await asyncio.sleep(0.02)
                reaped.count += 1

        ready: list[int] = []
        # One after the other: `inside` counts them.
        sessions = []
        for number in range(4):
            sessions.append(asyncio.create_task(session(number)))
            await bench.inside(number + 1)
        await bait()
        await asyncio.gather(*sessions)
        await bench.unaffected()

    beside_a_witness(world, fault, ServerConfig(session_timeout_s=0.8))


def test_a_session_is_not_reaped_in_the_moment_in_which_it_is_used(world: type[Faulty]) -> None:
    """Steps come as long as the idle limit apart; each is answered, or the session was gone before it."""

    async def fault(bench: Bench) -> None:
        async def session(pause: float) -> None:
            async with httpx.AsyncClient(base_url=bench.url, timeout=PATIENCE_S) as http:
                session_id = (await http.post("/reset")).json()["session_id"]
                for number in range(1, 8):
                    await asyncio.sleep(pause)
                    response = await http.post("/step", json={"session_id": session_id, "action": ADD})
                    if response.status_code == 404:
                        assert response.json()["code"] == "SESSION_LOST"
                        return
                    assert response.json()["observation"]["result"]["data"] == number

        await asyncio.gather(*(session(0.19 + 0.005 * number) for number in range(12)))

    beside_a_witness(world, fault, ServerConfig(session_timeout_s=0.2))


def test_two_sockets_that_come_at_once_for_one_session_get_one(gated: type[Gated]) -> None:
    async def fault(bench: Bench) -> None:
        gated.wait_in = "constructor"
        async with control(bench.url, additional_headers=RESUMABLE) as first:
            await bench.inside()
            async with control(bench.url, additional_headers=RESUMABLE) as second:
                async with control(
                    bench.url, additional_headers={**RESUMABLE, "mcpenv-session-token": "x" * 20}
                ) as other:
                    gated.wait_in = ""
                    bench.gate.open()
                    assert (await other.hear())["data"]["code"] == "UNAUTHORIZED"
                    assert (await second.ask("reset"))["type"] == "observation"
                    with pytest.raises(ConnectionClosed):
                        await first.ask("reset")
                    assert (await bench.capacity())["active_sessions"] == 2
                    assert bench.census.most == 2

    beside_a_witness(gated, fault, ServerConfig(resume_grace_s=0.05))


def test_an_id_is_used_again_while_its_session_is_closing(gated: type[Gated]) -> None:
    async def fault(bench: Bench) -> None:
        gated.wait_in = "close"
        async with control(bench.url, additional_headers=RESUMABLE) as before:
            await before.ask("reset")
            await before.send("close")
            await bench.inside()
        gated.wait_in = ""
        async with control(bench.url, additional_headers=RESUMABLE) as after:
            assert (await after.ask("state"))["data"]["step_count"] == 0
            assert (await bench.capacity())["active_sessions"] == 3
            closed = bench.census.closed  # prototypes
            bench.gate.open()
            await until(lambda: bench.census.closed == closed + 1, "the first one is closed")
            async with asyncio.timeout(PATIENCE_S):  # its slot is counted where it ran, and told to the whole server
                while (await bench.capacity())["active_sessions"] == 3:
                    await asyncio.sleep(0)
            assert (await bench.capacity())["active_sessions"] == 2
            assert value(await after.call("add")) == 1
        async with control(bench.url, "?resume=1", additional_headers=RESUMABLE) as again:
            assert value(await again.call("add")) == 2

    beside_a_witness(gated, fault, ServerConfig(resume_grace_s=1))


def test_a_server_that_ends_waits_for_closes_under_way(gated: type[Gated]) -> None:
    async def main(url: str) -> None:
        async with control(url) as orchestrator:
            await orchestrator.ask("reset")
            gated.wait_in = "close"
            orchestrator.cut()
        await until(lambda: gated.gate.inside == 1, "closing")
        opener.start()

    opener = threading.Timer(0.3, gated.gate.open)
    with serving(gated) as url:
        run(main(url))
    assert gated.census.opened == gated.census.closed


def test_a_client_that_leaves_during_its_constructor_keeps_its_slot_until_it_is_closed(gated: type[Gated]) -> None:
    async def fault(bench: Bench) -> None:
        gated.wait_in = "constructor"
        async with control(bench.url):
            await bench.inside()
        for _ in range(3):  # the slot is taken: these wait, and leave
            async with control(bench.url):
                async with asyncio.timeout(PATIENCE_S):
                    while not (await bench.capacity())["waiting"]:
                        await asyncio.sleep(0.005)
            async with asyncio.timeout(PATIENCE_S):
                while (await bench.capacity())["waiting"]:
                    await asyncio.sleep(0.005)
            await bench.unaffected()
        assert bench.gate.inside == 1
        assert (await bench.capacity())["active_sessions"] == 2
        gated.wait_in = ""
        async with control(bench.url) as patient:
            asking = asyncio.create_task(patient.ask("reset"))
            bench.gate.open()
            assert (await asking)["type"] == "observation"
        assert bench.census.most == 2

    beside_a_witness(gated, fault, ServerConfig(max_concurrent_envs=2))


@pytest.mark.parametrize("plane", ["ws", "http", "mcp"])
def test_a_constructor_that_never_returns_is_quarantined(gated: type[Gated], plane: str) -> None:
    async def fault(bench: Bench) -> None:
        gated.wait_in = "constructor"
        if plane == "ws":
            async with control(bench.url) as orchestrator:
                assert (await orchestrator.hear())["data"]["code"] == "FACTORY_ERROR"
        elif plane == "http":
            response = await bench.http.post("/reset")
            assert (response.status_code, response.json()["code"]) == (500, "FACTORY_ERROR")
        else:
            async with agent(f"{bench.url}/mcp") as client:
                with pytest.raises(ToolError, match="could not be made"):
                    await client.call_tool("add")
        gated.wait_in = ""
        await bench.nothing_left(quarantined=1)
        async with control(bench.url) as next_one:  # the slot is free at once
            assert (await next_one.ask("reset"))["type"] == "observation"
        bench.gate.open()

    beside_a_witness(gated, fault, ServerConfig(max_concurrent_envs=2, step_timeout_s=0.3))


def test_a_server_that_ends_closes_what_a_client_that_left_was_having_made(gated: type[Gated]) -> None:
    async def main(url: str) -> None:
        gated.wait_in = "constructor"
        async with control(url):
            await until(lambda: gated.gate.inside == 1, "under construction")
        opener.start()

    opener = threading.Timer(0.5, gated.gate.open)
    with serving(gated) as url:
        run(main(url))
    assert gated.census.opened == gated.census.closed


def test_resets_of_one_http_session_that_come_at_once_have_an_episode_each(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async with httpx.AsyncClient(base_url=bench.url, timeout=PATIENCE_S) as http:
            first = (await http.post("/reset")).json()
            body = {"session_id": first["session_id"]}
            replies = [r.json() for r in await asyncio.gather(*(http.post("/reset", json=body) for _ in range(20)))]
            assert len({reply["info"]["episode_id"] for reply in replies}) == 20
            assert len({reply["info"]["mcp_url"] for reply in replies}) == 20
            state = (await http.get("/state", params=body)).json()
            worked = []
            for reply in replies:
                async with agent(reply["info"]["mcp_url"]) as client:
                    try:
                        await client.call_tool("add")
                        worked.append(reply["info"]["episode_id"])
                    except ToolError as error:
                        assert str(error) == OVER
            assert worked == [state["episode_id"]]
            await http.delete(f"/sessions/{first['session_id']}")

    beside_a_witness(world, fault)


def test_resets_of_a_stuck_session_that_come_at_once_make_one_new_instance(gated: type[Gated]) -> None:
    async def fault(bench: Bench) -> None:
        async with httpx.AsyncClient(base_url=bench.url, timeout=PATIENCE_S) as http:
            body = {"session_id": (await http.post("/reset")).json()["session_id"]}
            late = await http.post("/step", json={**body, "action": {**ADD, "tool_name": "block"}, "timeout_s": 0.05})
            assert late.json()["truncated"] is True
            opened = bench.census.opened
            replies = await asyncio.gather(*(http.post("/reset", json=body) for _ in range(8)))
            assert [reply.status_code for reply in replies] == [200] * 8
            assert bench.census.opened == opened + 1
            await http.delete(f"/sessions/{body['session_id']}")
        bench.gate.open()

    beside_a_witness(gated, fault)


def test_a_session_closed_while_a_new_instance_is_made_for_it_leaves_none(gated: type[Gated]) -> None:
    async def fault(bench: Bench) -> None:
        async with httpx.AsyncClient(base_url=bench.url, timeout=PATIENCE_S) as http:
            body = {"session_id": (await http.post("/reset")).json()["session_id"]}
            await http.post("/step", json={**body, "action": {**ADD, "tool_name": "block"}, "timeout_s": 0.05})
            gated.wait_in = "constructor"
            resetting = asyncio.create_task(http.post("/reset", json=body))
            await bench.inside(2)
            deleting = asyncio.create_task(bench.http.delete(f"/sessions/{body['session_id']}"))
            await asyncio.wait({resetting, deleting}, timeout=0.2)
            gated.wait_in = ""
            bench.gate.open()
            assert (await deleting).status_code == 200
            assert (await resetting).json()["code"] == "SESSION_LOST"

    beside_a_witness(gated, fault)


# -- too many


@pytest.mark.slow
def test_200_clients_at_a_limit_of_50_never_hold_more_than_50_slots(world: type[Faulty]) -> None:
    limit = 50

    async def fault(bench: Bench) -> None:
        seen: Counter[str] = Counter()
        most = 0

        async def sample() -> None:
            nonlocal most
            async with httpx.AsyncClient(base_url=bench.url, timeout=PATIENCE_S) as http:
                while True:
                    capacity = (await http.get("/capacity")).json()
                    most = max(most, capacity["active_sessions"])
                    assert capacity["active_sessions"] + capacity["available_slots"] == limit
                    await asyncio.sleep(0.002)

        async def client(number: int) -> None:
            async with AsyncExitStack() as stack:
                if number % 4 == 0:
                    response = await bench.http.post("/sessions")
                    if response.status_code == 503:
                        assert int(response.headers["retry-after"]) > 0
                        seen[response.json()["code"]] += 1
                        return
                    session_id = response.json()["session_id"]
                    stack.push_async_callback(bench.http.delete, f"/sessions/{session_id}")
                    step = await bench.http.post("/step", json={"session_id": session_id, "action": ADD})
                    assert step.json()["observation"]["result"]["data"] == 1
                else:
                    orchestrator = await stack.enter_async_context(control(bench.url))
                    reply = await orchestrator.ask("reset")
                    if reply["type"] == "error":
                        assert reply["data"]["retry_after_s"] > 0
                        seen[reply["data"]["code"]] += 1
                        return
                    assert value(await orchestrator.call("add")) == 1
                seen["served"] += 1
                # Every third stays until all slots have been taken; the others make room.
                if number % 3 == 0:
                    await asyncio.wait_for(full.wait(), PATIENCE_S)

        async def watch() -> None:
            while most < limit:
                await asyncio.sleep(0.002)
            full.set()

        full = asyncio.Event()
        watching = [asyncio.create_task(sample()), asyncio.create_task(watch())]
        try:
            await asyncio.gather(*(client(number) for number in range(200)))
        finally:
            for task in watching:
                task.cancel()
            await asyncio.wait(watching)
        assert seen["served"] + seen["CAPACITY_REACHED"] == 200
        assert seen["served"] >= limit
        assert most == limit
        assert bench.census.most <= limit

    beside_a_witness(world, fault, ServerConfig(max_concurrent_envs=limit, queue_timeout_s=5))


def test_clients_that_leave_while_they_wait_free_their_place(gated: type[Gated]) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url) as first:
            await first.ask("reset")
            leaving = [control(bench.url) for _ in range(20)]
            sockets = [await manager.__aenter__() for manager in leaving]
            async with httpx.AsyncClient(base_url=bench.url, timeout=PATIENCE_S) as http:
                posting = asyncio.create_task(http.post("/reset"))
                async with asyncio.timeout(PATIENCE_S):
                    while (await bench.capacity())["waiting"] < 21:
                        await asyncio.sleep(0.005)
                for socket in sockets:
                    socket.cut()
                async with asyncio.timeout(PATIENCE_S):
                    while (await bench.capacity())["waiting"] > 1:
                        await asyncio.sleep(0.005)
                await first.send("close")
                reply = await posting
                assert reply.status_code == 200
                await bench.http.delete(f"/sessions/{reply.json()['session_id']}")
            for manager in leaving:
                await manager.__aexit__(None, None, None)

    beside_a_witness(gated, fault, ServerConfig(max_concurrent_envs=2))


# -- retries


def test_repeated_and_reordered_requests_run_once_each(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url) as orchestrator:
            await orchestrator.ask("reset", request_id="r")
            frames = [("add", {"by": number}, f"s{number}") for number in range(1, 21)]
            # Each three times, in another order each time; more than one is under way at once.
            order = [*frames, *frames[::-1], *frames[::2], *frames[1::2]]
            for tool, arguments, request_id in order:
                await orchestrator.begin(tool, arguments, request_id=request_id)
            answers: dict[str, set[str]] = {}
            for _ in order:
                reply = await orchestrator.hear()
                answers.setdefault(reply["request_id"], set()).add(json.dumps(reply))
            assert {len(same) for same in answers.values()} == {1}
            assert (await orchestrator.ask("state"))["data"]["step_count"] == 20
            trajectory = (await orchestrator.ask("trajectory"))["data"]
            assert sorted(step["call"]["arguments"]["by"] for step in trajectory["steps"]) == list(range(1, 21))
            assert trajectory["total_reward"] == sum(range(1, 21))
            # A reset that comes again after steps does not begin another episode.
            await orchestrator.ask("reset", request_id="r")
            assert (await orchestrator.ask("state"))["data"]["step_count"] == 20
            assert (await orchestrator.call("add", {"by": 99}, request_id="s1"))["data"]["code"] == "VALIDATION_ERROR"
            # A step that comes again after another reset is still answered as the first time.
            await orchestrator.ask("reset", request_id="r2")
            assert json.dumps(await orchestrator.call("add", {"by": 1}, request_id="s1")) in answers["s1"]

    beside_a_witness(world, fault)


def test_a_step_repeated_by_a_client_that_lost_its_socket_again_and_again_ran_once(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url, additional_headers=RESUMABLE) as orchestrator:
            await orchestrator.ask("reset", request_id="r")
            await orchestrator.begin("hold", request_id="s")
            await bench.inside()
            orchestrator.cut()
        for _ in range(5):
            async with control(bench.url, "?resume=1", additional_headers=RESUMABLE) as orchestrator:
                await orchestrator.begin("hold", request_id="s")
                await bench.unaffected()
                orchestrator.cut()
        async with control(bench.url, "?resume=1", additional_headers=RESUMABLE) as orchestrator:
            asking = asyncio.create_task(orchestrator.call("hold", request_id="s"))
            bench.gate.open()
            assert value(await asking) == 1
            state = await orchestrator.ask("state")
            assert state["data"]["step_count"] == 1
            await orchestrator.send("close")

    beside_a_witness(world, fault, ServerConfig(resume_grace_s=PATIENCE_S))


def test_http_requests_with_one_key_that_come_at_once_run_once(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async with httpx.AsyncClient(base_url=bench.url, timeout=PATIENCE_S) as http:
            resets = await asyncio.gather(*(http.post("/reset", headers={"Idempotency-Key": "r"}) for _ in range(5)))
            assert len({response.text for response in resets}) == 1
            assert (await bench.capacity())["active_sessions"] == 2
            body = {"session_id": resets[0].json()["session_id"], "action": {**ADD, "tool_name": "hold"}}
            steps = [
                asyncio.create_task(http.post("/step", json=body, headers={"Idempotency-Key": "s"})) for _ in range(5)
            ]
            await bench.inside()
            # One of them gives up, and comes again.
            steps[0].cancel()
            await asyncio.wait({steps[0]})
            assert bench.gate.inside == 1
            steps[0] = asyncio.create_task(http.post("/step", json=body, headers={"Idempotency-Key": "s"}))
            bench.gate.open()
            assert {(await step).json()["observation"]["result"]["data"] for step in steps} == {1}
            other = {**body, "action": {"type": "list_tools"}}
            refused = await http.post("/step", json=other, headers={"Idempotency-Key": "s"})
            assert refused.json()["code"] == "VALIDATION_ERROR"
            state = await http.get("/state", params={"session_id": body["session_id"]})
            assert state.json()["step_count"] == 1
            await http.delete(f"/sessions/{body['session_id']}")

    beside_a_witness(world, fault)


# -- the end of the server


class Process:
    """A server in a process of its own, and what its instances wrote down."""

    def __init__(self, journal: Path, *options: str) -> None:
        self._journal = journal
        command = [sys.executable, "-m", "mcpenv", "run", "fault_worlds:Journalled", "--drain-s", "0"]
        if "--port" not in options:
            command += ["--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--set", f"journal={journal}", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=HERE,
        )
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            found = re.search(r"http://[^\s/]+:\d+", line)
            if found:
                self.url = found.group()
                break
        else:
            raise RuntimeError("".join(said))
        self.said: list[str] = []
        self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stdout or ()), daemon=True)
        self._reader.start()

    def words(self) -> Counter[str]:
        return Counter(self._journal.read_text().split()) if self._journal.exists() else Counter()

    def ended(self) -> int:
        """The exit status, when it has ended."""
        status = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return status


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    server = Process(tmp_path / "journal", "--max-sessions", "100")
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


async def stepping(url: str, answered: Counter[str]) -> None:
    """Step until the server says no."""
    try:
        async with control(url) as orchestrator:
            await orchestrator.ask("reset")
            while True:
                answered["asked"] += 1
                reply = await orchestrator.call("wait", {"seconds": 0.05})
                assert value(reply) == "waited"
                answered["answered"] += 1
    except ConnectionClosed as closed:
        answered[f"closed {closed.rcvd.code if closed.rcvd else None}"] += 1


@pytest.mark.smoke
def test_sigterm_under_load_answers_the_steps_under_way_closes_everything_and_exits_0(process: Process) -> None:
    async def main() -> None:
        answered: Counter[str] = Counter()
        clients = [asyncio.create_task(stepping(process.url, answered)) for _ in range(20)]
        await until(lambda: answered["answered"] > 60, "they step")
        process.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*clients)
        assert answered["closed 1012"] == 20, answered
        assert process.words()["began"] == process.words()["ended"]

    run(main())
    assert process.ended() == 0, "".join(process.said)
    words = process.words()
    assert words["opened"] == words["closed"] == 21  # and the prototype


@pytest.mark.process
def test_sigterm_refuses_those_who_wait_and_those_who_come(tmp_path: Path) -> None:
    server = Process(tmp_path / "journal", "--max-sessions", "1")

    async def main() -> None:
        async with (
            control(server.url) as orchestrator,
            httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as http,
        ):
            await orchestrator.ask("reset")
            await orchestrator.begin("wait", {"seconds": 1.5})
            await until(lambda: server.words()["began"] == 1, "a step is under way")
            async with control(server.url) as waiting:
                async with asyncio.timeout(PATIENCE_S):
                    while not (await http.get("/capacity")).json()["waiting"]:
                        await asyncio.sleep(0.005)
                server.process.send_signal(signal.SIGTERM)
                assert (await waiting.hear())["data"]["code"] == "CAPACITY_REACHED"
                assert server.words()["ended"] == 0, "it waited for the step"
            assert (await http.get("/ready")).status_code == 503
            assert (await http.post("/reset")).json()["code"] == "CAPACITY_REACHED"
            assert value(await orchestrator.hear()) == "waited"

    try:
        run(main())
        assert server.ended() == 0, "".join(server.said)
        assert server.words()["opened"] == server.words()["closed"] == 2
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.process
def test_sigterm_does_not_wait_for_a_tool_that_never_returns(tmp_path: Path) -> None:
    server = Process(tmp_path / "journal", "--step-timeout-s", "0.2")

    async def main() -> None:
        async with control(server.url) as orchestrator:
            await orchestrator.ask("reset")
            late = await orchestrator.call("stuck")
            assert failure(late)["error_type"] == "timeout"
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed):
                await orchestrator.hear()

    try:
        run(main())
        assert server.ended() == 0, "".join(server.said)
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.slow
def test_sigkill_under_load_is_a_lost_session_to_its_clients_and_the_port_is_free(
    process: Process, tmp_path: Path
) -> None:
    async def main() -> None:
        answered: Counter[str] = Counter()
        clients = [asyncio.create_task(stepping(process.url, answered)) for _ in range(20)]
        await until(lambda: answered["answered"] > 60, "they step")
        process.process.kill()
        await asyncio.gather(*clients)
        assert answered["closed None"] == 20

    async def after(url: str) -> None:
        async with control(url, "?resume=1", additional_headers=RESUMABLE) as orchestrator:
            assert (await orchestrator.hear())["data"]["code"] == "SESSION_LOST"
        async with control(url) as orchestrator:
            assert (await orchestrator.ask("reset"))["type"] == "observation"

    run(main())
    process.process.wait(PATIENCE_S)
    port = process.url.rpartition(":")[2]
    again = Process(tmp_path / "another", "--port", port)
    try:
        run(after(again.url))
    finally:
        again.process.kill()
        again.process.wait()


# -- agents that do not read


def test_an_agent_that_never_reads_its_answer_does_not_hold_the_episode(world: type[Faulty]) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url) as orchestrator:
            path = "/" + (await begun(orchestrator)).split("/", 3)[3]
            body, headers = modern("tools/call", {"name": "big", "arguments": {"megabytes": 24}})
            async with wire(bench.url) as deaf:
                await deaf.post(path, body, headers)
                async with asyncio.timeout(PATIENCE_S):
                    while (await orchestrator.ask("state"))["data"]["step_count"] == 0:
                        pass
                assert value(await orchestrator.call("add")) == 1
                await bench.unaffected()

    beside_a_witness(world, fault)


def test_a_state_that_blocks_truncates_the_episode_and_a_reset_goes_on(gated: type[Gated]) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url) as orchestrator:
            await orchestrator.ask("reset")
            await orchestrator.call("add")
            await orchestrator.send("wait", request_id="w")
            gated.wait_in = "state"
            await orchestrator.send("state", request_id="s", timeout_s=0.05)
            replies = {reply["request_id"]: reply["data"] for reply in [await orchestrator.hear() for _ in range(2)]}
            gated.wait_in = ""
            assert replies["s"]["code"] == "TIMEOUT"
            assert (replies["w"]["done"], replies["w"]["truncated"]) == (True, True)
            assert (await orchestrator.call("add"))["data"]["code"] == "EPISODE_DONE"
            await orchestrator.ask("reset")
            assert value(await orchestrator.call("add")) == 1
        bench.gate.open()

    beside_a_witness(gated, fault)


def test_a_reset_that_blocks_is_left_behind_by_the_next_request(gated: type[Gated]) -> None:
    async def fault(bench: Bench) -> None:
        for kind, data in (("state", {}), ("step", ADD), ("reset", {})):
            async with control(bench.url) as orchestrator:
                gated.wait_in = "reset"
                assert (await orchestrator.ask("reset", timeout_s=0.05))["data"]["code"] == "TIMEOUT"
                gated.wait_in = ""
                assert (await orchestrator.ask(kind, data))["type"] in ("state", "observation")
                assert value(await orchestrator.call("add")) == (2 if kind == "step" else 1)
        await bench.nothing_left(quarantined=3)
        bench.gate.open()

    beside_a_witness(gated, fault)


def test_a_tool_that_goes_on_while_another_ends_the_episode_does_not_undo_its_end(gated: type[Gated]) -> None:
    async def fault(bench: Bench) -> None:
        async with control(bench.url) as orchestrator:
            async with agent(await begun(orchestrator)) as client:
                looking = asyncio.create_task(client.call_tool("look"))
                await bench.inside()
                assert (await orchestrator.call("submit"))["data"]["done"] is True
                bench.gate.open()
                await looking
                done = (await orchestrator.ask("wait"))["data"]
                assert (done["done"], done["terminated"]) == (True, True)
                assert (await orchestrator.ask("trajectory"))["data"]["terminated"] is True

    beside_a_witness(gated, fault)
