"""Subscriptions: who is told of what, and when that ends."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fastmcp
import httpx
import pytest
from fastmcp import FastMCP
from fastmcp.client.messages import MessageHandler
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.subscriptions import (
    PromptsListChanged,
    ResourceUpdated,
    ServerEvent,
    Subscription,
    ToolsListChanged,
    listen,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    PromptListChangedNotification,
    ResourceUpdatedNotification,
    ResourceUpdatedNotificationParams,
)

from mcpenv import Context, MCPEnvironment
from mcpenv.execution.notifications import MAX_STREAMS, Subscribers
from mcpenv.server.app import create_app
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = FastMCP("library")


@LIBRARY.tool
async def lend(uri: str, ctx: fastmcp.Context) -> str:
    """Lend a book; a tool of the handed-in server, with FastMCP's own context."""
    await ctx.send_notification(ResourceUpdatedNotification(params=ResourceUpdatedNotificationParams(uri=uri)))
    return "lent"


class Library(MCPEnvironment):
    """Everything in it changes."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(LIBRARY)
        self.learnt = False

        def sing() -> str:
            """Sing."""
            return "la"

        @self.tool
        def learn() -> str:
            """Learn to sing, or forget it."""
            if self.learnt:
                self.remove_tool("sing")
            else:
                self.tool(sing)
            self.learnt = not self.learnt
            return "changed"

        @self.tool
        async def write(uri: str, ctx: Context) -> str:
            """Write into a book."""
            await ctx.send_notification(ResourceUpdatedNotification(params=ResourceUpdatedNotificationParams(uri=uri)))
            await ctx.send_notification(PromptListChangedNotification())
            return "written"

        @self.tool(terminal=True)
        def leave() -> str:
            """End the episode."""
            return "left"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        if self.learnt:
            self.remove_tool("sing")
            self.learnt = False


@asynccontextmanager
async def modern(url: str) -> AsyncIterator[Client]:
    async with Client(url, mode="2026-07-28") as client:
        yield client


async def following(subscription: Subscription) -> ServerEvent:
    return await asyncio.wait_for(anext(aiter(subscription)), 20)


async def is_over(subscription: Subscription) -> bool:
    """Return True if the server ended the stream in order; a lost one raises."""
    return [event async for event in subscription] == []


def run(main: Callable[[str], Coroutine[Any, Any, None]], **options: Any) -> None:
    with serving(Library, **options) as url:
        asyncio.run(asyncio.wait_for(main(url), 60))


def test_a_subscriber_hears_what_it_asked_for_and_nothing_else() -> None:
    async def main(url: str) -> None:
        async with modern(f"{url}/mcp") as client:
            async with (
                client.listen(tools_list_changed=True) as tools,
                client.listen(prompts_list_changed=True) as prompts,
                client.listen(resource_subscriptions=["book://a", "book://b"]) as books,
            ):
                await client.call_tool("write", {"uri": "book://c"})
                await client.call_tool("write", {"uri": "book://a"})
                await client.call_tool("lend", {"uri": "book://b"})
                await client.call_tool("learn")
                assert [await following(books), await following(books)] == [
                    ResourceUpdated("book://a"),
                    ResourceUpdated("book://b"),
                ]
                assert await following(prompts) == PromptsListChanged()
                assert await following(tools) == ToolsListChanged()
                assert "sing" in [tool.name for tool in (await client.list_tools()).tools]

    run(main)


def test_an_agent_hears_what_its_orchestrator_and_no_other_changes() -> None:
    async def main(url: str) -> None:
        async with EnvClient(url) as mine, EnvClient(url) as other:
            address = (await mine.reset()).info["mcp_url"]
            await other.reset()
            async with modern(address) as agent:
                async with agent.listen(
                    tools_list_changed=True, resource_subscriptions=["book://mine", "book://other"]
                ) as heard:
                    await other.call_tool("write", {"uri": "book://other"})
                    await other.call_tool("learn")
                    await mine.call_tool("write", {"uri": "book://mine"})
                    assert await following(heard) == ResourceUpdated("book://mine")
                    await mine.call_tool("lend", {"uri": "book://mine"})
                    assert await following(heard) == ResourceUpdated("book://mine")
                    await mine.call_tool("learn")
                    assert await following(heard) == ToolsListChanged()

    run(main)


@pytest.mark.parametrize("how", ["leave", "reset", "close"])
def test_a_subscription_ends_with_the_episode(how: str) -> None:
    async def main(url: str) -> None:
        orchestrator = EnvClient(url)
        await orchestrator.connect()
        address = (await orchestrator.reset()).info["mcp_url"]
        async with modern(address) as agent:
            async with agent.listen(tools_list_changed=True) as heard:
                if how == "leave":
                    await agent.call_tool("leave")
                elif how == "reset":
                    await orchestrator.reset()
                else:
                    await orchestrator.close()
                assert await asyncio.wait_for(is_over(heard), 20)
            with pytest.raises(MCPError, match="episode is over"):
                async with agent.listen(tools_list_changed=True):
                    pass
        await orchestrator.close()

    run(main)


def test_a_subscription_survives_the_resets_of_an_environment_that_is_served_in_process() -> None:
    async def main() -> None:
        env = Library()
        async with fastmcp.Client(env.mcp, mode="2026-07-28") as client:
            async with listen(client.session, tools_list_changed=True) as heard:
                await env.reset_async()
                await client.call_tool("learn")
                assert await following(heard) == ToolsListChanged()
                await env.close_async()
                assert await asyncio.wait_for(is_over(heard), 20)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_there_are_only_so_many_subscriptions_of_one_instance_and_their_ends_make_room() -> None:
    async def main(url: str) -> None:
        async with modern(f"{url}/mcp") as client:
            held = [client.listen(tools_list_changed=True) for _ in range(MAX_STREAMS)]
            for each in held:
                await each.__aenter__()
            with pytest.raises(MCPError, match="too many"):
                async with client.listen(tools_list_changed=True):
                    pass
            await held.pop().__aexit__(None, None, None)
            while True:  # the server learns of it in its own time
                try:
                    async with client.listen(tools_list_changed=True):
                        break
                except MCPError:
                    continue
            for each in held:
                await each.__aexit__(None, None, None)

    run(main)


class Updates(MessageHandler):
    """The resource updates that a handshake client is told."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    async def on_resource_updated(self, message: Any) -> None:
        await self.heard.put(str(message.params.uri))


