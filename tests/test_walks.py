"""The walks of docs/architecture.md: which files one call enters, in process, over ``/ws`` and over ``/mcp``.

    pytest tests/test_walks.py -s        prints them

A return is an entry into a file that the walk has been in before and left. A coroutine that is resumed is not entered.

The goals are assertions. A walk that grows has found a second path.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from starlette.types import Message, Scope

import mcpenv
import mcpenv_client
from mcpenv import CallToolAction, MCPEnvironment, ToolCall, ToolOutcome
from mcpenv.server.app import create_app
from mcpenv.server.mcp import endpoint

ROOTS = [Path(str(package.__file__)).parents[0] for package in (mcpenv, mcpenv_client)]
BEGINNING = 0
"""The argument of the instruction RESUME at the beginning of a function; elsewhere it is larger (module `dis`)."""
COMPREHENSIONS = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>"}
THE_CORE = {f"mcpenv/execution/{name}.py" for name in ("execution", "step", "tool_call", "episode")}


GOALS = {"in process": (12, 8), "/ws": (15, 10), "/mcp": (18, 12), "reset on /ws": (30, 25)}
"""The most files and returns of each walk."""


class Walk:
    """The profiler hook that notes the files of calls; consecutive calls into one file are one entry."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or frame.f_code.co_name in COMPREHENSIONS:
            return
        if frame.f_code.co_code[frame.f_lasti + 1] != BEGINNING:
            return
        path = Path(frame.f_code.co_filename)
        for root in ROOTS:
            if root in path.parents:
                name = path.relative_to(root.parent).as_posix()
                if self.files[-1:] != [name]:
                    self.files.append(name)

    def check(self, what: str, result: str, core: set[str] = THE_CORE) -> None:
        distinct = dict.fromkeys(self.files)
        returns = len(self.files) - len(distinct)
        print(f"\n{what}: {len(distinct)} files, {returns} returns", *distinct, sep="\n  ")
        assert "2" in result  # the second call of a counter
        assert distinct.keys() >= core
        most_files, most_returns = GOALS[what]
        assert len(distinct) <= most_files and returns <= most_returns


class Counter(MCPEnvironment):
    """A counter with a sync and an async tool, scored."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        def add(by: int = 1) -> int:
            """Add."""
            self.count += by
            return self.count

        @self.tool
        async def add_later(by: int = 1) -> int:
            """Add."""
            self.count += by
            return self.count

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        return 1.0


@pytest.fixture(autouse=True)
def _no_profiler_stays(caplog: pytest.LogCaptureFixture) -> Any:
    for name in ("mcpenv", "mcpenv.access"):
        caplog.set_level(logging.WARNING, name)  # the access log is no part of a walk
    before = sys.getprofile()
    yield
    sys.setprofile(before)


def test_a_step_in_process() -> None:
    env, walk = Counter(), Walk()
    env.step(CallToolAction(tool_name="add", arguments={"by": 1}))
    sys.setprofile(walk)
    observation = env.step(CallToolAction(tool_name="add", arguments={"by": 1}))
    sys.setprofile(None)
    walk.check("in process", observation.text)


HEADERS = [(b"host", b"127.0.0.1:8000")]
SCOPE: Scope = {
    "query_string": b"",
    "client": ("127.0.0.1", 5),
    "server": ("127.0.0.1", 8000),
    "root_path": "",
    "http_version": "1.1",
    "asgi": {"version": "3.0"},
    "extensions": {},
}


def run(main: Callable[[Any], Any]) -> None:
    async def serving() -> None:
        app = create_app(Counter)
        async with app.router.lifespan_context(app):
            await main(app)

    asyncio.run(asyncio.wait_for(serving(), 60))


def run_on_ws(main: Callable[[Callable[[dict[str, Any]], Any]], Any]) -> None:
    """Run `main` with a function that sends a frame and returns the answer. No profiler runs once there is one."""

    async def connected(app: Any) -> None:
        to_server: asyncio.Queue[Message] = asyncio.Queue()
        to_client: asyncio.Queue[Message] = asyncio.Queue()

        async def send(message: Message) -> None:
            sys.setprofile(None)
            to_client.put_nowait(message)

        async def ask(frame: dict[str, Any]) -> str:
            to_server.put_nowait({"type": "websocket.receive", "text": json.dumps(frame)})
            return str((await to_client.get())["text"])

        scope = {**SCOPE, "type": "websocket", "scheme": "ws", "path": "/ws", "raw_path": b"/ws", "headers": HEADERS}
        serving = asyncio.ensure_future(app({**scope, "subprotocols": [], "state": {}}, to_server.get, send))
        to_server.put_nowait({"type": "websocket.connect"})
        await to_client.get()
        await main(ask)
        to_server.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await serving

    run(connected)


def test_a_step_over_ws() -> None:
    walk = Walk()

    async def main(ask: Callable[[dict[str, Any]], Any]) -> None:
        await ask({"type": "reset", "data": {}})
        step = {"type": "call_tool", "tool_name": "add_later", "arguments": {"by": 1}}
        await ask({"type": "step", "data": step})
        await ask({"type": "state"})  # the server waits for a frame again
        sys.setprofile(walk)
        answer = await ask({"type": "step", "data": step})
        walk.check("/ws", json.loads(answer)["data"]["observation"]["result"]["content"][0]["text"])

    run_on_ws(main)


def test_a_reset_over_ws() -> None:
    walk = Walk()

    async def main(ask: Callable[[dict[str, Any]], Any]) -> None:
        await ask({"type": "reset", "data": {}})
        await ask({"type": "state"})
        sys.setprofile(walk)
        answer = await ask({"type": "reset", "data": {"episode_id": "episode-2"}})
        core = {f"mcpenv/execution/{name}.py" for name in ("execution", "reset", "episode")}
        walk.check("reset on /ws", json.loads(answer)["data"]["info"]["episode_id"], core)

    run_on_ws(main)


def test_a_call_over_mcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "WATCH_AFTER_S", 60.0)  # on a busy machine, a watcher would enter the walk
    walk, version = Walk(), "2026-07-28"
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": "walker", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "add_later", "arguments": {"by": 1}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = [
        *HEADERS,
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"mcp-protocol-version", version.encode()),
        (b"mcp-method", b"tools/call"),
        (b"mcp-name", b"add_later"),
    ]
    scope = {**SCOPE, "type": "http", "method": "POST", "scheme": "http", "path": "/mcp", "raw_path": b"/mcp"}

    async def main(app: Any) -> None:
        async def call() -> bytes:
            parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
            sent: list[bytes] = []

            async def receive() -> Message:
                if parts:
                    return parts.pop()
                await asyncio.Event().wait()
                raise AssertionError

            async def send(message: Message) -> None:
                sent.append(message.get("body", b""))

            await app({**scope, "headers": headers, "state": {}}, receive, send)
            return b"".join(sent)

        await call()
        sys.setprofile(walk)
        answer = await call()
        sys.setprofile(None)
        walk.check("/mcp", json.loads(answer)["result"]["content"][0]["text"])

    run(main)
