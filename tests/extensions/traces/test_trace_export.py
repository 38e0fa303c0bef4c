"""Spans at a collector: one episode is one tree, nothing secret is in it, and settings are checked."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import started
from fastmcp import Client
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from span_tree import Seen, tree
from websockets.sync.client import connect

ROOT = Path(__file__).parents[3]
WORLD = f"{ROOT / 'tests' / 'server' / 'traced_world.py'}:Traced"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


class Collector:
    """The stand-in of an OTLP collector: what it was sent, as spans."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Seen] = []
        self.bodies: list[bytes] = []
        self.pids: set[int] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(status)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = {each.key: each.value for each in of_resource.resource.attributes}
            assert resource["service.name"].string_value == "mcpenv"
            self.pids.add(resource["process.pid"].int_value)
            self.spans += [seen(span) for of_scope in of_resource.scope_spans for span in of_scope.spans]

    def trace(self, *names: str, trace_id: str = TRACE_ID) -> list[Seen]:
        """The spans of the trace, once it has some of these names."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            found = [span for span in list(self.spans) if span.trace == trace_id]
            if {span.name for span in found} >= set(names):
                return found
            time.sleep(0.02)
        pytest.fail(f"no {names} among {[span.name for span in self.spans]}")


def seen(span: Span) -> Seen:
    values = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
    kind = Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_")
    failed = span.status.code == Status.STATUS_CODE_ERROR
    parent = span.parent_span_id.hex() or None
    begin = span.start_time_unix_nano
    return Seen(span.span_id.hex(), parent, span.trace_id.hex(), span.name, kind, begin, failed, values)


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    collector = Collector(status)
    thread = threading.Thread(target=collector.server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        thread.join()
        collector.server.server_close()


def settings_for(collector: Collector) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}


def ask(socket: Any, kind: str, data: dict[str, Any], **more: Any) -> dict[str, Any]:
    socket.send(json.dumps({"type": kind, "data": data, **more}))
    answer: dict[str, Any] = json.loads(socket.recv())
    return answer


EPISODE = """\
control reset (server)
  reset
tools/call subtract (server)
  step reward=1
    execute_tool subtract
      author subtracts
    score
      author scores
control step (server)
  step reward=1
    execute_tool add
      author adds
    score
      author scores
