"""Test the numbers of docs/reference/limits.md against the code, and the bounds that no other test reaches."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import fastmcp
import pytest
from limits_page import Numbers, assert_has
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from websockets.sync.client import connect

from mcpenv import Evidence, MCPEnvironment, ObjectWorld, failures, redaction
from mcpenv.execution import episode, scoring, subscriptions
from mcpenv.execution.notifications import MAX_STREAMS
from mcpenv.rewards.verifiers import specs
from mcpenv.server.config import MANY_SESSIONS, ServerConfig
from mcpenv.server.control import concurrent_frames, connection, task_routes
from mcpenv.server.http import file_limits, http_protocol, open_connections, websocket_protocol
from mcpenv.server.mcp import connections
from mcpenv.server.metrics import counters
from mcpenv.server.security import control_auth
from mcpenv.server.serve import serving
from mcpenv.server.sessions import handles, idempotency
from mcpenv.server.sessions.capacity import CapacityLimiter
from mcpenv.server.sessions.idempotency import Answer, IdempotencyCache
from mcpenv.server.sessions.pool import LINGER_S
from mcpenv.server.uvicorn_server import KEEP_ALIVE_S
from mcpenv.tasks.reset_options import MAX_EPISODE_ID
from mcpenv.trajectories import segments, spilled
from mcpenv.worlds import capture
from mcpenv_client import EnvClient
from mcpenv_client.errors import InvalidMessage, ReplyGone
from mcpenv_client.types.checked import MAX_CHECKED, MAX_VALUE
from mcpenv_client.types.records import StepRecord, ToolCall, ToolOutcome
from mcpenv_client.types.tools import ToolResult
from mcpenv_client.types.values import MAX_NESTING, MAX_PARTS
from mcpenv_client.wire import faults
from mcpenv_client.wire.protocol import MAX_REASON, MAX_TRACE_FIELD, decode_frame

MIB, KIB = 1 << 20, 1 << 10
CONFIG = ServerConfig()
ANSWER: int = inspect.signature(EnvClient).parameters["max_message_bytes"].default

NUMBERS: Numbers = {
    "a frame or request body": [("{} MiB", CONFIG.max_message_bytes / MIB)],
    "an answer on `/ws`": [("{} MiB", ANSWER / MIB)],
    "the head of a request": [("{} KiB", http_protocol.MAX_HEAD_BYTES / KIB)],
    "lists, objects and commas": [("{}", MAX_PARTS)],
    "nesting of lists": [("{}", MAX_NESTING)],
    "sessions": [("{}", MANY_SESSIONS)],
    "running and waiting calls": [("{}", CONFIG.max_calls_in_flight)],
    "handshake MCP connections": [
        ("{}", connections.MAX_PLAIN),
        ("{} KiB", connections.MAX_BYTES_PER_HANDLE / KIB),
        ("{} MiB", connections.MAX_PLAIN_BYTES / MIB),
    ],
    "what a handshake client says": [("{} KiB", connections.MAX_FIRST_BYTES / KIB)],
    "frames that wait behind": [("{}", connection.MAX_BACKLOG)],
    "unread answers to": [("{}", concurrent_frames.MAX_UNSENT)],
    "pending `wait` frames": [("{}", concurrent_frames.MAX_UNDER_WAY)],
    "`reason` of an `end` frame; `episode_id`": [("{}; ", MAX_REASON), ("{} characters", MAX_EPISODE_ID)],
    "`traceparent` of a frame": [("{} characters", MAX_TRACE_FIELD)],
    "a step, reset, state": [("{} s", CONFIG.step_timeout_s)],
    "a peer on `/ws`": [("{} s", CONFIG.ping_interval_s)],
    "an HTTP connection that waits": [("{} s,", KEEP_ALIVE_S), ("{} KiB", http_protocol.MIN_BODY_BYTES / KIB)],
    "connections of a process": [("less {}", file_limits.BESIDE)],
    "a session without use": [("{} s", CONFIG.session_timeout_s)],
    "a session after its socket": [("{} s", CONFIG.resume_grace_s)],
    "answers that a session keeps": [
        ("{},", idempotency.MAX_REPLIES),
        ("{} MiB", idempotency.MAX_REPLY_BYTES / MIB),
        ("{} ids", idempotency.MAX_IDS),
    ],
    "unfinished bodies": [("{} times", open_connections.UNFINISHED_BODIES)],
    "frames of a socket": [
        ("{} KiB", websocket_protocol.PIECE / KIB),
        ("; {}", connection.FRAMES_IN_A_ROW),
    ],
    "the world before and after": [("{} MiB", specs.MAX_WORLD / MIB), ("{} levels", specs.MAX_DEPTH)],
    "handles of episodes": [("{} s", handles.GRACE_S), ("{} of them", handles.MAX_PAST)],
    "records of steps that an episode keeps": [
        ("{}", MCPEnvironment.max_kept_steps),
        ("{} MiB", MCPEnvironment.max_kept_bytes / MIB),
    ],
    "dropped steps that are kept": [("{} MiB", spilled.MAX_SPILLED_BYTES / MIB)],
    "faults that a refusal": [("{},", faults.MAX_FAULTS)],
    "streams of changes": [
        ("{};", MAX_STREAMS),
        ("{};", subscriptions.MAX_URIS),
        ("; {},", subscriptions.MAX_URI),
        ("{} KiB", subscriptions.MAX_URI_BYTES / KIB),
    ],
    "tasks in one answer": [("{}", task_routes.MAX_LISTED)],
    "an episode in a record": [("{} MiB", segments.MAX_MEMBER_BYTES / MIB)],
    "snapshots of one session": [("{},", CONFIG.max_snapshots), ("{} MiB", (CONFIG.max_snapshot_bytes or 0) / MIB)],
    "the time of a capture": [("{} %", scoring.CAPTURE_SHARE * 100)],
    "problems and changes": [
        ("{};", scoring.MAX_PROBLEMS),
        ("{},", scoring.MAX_CHANGES),
        ("{} characters", scoring.MAX_SENTENCE),
    ],
    "changes that an episode keeps as evidence": [("{},", MAX_CHECKED), ("{} characters", MAX_VALUE)],
    "quarantined instances": [("{}", CONFIG.max_quarantined)],
    "running episodes at SIGTERM": [("{} s", CONFIG.drain_s)],
    "a client's questions at SIGTERM": [("{} s", LINGER_S)],
    "running steps at shutdown": [("{} s", CONFIG.shutdown_timeout_s)],
    "tools that `/metrics`": [("{}", counters.MAX_TOOLS)],
    "text of an exception": [("{} characters", failures.MAX_MESSAGE)],
    "a message or a traceback in the log": [("{} characters", redaction.MAX_TEXT)],
    "warnings of refused credentials": [("one a minute", control_auth.WARN_EVERY_S)],
}


@pytest.mark.parametrize("beginning", NUMBERS)
def test_the_page_has_the_numbers_of_the_code(beginning: str) -> None:
    assert_has(beginning, NUMBERS[beginning])


@pytest.mark.parametrize(("sessions", "of_agents"), [(1, 1), (2, 1), (3, 2), (4, 3), (1024, 768)])
def test_agents_may_have_all_sessions_but_a_quarter(sessions: int, of_agents: int) -> None:
    assert (
        CapacityLimiter(lambda: sessions, queue_timeout_s=0, max_quarantined=0, reserves=True).agents_limit == of_agents
    )


# -- names and ids


@pytest.mark.parametrize("name", ["traceparent", "tracestate"])
def test_a_trace_field_of_a_frame_has_1024_characters(name: str) -> None:
    frame = {"type": "state", "traceparent": "t", name: "x" * MAX_TRACE_FIELD}
    trace = decode_frame(json.dumps(frame)).trace
    assert trace is not None and trace[name] == frame[name]
    with pytest.raises(InvalidMessage, match=f"{name} is not a string of at most 1024 characters"):
        decode_frame(json.dumps({**frame, name: "x" * (MAX_TRACE_FIELD + 1)}))


class Counter(MCPEnvironment):
    """A counter."""

    def __init__(self) -> None:
        @self.tool
        def add() -> int:
            """Count."""
            return 1


def test_the_id_of_an_episode_has_255_characters_on_the_wire_and_in_process() -> None:
    longest = "e" * MAX_EPISODE_ID
    with serving(Counter) as url, connect(url.replace("http", "ws") + "/ws") as socket:

        def reset(episode_id: str) -> Any:
            socket.send(json.dumps({"type": "reset", "data": {"episode_id": episode_id}}))
            return json.loads(socket.recv(30))

        assert longest in json.dumps(reset(longest)["data"])
        for wrong in (longest + "e", ""):
            refused = reset(wrong)["data"]
            assert refused["code"] == "VALIDATION_ERROR" and "1 to 255 characters" in refused["message"]
    with Counter() as env:
        assert env.reset(episode_id=longest).info["episode_id"] == longest
        with pytest.raises(InvalidMessage, match="1 to 255 characters"):
            env.reset(episode_id=longest + "e")
        assert env.trajectory is not None and env.trajectory.episode_id == longest


def test_a_uri_to_subscribe_to_has_2048_characters_in_both_versions_of_mcp() -> None:
    longest = "book://" + "b" * (subscriptions.MAX_URI - 7)
    refusal = "at most 1000 URIs of 2048 characters"

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp", mode="2026-07-28") as client:
            async with client.listen(resource_subscriptions=[longest]):
                pass
            many = [f"book://{number}" for number in range(subscriptions.MAX_URIS + 1)]
            for wrong in ([longest + "b"], many, [f"{longest[:-3]}{number}" for number in range(100, 229)]):
                with pytest.raises(MCPError, match=refusal):
                    async with client.listen(resource_subscriptions=wrong):
                        pass
        async with EnvClient(url) as orchestrator:
            address = (await orchestrator.reset()).info["mcp_url"]
            async with fastmcp.Client(address, mode="legacy") as client:
                await client.session.subscribe_resource(longest)
                for number in range(100, 227):
                    await client.session.subscribe_resource(f"{longest[:-3]}{number}")
                await client.session.subscribe_resource(longest)
                for uri in (longest + "b", "book://one-more"):
                    with pytest.raises(MCPError, match=refusal):
                        await client.session.subscribe_resource(uri)

    with serving(Counter) as url:
        asyncio.run(asyncio.wait_for(main(url), 60))


def test_a_uri_to_subscribe_to_is_ascii_in_both_versions_of_mcp() -> None:
    """One character outside of the basic plane would make each of its characters four bytes."""
    refusal = "not ASCII; encode them as %XX"

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp", mode="2026-07-28") as client:
            with pytest.raises(MCPError, match=refusal):
                async with client.listen(resource_subscriptions=["book://\U0001f4d6"]):
                    pass
        async with EnvClient(url) as orchestrator:
            address = (await orchestrator.reset()).info["mcp_url"]
            async with fastmcp.Client(address, mode="legacy") as client:
                with pytest.raises(MCPError, match=refusal):
                    await client.session.subscribe_resource("book://\U0001f4d6")

    with serving(Counter) as url:
        asyncio.run(asyncio.wait_for(main(url), 60))


# -- arguments


def test_a_call_with_300000_unknown_arguments_names_none_and_is_counted_with_its_memory() -> None:
    with Counter() as env:
        env.reset()
        arguments = {f"k{number}": 1 for number in range(300_000)}
        memory = sys.getsizeof(arguments) + sum(map(sys.getsizeof, arguments))
        error = env.call_tool("add", arguments).error
        assert error is not None and error.errors is not None
        assert [fault["msg"] for fault in error.errors] == ["300000 problems"] and len(error.message) < 500
        assert env.trajectory is not None
        kept = episode.bytes_of(env.trajectory.steps[0])
    assert memory / 2 < kept < memory * 2


def test_a_call_with_some_unknown_arguments_names_20_of_them() -> None:
    with Counter() as env:
        env.reset()
        error = env.call_tool("add", {f"k{number}": 1 for number in range(9_000)}).error
    assert error is not None and error.errors is not None
    assert len(error.errors) == faults.MAX_FAULTS == 20
    assert error.message.count("Unexpected") == 20 and "; 8980 more problems." in error.message


# -- answers that are kept


def asked(ask: Callable[[IdempotencyCache], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(ask(IdempotencyCache()), 60))


async def ask(replies: IdempotencyCache, number: int, text: str = "done") -> str:
    """Ask under an id, and return the answer."""

    async def run() -> Answer:
        return Answer(text)

    return (await replies.once(str(number), b"x", run)).text


def test_a_session_keeps_256_answers() -> None:
    async def main(replies: IdempotencyCache) -> None:
        for number in range(idempotency.MAX_REPLIES + 1):
            await ask(replies, number, f"first {number}")
        with pytest.raises(ReplyGone):
            await ask(replies, 0)
        assert await ask(replies, 1) == "first 1" and await ask(replies, 256) == "first 256"

    asked(main)


def test_the_answers_that_a_session_keeps_have_8_mib_but_for_the_newest() -> None:
    half = "x" * (idempotency.MAX_REPLY_BYTES // 2)

    async def main(replies: IdempotencyCache) -> None:
        for number in range(2):
            await ask(replies, number, half)
        assert await ask(replies, 0) == half
        await ask(replies, 2, "y")
        with pytest.raises(ReplyGone):
            await ask(replies, 0)
        assert await ask(replies, 1) == half
        await ask(replies, 3, half * 3)
        assert await ask(replies, 3) == half * 3
        for number in (1, 2):
            with pytest.raises(ReplyGone):
                await ask(replies, number)

    asked(main)


def test_a_session_knows_8192_ids() -> None:
    async def main(replies: IdempotencyCache) -> None:
        for number in range(idempotency.MAX_IDS + 1):
            await ask(replies, number)
        assert not replies.known("0") and replies.known("1") and replies.known(str(idempotency.MAX_IDS))
        with pytest.raises(ReplyGone):
            await ask(replies, 1)

    asked(main)


# -- verification


class Table(MCPEnvironment):
    """A table that its tool fills."""

    def __init__(self) -> None:
        self.cells: dict[str, str] = {}
        self.world = ObjectWorld(lambda: self.cells, self.cells.update)

        @self.tool
        def fill(cells: int, size: int) -> None:
            """Fill cells."""
            self.cells.update({f"cell {number}": "x" * size for number in range(cells)})

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self.cells = {}

    def verify(self, evidence: Evidence) -> bool:
        return True


def test_an_episode_keeps_50_changes_of_500_characters_and_counts_the_others() -> None:
    with Table() as env:
        env.reset()
        env.call_tool("fill", {"cells": 53, "size": 2_000})
        env.end()
        assert env.trajectory is not None
        *changes, last = env.trajectory.changes
    assert len(changes) == scoring.MAX_CHANGES == 50 and last == "and 3 more"
    assert max(map(len, changes)) <= scoring.MAX_SENTENCE == 500


@pytest.mark.parametrize("timeout_s", [10.0, 40.0])
def test_a_capture_has_70_percent_of_the_deadline(timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float | None] = []

    def captured(worlds: Any, within_s: float | None = None) -> Any:
        given.append(within_s)
        return capture(worlds, within_s)

    monkeypatch.setattr(scoring, "capture", captured)

    async def main(url: str) -> None:
        async with EnvClient(url) as env:
            await env.reset()
            await env.end()

    with serving(Table, ServerConfig(step_timeout_s=timeout_s)) as url:
        asyncio.run(asyncio.wait_for(main(url), 60))
    assert given == [0.7 * timeout_s, 0.7 * timeout_s]


def test_images_and_audio_count_an_eighth_of_what_is_kept() -> None:
    def of(block: dict[str, Any]) -> int:
        outcome = ToolOutcome(result=ToolResult(content=[block]))
        return episode.bytes_of(StepRecord(call=ToolCall("look", {}, 1), outcome=outcome))

    text = of({"type": "text", "text": "x" * 800_000})
    assert 800_000 <= text < 810_000
    for kind in ("image", "audio"):
        assert 100_000 <= of({"type": kind, "data": "x" * 800_000, "mimeType": "a/b"}) < 110_000
