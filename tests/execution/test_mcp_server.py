"""The agent plane by itself: announcements, private names of FastMCP, listings that agree with calls."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import fastmcp
import httpx
import pytest
from fastmcp import FastMCP
from fastmcp.client.messages import MessageHandler
from mcp.server.lowlevel.server import Server
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from pydantic import Field

from mcpenv import Context, MCPEnvironment
from mcpenv.server.serve import serving
from mcpenv_client import ToolErrorType


class Growing(MCPEnvironment):
    """Its tools change."""

    DYNAMIC_TOOLS = True
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        @self.tool
        def learn() -> str:
            """Learn to sing."""

            @self.tool
            def sing() -> str:
                """Sing."""
                return "la"

            return "learnt"

        @self.tool
        def forget() -> str:
            """Forget it."""
            self.remove_tool("sing")
            return "forgotten"


class Changes(MessageHandler):
    def __init__(self) -> None:
        self.heard = asyncio.Event()

    async def on_tool_list_changed(self, message: Any) -> None:
        self.heard.set()


def test_invariant_4_a_change_of_the_tools_is_announced_and_listed() -> None:
    async def main(url: str) -> None:
        changes = Changes()
        async with fastmcp.Client(f"{url}/mcp", mode="legacy", message_handler=changes) as client:
            assert [tool.name for tool in await client.list_tools()] == ["learn", "forget"]
            await client.call_tool("learn")
            await asyncio.wait_for(changes.heard.wait(), 10)
            assert [tool.name for tool in await client.list_tools()] == ["learn", "forget", "sing"]
            assert (await client.call_tool("sing")).data == "la"
            await client.call_tool("forget")
            with pytest.raises(MCPError):
                await client.call_tool("sing")

    with serving(Growing) as url:
        asyncio.run(asyncio.wait_for(main(url), 30))


class Asking(MCPEnvironment):
    """Asks its client."""

    def __init__(self) -> None:
        @self.tool
        async def ask(ctx: Context) -> str:
            """Ask for a name."""
            answer = await ctx.elicit("Who?", str)
            return f"hello {answer.data}"  # type: ignore[union-attr]


def test_elicitation_reaches_a_handshake_client() -> None:
    async def answer(message: str, response_type: Any, params: Any, context: Any) -> Any:
        return {"value": "Ada"}

    async def main(url: str) -> None:
        async with fastmcp.Client(f"{url}/mcp", mode="legacy", elicitation_handler=answer) as client:
            assert (await client.call_tool("ask")).data == "hello Ada"

    with serving(Asking) as url:
        asyncio.run(asyncio.wait_for(main(url), 30))


def test_elicitation_without_a_client_says_why() -> None:
    env = Asking()
    refused = env.call_tool("ask")
    assert refused.error is not None
    assert refused.error.error_type is ToolErrorType.EXECUTION_ERROR
    assert "nobody to ask" in refused.text
    env.close()


def test_progress_and_logs_reach_the_client_in_both_eras() -> None:
    class Talks(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            async def talk(ctx: Context) -> str:
                """Talk."""
                await ctx.info("began")
                await ctx.report_progress(1, 2, "half")
                return "done"

    async def main(url: str, era: str) -> tuple[list[Any], list[Any]]:
        progress: list[Any] = []
        logs: list[Any] = []

        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            progress.append((done, total, message))

        async def on_log(message: Any) -> None:
            logs.append(message.data["msg"])

        async with fastmcp.Client(
            f"{url}/mcp",
            mode=era,
            progress_handler=on_progress,
            log_handler=on_log,
        ) as client:
            assert (await client.call_tool("talk")).data == "done"
        return progress, logs

    with serving(Talks) as url:
        for era in ("legacy", "2026-07-28"):
            progress, logs = asyncio.run(asyncio.wait_for(main(url, era), 30))
            assert progress == [(1, 2, "half")], era
            assert logs == ["began"], era


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
def test_a_call_that_its_client_cancels_stops_the_tool(era: str) -> None:
    class Waits(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        log: list[str] = []

        def __init__(self) -> None:
            @self.tool
            async def wait() -> str:
                """Wait for ever."""
                self.log.append("began")
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.log.append("stopped")
                    raise
                return "never"

            @self.tool
            async def quick() -> str:
                """At once."""
                return "quick"

    async def main(url: str) -> None:
        async with fastmcp.Client(f"{url}/mcp", mode=era) as client:
            call = asyncio.create_task(client.call_tool("wait"))
            while "began" not in Waits.log:
                await asyncio.sleep(0)
            call.cancel()
            while "stopped" not in Waits.log:
                await asyncio.sleep(0)
            assert (await client.call_tool("quick")).data == "quick"

    with serving(Waits) as url:
        asyncio.run(asyncio.wait_for(main(url), 30))


def test_the_private_names_of_fastmcp_are_where_they_were() -> None:
    """`mounted` gives plain contexts a session through these; when they move, this fails first."""
    from fastmcp.server.context import Context as Plain
    from fastmcp.server.dependencies import FastMCPRequestContext

    assert "_srctx" in FastMCPRequestContext.__dataclass_fields__
    assert isinstance(FastMCP("any")._mcp_server, Server)  # `subscriptions` registers there
    assert FastMCP("any")._completion_handler is None
    assert "_connection" in ServerSession.__init__.__code__.co_names
    source = Plain.session_id.fget.__code__.co_consts  # type: ignore[attr-defined]
    assert "_fastmcp_state_prefix" in source
    assert "_connection" in source


def modern_call(url: str, name: str, arguments: dict[str, Any], **headers: str) -> httpx.Response:
    """A raw ``tools/call`` of the 2026-07-28 era."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": name, "arguments": arguments, "_meta": meta}
    return httpx.post(
        f"{url}/mcp",
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
        headers={
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": name,
            **headers,
        },
    )


Region = Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_argument_that_is_mirrored_into_a_header_must_be_the_same_there(dynamic: bool) -> None:
    class Regional(MCPEnvironment):
        DYNAMIC_TOOLS = dynamic

        def __init__(self) -> None:
            @self.tool
            def serve(region: Region) -> str:
                """Serve there."""
                return region

    with serving(Regional) as url:
        assert modern_call(url, "serve", {"region": "eu"}, **{"Mcp-Param-Region": "eu"}).status_code == 200
        for headers in ({"Mcp-Param-Region": "us"}, {}):
            refused = modern_call(url, "serve", {"region": "eu"}, **headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32020)
