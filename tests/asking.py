"""A server that asks its client, and whose tools, resources and prompts change. Arguments: its era, and options.

With the era ``handshake`` it knows nothing of 2026-07-28. With the option ``grown-if=PATH`` it has one tool more if
there is such a file.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastmcp import Context, FastMCP
from fastmcp.server.completions import CompletionReference
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools.base import ToolResult
from mcp import MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    Annotations,
    AudioContent,
    CompletionArgument,
    ContentBlock,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ResourceLink,
    SamplingMessage,
    TextContent,
    TextResourceContents,
    ToolListChangedNotification,
)


class NoDiscovery(Middleware):
    """Answer ``server/discover`` as a server that does not know it."""

    async def on_discover(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        raise MCPError(METHOD_NOT_FOUND, "Method not found")


@dataclass
class Answer:
    """What the client is asked for."""

    size: int


def mark(path: str, text: str) -> None:
    """Write to a file at once."""
    Path(f"{path}.new").write_text(text)
    Path(f"{path}.new").rename(path)


def made(era: str, *options: str, title: str = "one") -> FastMCP:
    """Return the server.

    Args:
        title: stands in what it answers.
    """
    server = FastMCP("asking", middleware=[NoDiscovery()] if era == "handshake" else None)

    if era == "handshake":

        @server.tool
        async def ask(ctx: Context) -> str:
            """Ask for a size."""
            answer = await ctx.elicit("How large?", Answer)
            return f"{answer.action} {answer.data.size}" if answer.action == "accept" else answer.action

        @server.tool
        async def sample(ctx: Context) -> str:
            """Ask for a text."""
            messages = [SamplingMessage(role="user", content=TextContent(type="text", text="Go on."))]
            await ctx.session.create_message(messages, max_tokens=10)
            return "sampled"

    else:

        @server.tool(name="ask")
        async def ask_by_result(ctx: Context) -> Any:
            """Ask for a size."""
            if ctx.input_responses is None:
                schema = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
                question = ElicitRequestFormParams(message="How large?", requested_schema=schema)
                return InputRequiredResult(
                    input_requests={"size": ElicitRequest(params=question)}, request_state="the state"
                )
            answer: Any = ctx.input_responses["size"]
            assert ctx.request_state == "the state"
            return f"{answer.action} {answer.content['size']}" if answer.action == "accept" else answer.action

        @server.tool(name="sample")
        async def sample_by_result() -> Any:
            """Ask for a text."""
            messages = [SamplingMessage(role="user", content=TextContent(type="text", text="Go on."))]
            asked = CreateMessageRequest(params=CreateMessageRequestParams(messages=messages, max_tokens=10))
            return InputRequiredResult(input_requests={"text": asked}, request_state="the state")

    @server.tool
    async def wait(path: str) -> str:
        """Wait until the call is cancelled, and write that down."""
        mark(path, "started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            mark(path, "cancelled")
            raise
        return "waited"

    @server.tool
    def meta(ctx: Context) -> str:
        """Return what the request says of itself."""
        request = ctx.request_context
        return str((request.meta or {}).get("example.org/note")) if request is not None else "nothing"

    def grown() -> str:
        """Be there."""
        return "grown"

    @server.tool
    async def grow(ctx: Context) -> str:
        """Get another tool."""
        server.tool(grown)
        await ctx.send_notification(ToolListChangedNotification())
        return "grew"

    if any(option.startswith("grown-if=") and Path(option[9:]).exists() for option in options):
        server.tool(grown)

    @server.tool(annotations={"readOnlyHint": True, "title": "All kinds"}, meta={"example.org/kind": "all"})
    async def mixed(ctx: Context) -> ToolResult:
        """Return content of every kind, with progress and a message before."""
        await ctx.report_progress(1, 2, "half")
        await ctx.warning("nearly there")
        content: list[ContentBlock] = [
            TextContent(type="text", text="text", annotations=Annotations(audience=["user"], priority=0.5)),
            ImageContent(type="image", data="AAAA", mime_type="image/png"),
            AudioContent(type="audio", data="AAAA", mime_type="audio/wav"),
            ResourceLink(type="resource_link", uri="note://first", name="first"),
            EmbeddedResource(type="resource", resource=TextResourceContents(uri="note://first", text="embedded")),
        ]
        return ToolResult(content=content, structured_content={"a": [1, None]}, meta={"example.org/of": "result"})

    notes = {"first": f"the first note of {title}"}

    @server.tool
    def write(name: str, text: str) -> str:
        """Write a note."""
        notes[name] = text
        return "written"

    @server.resource("note://list", mime_type="text/plain")
    def listed() -> str:
        """The names of all notes."""
        return ", ".join(notes)

    @server.resource("note://{name}")
    def note(name: str) -> str:
        """One note."""
        return notes[name]

    @server.resource("picture://dot", mime_type="image/png")
    def dot() -> bytes:
        """A picture."""
        return b"\x89PNG"

    @server.prompt
    def summarize(name: str) -> str:
        """Summarize a note."""
        return f"Summarize for {title}: {notes[name]}"

    @server.completion
    async def complete(ref: CompletionReference, argument: CompletionArgument, context: Any) -> list[str]:
        return [name for name in notes if name.startswith(argument.value)]

    return server


def without_discovery() -> None:
    """Answer ``server/discover`` on stdin before the server reads it: it would speak 2026-07-28 from then on."""
    asked, (read, write) = os.fdopen(os.dup(0), "rb"), os.pipe()
    os.dup2(read, 0)

    def relay() -> None:
        with os.fdopen(write, "wb", buffering=0) as server:
            for line in asked:
                message = json.loads(line)
                if message.get("method") != "server/discover":
                    server.write(line)
                    continue
                error = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
                print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)

    threading.Thread(target=relay, daemon=True).start()


if __name__ == "__main__":
    if sys.argv[1] == "handshake":
        without_discovery()
    made(*sys.argv[1:]).run(show_banner=False)