def test_a_handshake_client_hears_of_the_resources_it_subscribed_to() -> None:
    async def main(url: str) -> None:
        updates = Updates()
        async with EnvClient(url) as orchestrator:
            address = (await orchestrator.reset()).info["mcp_url"]
            async with fastmcp.Client(address, mode="legacy", message_handler=updates) as client:
                assert client.initialize_result.capabilities.resources.subscribe
                for uri in ("book://a", "book://b", "book://c"):
                    await client.session.subscribe_resource(uri)
                await client.session.unsubscribe_resource("book://b")
                for uri in ("book://b", "book://d", "book://a", "book://c"):
                    await orchestrator.call_tool("write", {"uri": uri})
                assert [await asyncio.wait_for(updates.heard.get(), 20) for _ in range(2)] == ["book://a", "book://c"]
                assert updates.heard.empty()

    run(main)


@pytest.mark.extension("stdio")
@pytest.mark.process
def test_subscriptions_work_over_stdio() -> None:
    async def main() -> None:
        arguments = ["-m", "mcpenv", "run", str(ROOT / "envs" / "conformance_mcp"), "--transport", "stdio"]
        program = stdio_client(StdioServerParameters(command=sys.executable, args=arguments))
        async with Client(program, mode="2026-07-28") as client:
            async with client.listen(tools_list_changed=True, resource_subscriptions=["test://a"]) as heard:
                await client.call_tool("test_update_resource", {"uri": "test://a"})
                assert await following(heard) == ResourceUpdated("test://a")
                await client.call_tool("test_trigger_tool_change")
                assert await following(heard) == ToolsListChanged()

    asyncio.run(asyncio.wait_for(main(), 60))


