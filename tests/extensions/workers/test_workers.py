"""Several workers as one server: real processes, real ports, real clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastmcp
import httpx
import httpx2
import pytest
from cluster_bench import PATIENCE_S, Server, command, is_over, process_of, served, sessions, until
from fastmcp.exceptions import ToolError
from fault_bench import Control, control, modern
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from websockets.exceptions import ConnectionClosed

from mcpenv.trajectories import read_episodes
from mcpenv_client import CapacityReached, EnvClient, SessionLost

ERAS = ("legacy", "2026-07-28")
SECRET = {"mcpenv-session-id": "session-number-0001", "mcpenv-session-token": "a-long-enough-secret"}


@pytest.fixture(scope="module")
def two() -> Iterator[Server]:
    """A server of two workers, for tests that leave it as it was."""
    with served() as server:
        yield server


def run(main: Any) -> Any:
    return asyncio.run(asyncio.wait_for(main, 3 * PATIENCE_S))


async def no_longer_ready(url: str) -> None:
    """Wait until a worker says that it drains; one without sessions has ended by then, or ends at the request."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
        with contextlib.suppress(httpx.TransportError):
            while (await http.get("/ready")).status_code == 200:
                await asyncio.sleep(0.01)


def call_body(tool: str, session_id: str, **arguments: Any) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "action": {"type": "call_tool", "tool_name": tool, "arguments": arguments},
    }


