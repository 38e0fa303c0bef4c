"""One scenario with the SDK's exporter in memory; prints its spans. A process has one tracer provider for good."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import httpx
from fastmcp import Client
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from span_tree import Seen, tree
from traced_world import Mounted, Traced

from mcpenv.server import serving
from mcpenv_client import EnvClient

MEMORY = InMemorySpanExporter()
tracer = trace.get_tracer("orchestrator")


def socket() -> None:
    with serving(Traced) as url, EnvClient(url).sync() as client:
        with tracer.start_as_current_span("orchestrator"):
            client.reset(seed=1)
            client.call_tool("add", {"a": 1, "b": 2})
            client.call_tool("subtract", {"a": 1, "b": 2})
            client.call_tool("fail", {"secret": "a-secret"})
            client.state()
            client.end()
        client.list_tools()


def http() -> None:
    with serving(Traced) as url:
        with tracer.start_as_current_span("orchestrator"):
            headers: dict[str, str] = {}
            propagate.inject(headers)
        session = httpx.post(f"{url}/reset", headers=headers).json()["session_id"]
        body = {
            "session_id": session,
            "action": {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1, "b": 2}},
        }
        httpx.post(f"{url}/step", json=body, headers={**headers, "Idempotency-Key": "one"})
        httpx.post(f"{url}/step", json={"session_id": "none", "action": {}}, headers=headers)
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**body["action"], "name": "add"}}
        httpx.post(f"{url}/mcp", json=call, headers=headers)


def _agent(mode: str) -> None:
    async def call(url: str) -> None:
        with tracer.start_as_current_span("agent"):
            async with Client(f"{url}/mcp", mode=mode) as client:
                await client.call_tool("add", {"a": 1, "b": 2})

    with serving(Traced) as url:
        asyncio.run(call(url))


def modern() -> None:
    _agent("auto")


def handshake() -> None:
    _agent("legacy")


def mounted() -> None:
    with serving(Mounted) as url, EnvClient(url).sync() as client:
        client.reset()
        MEMORY.clear()
        with tracer.start_as_current_span("orchestrator"):
            client.call_tool("multiply", {"a": 2, "b": 3})
            client.call_tool("negate", {"a": 2})


def in_process() -> None:
    env = Traced()
    with tracer.start_as_current_span("program"):
        env.reset()
        env.call_tool("add", {"a": 1, "b": 2})
        env.call_tool("sleep", timeout_s=0.05)
    env.close()


def main(scenario: Callable[[], None]) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(MEMORY))
    trace.set_tracer_provider(provider)
    scenario()
    spans = MEMORY.get_finished_spans()
    seen = [
        Seen(
            id=format(span.context.span_id, "x"),
            parent=None if span.parent is None else format(span.parent.span_id, "x"),
            trace=format(span.context.trace_id, "x"),
            name=span.name,
            kind=span.kind.name,
            begin=span.start_time or 0,
            failed=not span.status.is_ok and span.status.status_code is trace.StatusCode.ERROR,
            attributes=dict(span.attributes or {}),
        )
        for span in spans
    ]
    print(tree(seen))
    for span in spans:
        if span.instrumentation_scope is not None and span.instrumentation_scope.name == "mcpenv":
            print("attributes", span.name, dict(span.attributes or {}), span.status.description, list(span.events))


if __name__ == "__main__":
    main(globals()[sys.argv[1]])
