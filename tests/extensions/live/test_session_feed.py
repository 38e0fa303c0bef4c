"""Watching the list of sessions: one stream with the rows that change, which costs nothing while nobody watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect
from worlds import World

from mcpenv.extensions.live import session_feed
from mcpenv.extensions.live.session_events import Position
from mcpenv.extensions.live.session_feed import SessionFeed
from mcpenv.server.app import EnvServer
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.server.sessions.session import Origin, Session

Event = tuple[str, str, dict[str, Any]]


def parsed(lines: Iterator[str]) -> Iterator[Event]:
    """Yield the name, id and data of each event."""
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields["event"], fields.get("id", ""), json.loads(fields["data"])
            fields = {}


def ask(socket: ClientConnection, kind: str, data: dict[str, Any]) -> None:
    socket.send(json.dumps({"type": kind, "data": data}))
    assert json.loads(socket.recv(20))["type"] == "observation"


def row_until(seen: Iterator[Event], **wanted: Any) -> dict[str, Any]:
    """Return the first row that has these values. The stream's timeout bounds the wait."""
    for _, _, data in seen:
        for row in data["sessions"]:
            if wanted.items() <= row.items():
                return dict(row)
    raise AssertionError(f"the stream ended without {wanted}")


@pytest.mark.slow  # the list is sampled twice a second
@pytest.mark.parametrize("workers", [1, 2])
def test_a_watcher_gets_the_list_and_then_each_change_of_any_workers_session(workers: int) -> None:
    with (
        serving(World, max_concurrent_envs=8, workers=workers) as url,
        httpx.stream("GET", f"{url}/sessions/events", timeout=20) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        seen = parsed(answer.iter_lines())
        name, _, data = next(seen)
        assert (name, data["sessions"]) == ("sessions", [])
        address = url.replace("http", "ws") + "/ws?agent=console"
        with connect(address) as one, connect(address) as other:
            for socket in (one, other):
                ask(socket, "reset", {})
                row = row_until(seen, state="running", agent="console", status=None)
                ask(socket, "step", {"type": "call_tool", "tool_name": "add", "arguments": {"by": 2}})
                row = row_until(seen, session_id=row["session_id"], step_count=1)
                assert row["reward"]["value"] == row["return"]
            ask(other, "end", {})
            assert row_until(seen, session_id=row["session_id"], state="done")["status"] == "completed"
            assert httpx.delete(f"{url}/sessions/{row['session_id']}").status_code == 200
            gone = next(data["gone"] for _, _, data in seen if data["gone"])
            assert gone == [row["session_id"]]


def test_the_stream_needs_the_control_token_and_refuses_an_id_that_is_none() -> None:
    with serving(World, ServerConfig(control_token="the-control-token")) as url:
        assert httpx.get(f"{url}/sessions/events").status_code == 401
        headers = {"Authorization": "Bearer the-control-token", "Last-Event-ID": "nonsense"}
        refused = httpx.get(f"{url}/sessions/events", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (422, "VALIDATION_ERROR")


def test_the_stream_ends_with_the_server() -> None:
    with httpx.Client(timeout=20) as client:
        with serving(World) as url:
            answer = client.send(client.build_request("GET", f"{url}/sessions/events"), stream=True)
            seen = parsed(answer.iter_lines())
            assert next(seen)[0] == "sessions"
        assert [name for name, _, _ in seen] == ["closed"]
        answer.close()


@asynccontextmanager
async def feed_of(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SessionFeed, EnvServer]]:
    monkeypatch.setattr(session_feed, "INTERVAL_S", 0.01)
    server = EnvServer(World, max_concurrent_envs=300)
    async with asyncio.timeout(30), server.running():
        yield SessionFeed(server, linger_s=0.0), server


async def next_event(stream: AsyncIterator[bytes]) -> Event:
    text = await anext(stream)
    return list(parsed(iter(text.decode().split("\n"))))[-1]


async def reset(server: EnvServer) -> Session:
    session = await server.pool.open(Origin.HTTP)
    await session.execution.reset()
    return session


def test_nothing_is_sampled_while_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch() -> None:
        async with feed_of(monkeypatch) as (feed, server):
            await reset(server)
            assert not feed.sampling
            one, other = feed.events(None), feed.events(None)
            assert [len((await next_event(each))[2]["sessions"]) for each in (one, other)] == [1, 1]
            await one.aclose()
            assert feed.sampling
            await other.aclose()
            while feed.sampling:
                await asyncio.sleep(0)
            again = feed.events(None)
            assert (await next_event(again))[0] == "sessions"

    asyncio.run(watch())


def test_a_watcher_resumes_after_the_last_change_that_it_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch() -> None:
        async with feed_of(monkeypatch) as (feed, server):
            stays = feed.events(None)
            _, last, _ = await next_event(stays)
            session = await reset(server)
            assert (await next_event(stays))[0] == "changed"
            resumed = feed.events(Position(last))
            name, _, data = await next_event(resumed)
            assert (name, data["sessions"][0]["session_id"]) == ("changed", session.id)
            unknown = feed.events(Position("another.1"))
            assert (await next_event(unknown))[0] == "sessions"

    asyncio.run(watch())


def test_a_watcher_that_does_not_read_delays_no_step_and_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_feed, "MAX_CHANGES", 3)

    async def watch() -> None:
        async with feed_of(monkeypatch) as (feed, server):
            session = await reset(server)
            slow, quick = feed.events(None), feed.events(None)
            assert (await next_event(slow))[0] == (await next_event(quick))[0] == "sessions"
            for _ in range(6):
                await session.execution.call_tool("add", {"by": 1})
                assert (await next_event(quick))[0] == "changed"
            name, _, data = await next_event(slow)
            assert (name, data["sessions"][0]["step_count"]) == ("sessions", 6)

    asyncio.run(watch())


def test_a_sample_of_many_sessions_lets_steps_run_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_feed, "CHUNK", 10)

    async def watch() -> None:
        async with feed_of(monkeypatch) as (feed, server):
            session = await reset(server)
            for _ in range(200):
                await server.pool.open(Origin.HTTP)
            steps: list[int] = []

            async def play() -> None:
                while True:
                    await session.execution.call_tool("add", {"by": 1})
                    steps.append(1)
                    await asyncio.sleep(0)

            playing = asyncio.create_task(play())
            stream = feed.events(None)
            assert len((await next_event(stream))[2]["sessions"]) == 201
            playing.cancel()
            assert steps

    asyncio.run(watch())