def data_of(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["observation"]["result"]["data"]


# -- balance


def test_sessions_are_spread_evenly_however_they_come(two: Server) -> None:
    async def main() -> None:
        async with sessions(two.url, 15) as one_by_one, contextlib.AsyncExitStack() as stack:
            at_once = [EnvClient(two.url) for _ in range(17)]
            await asyncio.gather(*(stack.enter_async_context(client) for client in at_once))
            await asyncio.gather(*(client.reset() for client in at_once))
            where = Counter([await process_of(client) for client in [*one_by_one, *at_once]])
            assert sorted(where.values()) == [16, 16]
            assert where.keys() == two.workers()

    run(main())


def test_other_connections_do_not_put_sessions_out_of_balance(two: Server) -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            where = Counter[int]()
            for _ in range(8):
                client = await stack.enter_async_context(EnvClient(two.url))
                await client.reset()
                where[await process_of(client)] += 1
                async with httpx.AsyncClient() as http:
                    await http.get(two.url + "/health")
            assert sorted(where.values()) == [4, 4]

    run(main())


def test_sessions_over_http_are_spread_evenly_though_they_come_by_one_connection(two: Server) -> None:
    limits = httpx.Limits(max_connections=1)
    with httpx.Client(base_url=two.url, limits=limits, timeout=PATIENCE_S) as http:
        ids = [http.post("/reset").json()["session_id"] for _ in range(4)]
        ids += [http.post("/sessions").json()["session_id"] for _ in range(4)]
        where = Counter(data_of(http.post("/step", json=call_body("process", each))) for each in ids)
        assert sorted(where.values()) == [4, 4]
        assert {each["session_id"] for each in http.get("/sessions").json()["sessions"]} >= set(ids)
        for each in ids:
            assert http.get("/state", params={"session_id": each}).status_code == 200
            assert http.get(f"/sessions/{each}").json()["origin"] == "http"
            assert http.delete(f"/sessions/{each}").json()["closed"] is True
            assert http.post("/step", json=call_body("process", each)).json()["code"] == "SESSION_LOST"


@pytest.mark.slow
def test_every_connection_is_without_delay() -> None:
    async def main(url: str) -> None:
        async with sessions(url, 4) as clients, httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as http:
            await http.get("/health")
            seen = [json.loads((await client.call_tool("delays")).text) for client in clients]
        assert all(each and set(each) == {1} for each in seen), seen

    for workers in (1, 2):
        with served(workers=workers) as server:
            run(main(server.url))


# -- whose is it


@pytest.mark.parametrize("era", ERAS)
def test_a_handle_is_served_by_the_worker_that_minted_it(two: Server, era: str) -> None:
    async def main() -> None:
        async with sessions(two.url, 4) as clients:
            for client in clients:
                mcp_url = (await client.reset()).observation.info["mcp_url"]
                async with fastmcp.Client(mcp_url, mode=era) as agent:
                    assert {tool.name for tool in await agent.list_tools()} >= {"add", "process"}
                    assert (await agent.call_tool("process")).data == await process_of(client)
                    seen: list[float] = []

                    async def heard(progress: float, total: float | None, message: str | None) -> None:
                        seen.append(progress)  # noqa: B023

                    await agent.call_tool("tell", {"times": 3}, progress_handler=heard)
                    assert seen == [1, 2, 3]

    run(main())


def test_requests_for_both_workers_are_answered_on_one_connection(two: Server) -> None:
    async def main() -> None:
        limits = httpx.Limits(max_connections=1)
        async with sessions(two.url, 2) as clients, httpx.AsyncClient(limits=limits, timeout=PATIENCE_S) as http:
            assert len({await process_of(client) for client in clients}) == 2
            for client in [*clients, *clients]:
                mcp_url = (await client.reset()).observation.info["mcp_url"]
                body, headers = modern("tools/call", {"name": "process", "arguments": {}})
                answer = await http.post(mcp_url, json=body, headers=headers)
                assert answer.json()["result"]["structuredContent"] == {"result": await process_of(client)}
                body, headers = modern("tools/call", {"name": "tell", "arguments": {"times": 2}})
                body["params"]["_meta"]["progressToken"] = "p"
                answer = await http.post(mcp_url, json=body, headers=headers)
                assert answer.headers["content-type"].startswith("text/event-stream")
                assert answer.text.count("notifications/progress") == 2

    run(main())


def test_handshake_clients_may_share_one_kept_connection(two: Server) -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    asked = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "twelve", "version": "1"}}

    async def main() -> None:
        sessions: list[dict[str, str]] = []
        for _ in range(12):  # each on a connection of its own, so that both workers have some
            async with httpx.AsyncClient(base_url=two.url, timeout=PATIENCE_S) as http:
                body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": asked}
                answer = await http.post("/mcp", json=body, headers=accept)
                assert answer.status_code == 200
                sessions.append({**accept, "Mcp-Session-Id": answer.headers["mcp-session-id"]})
        limits = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(base_url=two.url, limits=limits, timeout=PATIENCE_S) as http:
            statuses = []
            for headers in sessions:
                body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                statuses.append((await http.post("/mcp", json=body, headers=headers)).status_code)
            assert statuses == [202] * 12
            processes = Counter[int]()
            for count in (1, 2):
                for headers in sessions:
                    for tool, value in (("add", count), ("process", None)):
                        params = {"name": tool, "arguments": {}}
                        body = {"jsonrpc": "2.0", "id": count, "method": "tools/call", "params": params}
                        answer = await http.post("/mcp", json=body, headers=headers)
                        result = mcp_result(answer)["structuredContent"]["result"]
                        assert value in (None, result)
                    processes[result] += 1
            assert sorted(processes.values()) == [12, 12]
            ended = [(await http.delete("/mcp", headers=headers)).status_code for headers in sessions]
            assert ended == [200] * 12

    run(main())


def mcp_result(answer: httpx.Response) -> dict[str, Any]:
    """The result in an answer of JSON, or in the last event of a stream."""
    assert answer.status_code == 200, answer.text
    text = answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        text = [line for line in text.splitlines() if line.startswith("data:")][-1].removeprefix("data:")
    result: dict[str, Any] = json.loads(text)["result"]
    return result


@pytest.mark.parametrize("era", ERAS)
def test_twelve_clients_at_once_may_share_a_pool_of_connections(two: Server, era: str) -> None:
    async def main() -> None:
        statuses = Counter[int]()

        async def count(answer: httpx2.Response) -> None:
            statuses[answer.status_code] += 1

        async with httpx2.AsyncClient(timeout=PATIENCE_S, event_hooks={"response": [count]}) as http:

            async def one() -> list[Any]:
                transport = streamable_http_client(two.url + "/mcp", http_client=http)
                async with Client(transport, mode=era) as client:
                    return [(await client.call_tool("process", {})).structured_content for _ in range(3)]

            answers = await asyncio.gather(*(one() for _ in range(12)))
            assert all(each == [answer[0]] * 3 for each, answer in zip(answers, answers, strict=True))
            if era == "legacy":
                assert len({answer[0]["result"] for answer in answers}) == 2
            assert statuses.keys() <= {200, 202}, statuses
            if era != "legacy":  # the session that they share
                assert (await http.delete(two.url + "/sessions/service")).status_code == 200

    run(main())


