"""Texts of a proxied server that have no UTF-8 form have U+FFFD, and cost no call, no session and no time."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import halves
import pytest
from fastmcp import Client
from hypothesis import given
from hypothesis import strategies as st

from mcpenv import CallToolAction
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.extensions.mcp_proxy.texts import well_formed_json
from mcpenv_client.types.texts import well_formed

SERVER = Path(halves.__file__)

AT_ONCE_S = 15
"""Seconds within which everything is done. A call that is not answered takes 300 s."""


class _Json(BaseHTTPRequestHandler):
    """Answers with JSON, or with an event stream where there is a notification too."""

    protocol_version = "HTTP/1.1"
    events = False

    def do_GET(self) -> None:
        self._send(405, "text/html", b"no")

    do_DELETE = do_GET

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        found = halves.answers(message)
        if not found:
            self._send(202, "text/html", b"")
        elif self.events or len(found) > 1:
            self._send(200, "text/event-stream", b"".join(b"data: " + each + b"\n\n" for each in found))
        else:
            self._send(200, "application/json", found[0])

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


class _Events(_Json):
    events = True


@contextmanager
def at_url(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)


@pytest.fixture(params=["stdio", "json", "events"])
def settings(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    if request.param == "stdio":
        yield {"command": sys.executable, "args": [str(SERVER)]}
        return
    with at_url(_Json if request.param == "json" else _Events) as url:
        yield {"url": url}


def test_halves_of_characters_are_replaced_alone_wherever_a_server_writes_them(settings: dict[str, Any]) -> None:
    cls = ProxyEnvironment.from_config({"mcpServers": {"halves": settings}})
    began = time.monotonic()
    with cls() as env:
        env.reset()

        def call(how: str) -> Any:
            return env.step(CallToolAction(tool_name="act", arguments={"how": how}))

        tools = {tool.name: tool for tool in env.list_tools()}
        assert set(tools) >= {"act", "look", "odd\ufffd"}
        assert tools["look"].description.startswith("look \ufffd \ufffd")
        assert call("text").text.startswith("half \ufffd other \ufffd raw \ufffd")
        assert call("whole").text == well_formed(halves.WHOLE)
        structured = call("structured")
        assert structured.result.structured_content == {"a": "\ufffd", "key\ufffd": ["\ufffdb"]}
        for how, said in (("error", "not today \ufffd"), ("failed", "failed \ufffd")):
            seen = call(how)
            assert said in str(seen) and not seen.done
        for how in ("progress", "message", "good"):
            seen = call(how)
            assert (seen.text, seen.done) == (f"did {how}", False)
        assert {step.status.code for step in env.trajectory.steps} <= {"completed", "agent_error"}
        json.dumps(env.trajectory.to_plain(), ensure_ascii=False).encode()
        asyncio.run(_read(env))
    assert time.monotonic() - began < AT_ONCE_S


async def _read(env: Any) -> None:
    async with asyncio.timeout(AT_ONCE_S), Client(env.mcp) as agent:
        (resource,) = [each for each in await agent.list_resources() if "note" in str(each.uri)]
        assert resource.description == "a \ufffd"
        (content,) = await agent.read_resource(resource.uri)
        assert content.text.startswith("read \ufffd")


@given(st.text(alphabet=st.sampled_from([*'ab\\u"\n', "\ud83d", "\ude00", "\U0001f600", "\ufffd", "é"]), max_size=20))
def test_json_is_repaired_as_its_text_is(text: str) -> None:
    escaped = json.dumps({text: [text]})
    repaired = json.loads(well_formed_json(escaped.encode()))
    assert repaired == {well_formed(text): [well_formed(text)]}
    if text == well_formed(text):
        assert well_formed_json(escaped.encode()) == escaped.encode()