control end (server)
  verify
    author verifies"""


@pytest.mark.smoke
def test_a_collector_gets_one_episode_from_the_orchestrator_to_the_tool(tmp_path: Path) -> None:
    traced = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
    add = {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1, "b": 2}}

    async def act(url: str) -> None:
        async with Client(url) as agent:
            await agent.call_tool("subtract", {"a": 1, "b": 2}, meta=traced)

    with collecting() as collector, started(tmp_path, "run", WORLD, "--port", "0", **settings_for(collector)) as server:
        with connect(server.url().replace("http", "ws") + "/ws") as socket:
            episode = ask(socket, "reset", {}, **traced)["data"]["info"]
            asyncio.run(act(episode["mcp_url"]))
            first = ask(socket, "step", add, request_id="1", **traced)
            assert first["data"]["reward"] == 1.0
            # The context of a trace is no part of what makes a repeated frame the same.
            assert ask(socket, "step", add, request_id="1", traceparent=TRACEPARENT.replace("0af7", "0bf7")) == first
            ask(socket, "end", {}, **traced)
        spans = collector.trace("control reset", "control step", "control end", "tools/call subtract")
        assert server.end(signal.SIGTERM) == 0
    shown = tree(span for span in spans if span.name not in ("tools/list", "server/discover", "initialize"))
    print(shown)
    assert shown == EPISODE
    assert EPISODE in (ROOT / "docs" / "how-to" / "trace.md").read_text(encoding="utf-8")
    steps = [span.attributes for span in spans if span.name == "step"]
    assert [step["mcpenv.step"] for step in sorted(steps, key=lambda step: step["mcpenv.step"])] == [1, 2]
    assert {step["mcpenv.episode_id"] for step in steps} == {episode["episode_id"]}
    everything = b"".join(collector.bodies)
    handle = episode["mcp_url"].split("/")[-2]
    assert handle.encode() not in everything


@pytest.mark.process
def test_no_secret_leaves_in_the_text_of_an_exception(tmp_path: Path) -> None:
    async def act(url: str) -> None:
        async with Client(f"{url}/mcp") as agent:
            await agent.call_tool("fail", {"secret": "Bearer abcdef123456"}, raise_on_error=False)

    with collecting() as collector, started(tmp_path, "run", WORLD, "--port", "0", **settings_for(collector)) as server:
        asyncio.run(act(server.url()))
        server.end(signal.SIGINT)
    everything = b"".join(collector.bodies)
    assert b"exception.message" in everything and b"no: Bearer ***" in everything
    assert b"abcdef123456" not in everything


@pytest.mark.process
def test_each_worker_exports_its_own_spans_and_flushes_them_at_its_end(tmp_path: Path) -> None:
    with collecting() as collector:
        slow = {**settings_for(collector), "OTEL_BSP_SCHEDULE_DELAY": "60000"}
        with started(tmp_path, "run", WORLD, "--port", "0", "--workers", "2", "--drain-s", "0", **slow) as server:
            url = server.url()
            for number in range(1, 5):
                headers = {"traceparent": f"00-{number:032x}-b7ad6b7169203331-01"}
                assert httpx.post(f"{url}/reset", headers=headers, timeout=30).status_code == 200
            assert not collector.spans
            assert server.end(signal.SIGTERM) == 0
    assert len(collector.pids) == 2
    assert [tree(collector.trace("reset", trace_id=f"{n:032x}")) for n in range(1, 5)] == [
        "control reset (server)\n  reset"
    ] * 4


@pytest.mark.process
def test_over_stdio_spans_are_sent_before_the_process_ends(tmp_path: Path) -> None:
    from fastmcp.client.transports import StdioTransport

    async def act() -> None:
        command = [sys.executable, "-m", "mcpenv", "run", WORLD, "--transport", "stdio"]
        environ = {**os.environ, **settings_for(collector), "OTEL_BSP_SCHEDULE_DELAY": "60000"}
        async with Client(StdioTransport(command[0], command[1:], env=environ, keep_alive=False)) as agent:
            await agent.call_tool("add", {"a": 1, "b": 2}, meta={"traceparent": TRACEPARENT})

    with collecting() as collector:
        asyncio.run(act())
        spans = collector.trace("execute_tool add")
    assert "  step\n    execute_tool add\n      author adds" in tree(spans)


@pytest.mark.process
def test_a_collector_that_fails_stops_nothing(tmp_path: Path) -> None:
    with collecting(status=400) as collector:
        with started(tmp_path, "run", WORLD, "--port", "0", **settings_for(collector)) as server:
            url = server.url()
            for _ in range(5):
                assert httpx.post(f"{url}/reset", timeout=30).status_code == 200
            assert server.end(signal.SIGINT) == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin'"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "'grpc'"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": "."}, "pip install 'mcpenv[otel]'"),
    ],
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_traces_that_cannot_be_exported_refuse_the_start(
    tmp_path: Path, settings: dict[str, str], text: str, workers: str
) -> None:
    if "PYTHONPATH" in settings:
        package = tmp_path / "opentelemetry" / "sdk"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise ModuleNotFoundError(name='opentelemetry.sdk')")
        settings = {**settings, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with started(tmp_path, "run", WORLD, "--port", "0", "--workers", workers, **settings) as server:
        assert server.end() == 2
    assert len(server.err) == 1 and text in server.err[0], server.err


@pytest.mark.process
@pytest.mark.parametrize(
    "settings", [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}]
)
def test_traces_that_are_turned_off_are_off(tmp_path: Path, settings: dict[str, str]) -> None:
    with collecting() as collector:
        with started(tmp_path, "run", WORLD, "--port", "0", **settings_for(collector), **settings) as server:
            assert httpx.post(server.url() + "/reset", timeout=30).status_code == 200
            server.end(signal.SIGINT)
    assert not collector.bodies