async def in_pieces(url: str, query: str, headers: dict[str, str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket whose first piece says nothing of where it belongs, so that a worker must find out."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"GET /ws{query} HT".encode())
    await writer.drain()
    # The server has heard that much when it answers somebody who came later.
    async with httpx.AsyncClient() as http:
        await http.get(url + "/health")
    given = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        "Sec-WebSocket-Version": "13",
        **headers,
    }
    writer.write(("TP/1.1\r\n" + "".join(f"{name}: {text}\r\n" for name, text in given.items()) + "\r\n").encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    return reader, writer


async def say(writer: asyncio.StreamWriter, kind: str, data: Any = None) -> None:
    payload = json.dumps({"type": kind, "data": data or {}}).encode()
    assert len(payload) < 126
    writer.write(bytes([0x81, 0x80 | len(payload), 0, 0, 0, 0]) + payload)
    await writer.drain()


async def hear(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = await reader.readexactly(2)
    length = head[1]
    if length == 126:
        length = int.from_bytes(await reader.readexactly(2), "big")
    answer: dict[str, Any] = json.loads(await reader.readexactly(length))
    return answer


def test_a_socket_that_reaches_the_wrong_worker_is_carried_to_its_own(two: Server) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(base_url=two.url, timeout=PATIENCE_S) as http:
            ids = [(await http.post("/reset")).json()["session_id"] for _ in range(4)]
            for number, each in enumerate(ids):
                reader, writer = await in_pieces(two.url, f"?session_id={each}", {})
                await say(writer, "step", {"type": "call_tool", "tool_name": "add", "arguments": {"by": number}})
                assert (await hear(reader))["data"]["observation"]["result"]["data"] == number
                await say(writer, "state")
                assert (await hear(reader))["data"]["step_count"] == 1
                writer.close()
                assert data_of(await http.post("/step", json=call_body("add", each))) == number + 1
                await http.delete(f"/sessions/{each}")

    run(main())


def test_a_socket_may_join_a_session_from_anywhere(two: Server) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(base_url=two.url, timeout=PATIENCE_S) as http:
            for _ in range(4):
                session_id = (await http.post("/reset")).json()["session_id"]
                async with control(two.url, f"?session_id={session_id}") as socket:
                    assert (await socket.call("add"))["data"]["observation"]["result"]["data"] == 1
                await http.delete(f"/sessions/{session_id}")

    run(main())


@pytest.mark.slow
def test_a_session_of_an_id_that_its_client_chose_is_found_again() -> None:
    async def main(url: str) -> None:
        for number in range(4):
            mine = {**SECRET, "mcpenv-session-id": f"session-number-{number:04}"}
            async with control(url, additional_headers=mine) as first:
                process = (await first.call("process"))["data"]["observation"]["result"]["data"]
                first.cut()
            async with control(url, "?resume=1", additional_headers=mine) as again:
                assert (await again.call("process"))["data"]["observation"]["result"]["data"] == process
                reader, writer = await in_pieces(url, "?resume=1", mine)
                with pytest.raises(ConnectionClosed):
                    await again.hear()
                await say(writer, "state")
                assert (await hear(reader))["data"]["step_count"] == 2
                wrong = {**mine, "mcpenv-session-token": "not-the-right-secret"}
                async with control(url, "?resume=1", additional_headers=wrong) as other:
                    assert (await other.hear())["data"]["code"] == "UNAUTHORIZED"
                await say(writer, "close")
                assert await reader.readexactly(1) == b"\x88"  # a closing frame (RFC 6455, section 5.5.1)
                writer.close()
            async with control(url, "?resume=1", additional_headers=mine) as gone:
                assert (await gone.hear())["data"]["code"] == "SESSION_LOST"

    with served("--resume-grace-s", "300") as server:
        run(main(server.url))
        assert server.capacity()["active_sessions"] == 0


def test_a_fork_is_joined_by_the_id_that_its_client_chose(two: Server) -> None:
    async def main() -> None:
        for number in range(3):
            mine = {"session_id": f"fork-number-{number:08}", "session_token": "a-long-enough-secret"}
            headers = {f"mcpenv-{name.replace('_', '-')}": value for name, value in mine.items()}
            async with control(two.url) as parent:
                await parent.ask("reset")
                await parent.call("add", {"by": 5})
                assert (await parent.ask("fork", mine))["data"]["session_id"] == mine["session_id"]
                again = await parent.ask("fork", mine)
                assert again["data"]["code"] == "VALIDATION_ERROR"
                async with control(two.url, additional_headers=headers) as fork:
                    assert (await fork.call("add"))["data"]["observation"]["result"]["data"] == 6
                    async with control(two.url) as other:
                        await other.ask("reset")
                        taken = await other.ask("fork", mine)
                        assert taken["data"]["code"] == "VALIDATION_ERROR", taken

    run(main())


def test_a_repeated_request_finds_the_first_answer_wherever_it_arrives(two: Server) -> None:
    ids = set()
    for _ in range(4):  # each on a connection of its own
        answer = httpx.post(two.url + "/reset", headers={"Idempotency-Key": "the-same"}, timeout=PATIENCE_S).json()
        ids.add(answer["session_id"])
    assert len(ids) == 1
    (session_id,) = ids
    bodies = [
        httpx.post(two.url + "/step", headers={"Idempotency-Key": "k"}, json=call_body("add", session_id)).json()
        for _ in range(4)
    ]
    assert [body["observation"]["result"]["data"] for body in bodies] == [1, 1, 1, 1]
    httpx.delete(f"{two.url}/sessions/{session_id}")


@pytest.mark.parametrize("era", ERAS)
def test_anonymous_clients_have_what_they_have_with_one_worker(two: Server, era: str) -> None:
    async def main(http: httpx.AsyncClient) -> None:
        seen = []
        for _ in range(4):
            async with fastmcp.Client(two.url + "/mcp", mode=era) as agent:
                first = (await agent.call_tool("add")).data
                seen.append((await agent.call_tool("add")).data - first)
                listed = (await http.get("/sessions")).json()["sessions"]
                assert [s["origin"] for s in listed] == ["connection" if era == "legacy" else "service"]
                if era == "legacy":
                    assert first == 1
        assert seen == [1, 1, 1, 1]
        if era != "legacy":
            assert (await http.delete("/sessions/service")).status_code == 200

    async def with_http() -> None:
        async with httpx.AsyncClient(base_url=two.url, timeout=PATIENCE_S) as http:
            await main(http)

    run(with_http())


@pytest.mark.slow
def test_an_agent_with_a_token_has_one_session_on_the_whole_server() -> None:
    names = [f"agent-{number}" for number in range(12)]

    async def main(url: str) -> None:
        for number, name in enumerate(names):
            era = ERAS[number % 2]
            for count in (1, 2, 3):
                async with fastmcp.Client(url + "/mcp", mode=era, auth=f"{name}-secret-token") as agent:
                    assert (await agent.call_tool("add")).data == count
        for era in ERAS:
            with pytest.raises((MCPError, RuntimeError, httpx.HTTPError)):
                async with fastmcp.Client(url + "/mcp", mode=era, auth="nobodys-secret-token") as agent:
                    await agent.call_tool("add")

    tokens = [option for name in names for option in ("--agent-token", f"{name}={name}-secret-token")]
    with served("--mode", "production", *tokens) as server:
        run(main(server.url))


@pytest.mark.slow
def test_with_a_door_for_each_plane_both_reach_every_worker() -> None:
    async def main(server: Server) -> None:
        assert server.url != server.control
        async with sessions(server.control, 4) as clients, httpx.AsyncClient() as http:
            for client, era in zip(clients, (*ERAS, *reversed(ERAS)), strict=True):
                mcp_url = (await client.reset()).observation.info["mcp_url"]
                assert mcp_url.startswith(server.url)
                async with fastmcp.Client(mcp_url, mode=era) as agent:
                    assert (await agent.call_tool("process")).data == await process_of(client)
                for door, status in ((server.url, 404), (server.control, 200)):
                    assert (await http.get(door + "/sessions")).status_code == status

    with served("--control-port", "0", "--require-handle") as server:
        run(main(server))


@pytest.mark.slow
def test_an_agents_rate_is_that_of_the_whole_server() -> None:
    async def main(url: str) -> None:
        async with sessions(url, 2) as clients:
            assert len({await process_of(client) for client in clients}) == 2
            outcomes = []
            async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
                for client in clients:
                    mcp_url = (await client.reset()).observation.info["mcp_url"]
                    for _ in range(3):
                        body, headers = modern("tools/call", {"name": "add", "arguments": {}})
                        headers["Authorization"] = "Bearer ada-secret-token"
                        answer = await http.post(mcp_url, json=body, headers=headers)
                        outcomes.append(answer.json()["result"].get("isError", False))
            assert outcomes == [False, True, True, True, True, True]

    with served("--max-requests-per-s", "0.01", "--agent-token", "ada=ada-secret-token") as server:
        run(main(server.url))


# -- capacity


@pytest.mark.slow
def test_there_are_never_more_sessions_than_the_server_takes_and_who_waits_is_served_in_order() -> None:
    async def main(server: Server) -> None:
        order: list[int] = []

        async def waiting(number: int) -> None:
            async with EnvClient(server.url) as client:
                await client.reset()
                order.append(number)

        async with sessions(server.url, 3) as clients:
            assert len({await process_of(client) for client in clients}) == 2
            assert server.capacity()["available_slots"] == 0
            tasks = []
            for number in range(4):
                tasks.append(asyncio.create_task(waiting(number)))
                async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as http:
                    while (await http.get("/capacity")).json()["waiting"] <= number:
                        assert not tasks[-1].done()
            assert server.capacity()["active_sessions"] == 3
            await clients[0].close()
            await asyncio.gather(*tasks)
        assert order == [0, 1, 2, 3]

    with served("--max-sessions", "3") as server:
        run(main(server))
        until(lambda: server.capacity()["active_sessions"] == 0, "all slots free")


@pytest.mark.slow
def test_one_session_is_one_on_the_whole_server() -> None:
    async def main(url: str) -> None:
        async with EnvClient(url) as client:
            await client.reset()
            with pytest.raises(CapacityReached) as refused:
                async with EnvClient(url) as other:
                    await other.reset()
            assert refused.value.data["active_sessions"] == 1
        # An agent's idle session gives way, in whichever worker it is.
        for _ in range(3):
            async with fastmcp.Client(url + "/mcp", mode="2026-07-28") as agent:
                assert (await agent.call_tool("add")).data == 1
            async with EnvClient(url) as client:
                await client.reset()

    with served("--queue-timeout-s", "0.2", world="Alone") as server:
        run(main(server.url))


# -- ends


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_when_a_worker_is_killed_its_sessions_are_lost_and_the_others_notice_nothing(era: str, tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = await stack.enter_async_context(sessions(server.url, 6))
            cut_off: set[str] = set()
            urls = [(await client.reset()).observation.info["mcp_url"] for client in clients]
            agents = [await stack.enter_async_context(_agent_of(url, era, cut_off)) for url in urls]
            where = [await process_of(client) for client in clients]
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S))
            ids = [(await http.post("/reset")).json()["session_id"] for _ in range(2)]
            homes = [data_of(await http.post("/step", json=call_body("process", each))) for each in ids]
            victim = where[0]
            survivors = [number for number, home in enumerate(where) if home != victim]
            lost = [number for number, home in enumerate(where) if home == victim]
            gate = tmp_path / era
            under_way = [asyncio.create_task(client.call_tool("hold", {"gate": str(gate)})) for client in clients]
            until_waiting = gate.with_name(f"{era}.waiting")
            while not until_waiting.exists() or len(until_waiting.read_text().split()) < len(clients):
                await asyncio.sleep(0.01)

            os.kill(victim, signal.SIGKILL)

            for number in lost:
                cut_off.add(urls[number])
                with pytest.raises(SessionLost):
                    await under_way[number]
                with pytest.raises((MCPError, ToolError, httpx.HTTPError, RuntimeError)):
                    await agents[number].call_tool("add")
            dead = urlsplit(urls[lost[0]]).path
            body, headers = modern("tools/call", {"name": "add", "arguments": {}})
            async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as fresh:
                answer = await fresh.post(dead, json=body, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (404, "SESSION_LOST")
                for each, home in zip(ids, homes, strict=True):
                    answer = await fresh.post("/step", json=call_body("add", each))
                    assert (answer.status_code == 200) == (home != victim)
                    if home == victim:
                        assert answer.json()["code"] == "SESSION_LOST"
                assert (await fresh.get("/capacity")).json()["active_sessions"] == len(survivors) + 1
            # None of this had to wait for another worker to be started.
            gate.touch()
            for number in survivors:
                assert (await under_way[number]).text == "1"
                assert (await agents[number].call_tool("add")).data == 2
            until(lambda: bool(server.workers() - set(where)), "a new worker")
            (new,) = server.workers() - set(where)
            await _until_served_by(server, new)
            assert any("ended unexpectedly" in line for line in server.said)

    with served() as server:
        run(main(server))


@contextlib.asynccontextmanager
async def _agent_of(url: str, era: str, cut_off: set[str]) -> AsyncIterator[fastmcp.Client[Any]]:
    """A client that may say, when it leaves, that its connection broke, if its URL is among those cut off."""
    leaving = contextlib.AsyncExitStack()
    try:
        yield await leaving.enter_async_context(fastmcp.Client(url, mode=era))
    finally:
        try:
            await leaving.aclose()
        except httpx2.HTTPError:
            if url not in cut_off:
                raise


async def _until_served_by(server: Server, worker: int) -> None:
    """Sessions are made in a new worker, too."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with sessions(server.url, 2) as clients:
                if worker in {await process_of(client) for client in clients}:
                    return


async def _until_both_serve(server: Server) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with sessions(server.url, 2) as clients:
                if len({await process_of(client) for client in clients}) == 2:
                    return


@pytest.mark.slow
def test_what_all_anonymous_clients_share_is_there_again_after_its_worker_was_killed() -> None:
    async def main(server: Server) -> None:
        async with fastmcp.Client(server.url + "/mcp", mode="2026-07-28") as agent:
            home = (await agent.call_tool("process")).data
            assert (await agent.call_tool("add")).data == 1
        os.kill(home, signal.SIGKILL)
        # A connection that it is given while it ends is lost, as with every server.
        until(lambda: is_over(home), "its end")
        async with fastmcp.Client(server.url + "/mcp", mode="2026-07-28") as agent:
            assert (await agent.call_tool("add")).data == 1  # asked before there was another, and answered by that
            assert (await agent.call_tool("process")).data != home

    with served() as server:
        run(main(server))


@pytest.mark.slow
@pytest.mark.parametrize("to", ["the first", "all", "Ctrl-C"])
def test_at_the_end_steps_under_way_finish_in_every_worker(to: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main(server: Server) -> None:
        async with contextlib.AsyncExitStack() as stack:
            sockets = [await stack.enter_async_context(control(server.url)) for _ in range(4)]
            for socket in sockets:
                await socket.ask("reset")
                await socket.begin("hold", {"gate": str(gate)})
            waiting = tmp_path / "gate.waiting"
            while not waiting.exists() or len(waiting.read_text().split()) < 4:
                await asyncio.sleep(0.01)
            assert len(set(waiting.read_text().split())) == 2
            if to == "Ctrl-C":  # a terminal sends it to all processes at once
                os.killpg(server.process.pid, signal.SIGINT)
                for worker in server.workers():
                    os.kill(worker, signal.SIGTERM)
            elif to == "all":  # as service managers do
                os.killpg(server.process.pid, signal.SIGTERM)
            else:
                server.process.send_signal(signal.SIGTERM)
            await no_longer_ready(server.url)
            gate.touch()
            for socket in sockets:
                assert (await socket.hear())["data"]["observation"]["result"]["data"] == 1
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.hear()
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012

    with served() as server:
        run(main(server))
        assert server.process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_ctrl_c_after_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with control(server.url) as socket:
            await socket.ask("reset")
            await socket.begin("hold", {"gate": str(tmp_path / "never")})
            while not (tmp_path / "never.waiting").exists():
                await asyncio.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            await no_longer_ready(server.url)
            server.process.send_signal(signal.SIGINT)
            with pytest.raises(ConnectionClosed):
                await socket.hear()

    with served("--shutdown-timeout-s", "3600") as server:
        run(main(server))
        assert server.process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_one_worker_ends_in_order_and_another_one_is_started(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main(server: Server) -> None:
        async with control(server.url) as socket, sessions(server.url, 1) as (other,):
            await socket.ask("reset")
            home = (await socket.call("process"))["data"]["observation"]["result"]["data"]
            await socket.begin("hold", {"gate": str(gate)})
            while not gate.with_name("gate.waiting").exists():
                await asyncio.sleep(0.01)
            os.kill(home, signal.SIGTERM)
            elsewhere = 0
            while elsewhere < 4:  # sooner or later it is given nothing new
                try:
                    async with sessions(server.url, 1) as (client,):
                        elsewhere = elsewhere + 1 if await process_of(client) != home else 0
                except (CapacityReached, SessionLost):
                    elsewhere = 0
            gate.touch()
            assert (await socket.hear())["data"]["observation"]["result"]["data"] == 1
            with pytest.raises(ConnectionClosed):
                await socket.hear()
            until(lambda: home not in server.workers() and len(server.workers()) == 2, "another one")
            (new,) = server.workers() - {await process_of(other)}
            await _until_served_by(server, new)
        assert not any("unexpectedly" in line for line in server.said)

    with served() as server:
        run(main(server))


def test_workers_are_forks_of_one_process_without_threads(two: Server) -> None:
    parents = {Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1] for worker in two.workers()}
    (parent,) = parents
    assert parent != str(two.process.pid)
    assert len(os.listdir(f"/proc/{parent}/task")) == 1


@pytest.mark.slow
def test_workers_do_not_outlive_the_process_that_started_them() -> None:
    with served() as server:
        workers = server.workers()
        assert len(workers) == 2
        server.process.kill()
        until(lambda: not any(Path(f"/proc/{pid}/fd").exists() for pid in workers), "the workers' end")


@pytest.mark.slow
def test_episodes_of_all_workers_are_recorded(tmp_path: Path) -> None:
    async def main(url: str) -> set[str]:
        names = set()
        async with sessions(url, 6) as clients:
            for number, client in enumerate(clients):
                await client.reset(episode_id=f"episode-{number}")
                names.add(f"episode-{number}")
                await client.call_tool("add")
        return names

    with served("--record", str(tmp_path)) as server:
        names = run(main(server.url))
    found = [episode.id for episode in read_episodes(tmp_path)]
    assert len(found) == len(set(found))
    assert names <= set(found)


# -- refusals


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workers", "0"), "--workers is 0; it must be 1 or more"),
        (("--workers", "-2"), "--workers is -2; it must be 1 or more"),
        (("--workers", "two"), "two"),
        (("--workers", "2", "--transport", "stdio"), "--workers needs --transport http"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_line(options: tuple[str, ...], said: str) -> None:
    ended = subprocess.run(command("World", *options), capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr


@pytest.mark.slow
def test_an_environment_that_cannot_be_made_is_refused_in_a_line() -> None:
    given = command("Broken", "--workers", "2")
    ended = subprocess.run(given, capture_output=True, text=True, timeout=3 * PATIENCE_S)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert "no such luck" in ended.stderr


@pytest.mark.slow
def test_a_worker_that_cannot_be_started_anew_is_tried_again(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.touch()
    with served(world="BrokenLater", env={"CLUSTER_WORLD_ONCE": str(there)}) as server:
        victim = min(server.workers())
        there.unlink()
        os.kill(victim, signal.SIGKILL)
        until(lambda: any("could not be restarted" in line for line in server.said), "a failed start")
        there.touch()
        run(_until_both_serve(server))


__all__ = ["Control"]