class Lists(MessageHandler):
    """The changed lists that a handshake client is told of."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    async def on_tool_list_changed(self, message: Any) -> None:
        await self.heard.put("tools")

    async def on_prompt_list_changed(self, message: Any) -> None:
        await self.heard.put("prompts")


def test_a_handshake_client_that_listed_hears_of_changes_that_others_make() -> None:
    async def main(url: str) -> None:
        lists = Lists()
        async with EnvClient(url) as orchestrator, EnvClient(url) as other:
            address = (await orchestrator.reset()).info["mcp_url"]
            await other.reset()
            async with fastmcp.Client(address, mode="legacy", message_handler=lists) as client:
                assert "sing" not in [tool.name for tool in await client.list_tools()]
                await other.call_tool("write", {"uri": "book://a"})
                await orchestrator.call_tool("learn")
                assert await asyncio.wait_for(lists.heard.get(), 20) == "tools"
                assert "sing" in [tool.name for tool in await client.list_tools()]
                await orchestrator.call_tool("write", {"uri": "book://a"})
                assert await asyncio.wait_for(lists.heard.get(), 20) == "prompts"
                assert lists.heard.empty()

    run(main)


def test_a_connection_that_outlives_an_instance_does_not_hold_it() -> None:
    class Counted(Library):
        alive: weakref.WeakSet[Any] = weakref.WeakSet()

        def __init__(self) -> None:
            super().__init__()
            self.alive.add(self)

    async def main(url: str) -> None:
        orchestrator = EnvClient(url)
        await orchestrator.connect()
        address = (await orchestrator.reset()).info["mcp_url"]
        async with fastmcp.Client(address, mode="legacy") as client:
            await client.session.subscribe_resource("book://a")
            assert len(await client.list_tools()) == 4
            gc.collect()
            assert len(Counted.alive) == 1  # the prototype is gone
            await orchestrator.close()
            while Counted.alive:
                gc.collect()
                assert len(await client.list_tools()) <= 4  # the connection is open, and the server at work

    with serving(Counted) as url:
        asyncio.run(asyncio.wait_for(main(url), 60))


def test_since_2026_07_28_a_caller_that_did_not_subscribe_is_told_nothing() -> None:
    async def main(url: str) -> None:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/logLevel": "debug",
            "progressToken": "p",
        }
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
        }
        async with httpx.AsyncClient() as http:
            for name, arguments in (("write", {"uri": "book://a"}), ("lend", {"uri": "book://a"}), ("learn", {})):
                params = {"name": name, "arguments": arguments, "_meta": meta}
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                reply = await http.post(f"{url}/mcp", json=body, headers={**headers, "Mcp-Name": name})
                assert reply.status_code == 200
                assert '"isError":true' not in reply.text
                assert "notifications/" not in reply.text

    run(main)


def test_an_agent_needs_a_handle_to_subscribe_where_it_needs_one_to_call() -> None:
    async def main(url: str) -> None:
        async with modern(f"{url}/mcp") as client:
            with pytest.raises(MCPError, match="episode's own address"):
                async with client.listen(tools_list_changed=True):
                    pass

    run(main, config=ServerConfig(require_handle=True))


@pytest.mark.process
def test_a_server_that_ends_ends_what_clients_listen_on() -> None:
    async def main(process: subprocess.Popen[str], url: str) -> None:
        async with fastmcp.Client(f"{url}/mcp", mode="legacy") as handshake, modern(f"{url}/mcp") as client:
            await handshake.call_tool("echo_message", {"message": "hello"})
            async with client.listen(tools_list_changed=True) as heard:
                process.send_signal(signal.SIGTERM)
                assert await is_over(heard)
                # Without waiting for the half minute that steps under way would have.
                assert await asyncio.to_thread(process.wait, 20) == 0

    command = [sys.executable, "-m", "mcpenv", "run", str(ROOT / "envs" / "echo_mcp"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = next(found.group() for line in process.stdout if (found := re.search(r"http://[^/\s]+", line)))
            asyncio.run(asyncio.wait_for(main(process, url), 60))
        finally:
            process.kill()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_call_has_nothing_to_do_with_subscriptions_and_kept_events() -> None:
    entered: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        name = Path(frame.f_code.co_filename).name
        if event == "call" and name in ("notifications.py", "subscriptions.py", "event_store.py"):
            entered.add(f"{name}:{frame.f_code.co_name}")

    class Plain(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            async def double(number: int) -> int:
                """Double it."""
                sys.setprofile(note)
                return 2 * number

    async def main() -> None:
        app = create_app(Plain)
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        body["params"] = {"name": "double", "arguments": {"number": 2}}
        body["params"]["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": "double",
        }
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
        ):
            try:
                for _ in range(2):  # the profile is on from the middle of the first call to the end of the second
                    reply = await http.post("/mcp", json=body, headers=headers)
                    assert reply.json()["result"]["structuredContent"] == {"result": 4}
            finally:
                sys.setprofile(None)

    asyncio.run(main())
    assert entered == set()


def test_changes_are_told_from_any_thread_in_order() -> None:
    async def main() -> None:
        changes, heard = Subscribers(), []
        done = asyncio.Event()

        def listener(event: ServerEvent) -> None:
            heard.append(event)
            if len(heard) == 3:
                done.set()

        leave = changes.subscribe(listener)
        uris = ["a://1", "a://2", "a://3"]

        def tell() -> None:
            for uri in uris:
                changes.tell(ResourceUpdated(uri))

        await asyncio.to_thread(tell)
        await asyncio.wait_for(done.wait(), 10)
        leave()
        leave()
        await changes.publish(ToolsListChanged())
        await asyncio.sleep(0)
        assert heard == [ResourceUpdated(uri) for uri in uris]

    asyncio.run(main())
