"""Test what passes through a proxy beside results: questions, cancellation, metadata, changes of tools, and hooks."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from asking import made
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from mcp import MCPError
from mcp_types import PromptReference, ResourceTemplateReference
from served import http_server

from mcpenv import CallToolAction
from mcpenv.errors import ConfigurationError
from mcpenv.extensions.mcp_proxy.environment import ProxyEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient
from mcpenv_client.errors import ExecutionError

ASKING = str(Path(__file__).parents[2] / "asking.py")

HANDSHAKE, MODERN = "handshake", "modern"

FRONT = {HANDSHAKE: "legacy", MODERN: "auto"}
"""The mode of a FastMCP client of an era."""


def proxied(*options: str, **servers: dict[str, Any]) -> Any:
    servers = servers or {"asking": {"command": sys.executable, "args": [ASKING, *options]}}
    return ProxyEnvironment.from_config({"mcpServers": servers})


def call(env: Any, tool: str, **arguments: Any) -> Any:
    return env.step(CallToolAction(tool_name=tool, arguments=arguments))


@pytest.fixture(scope="module", params=["stdio", "http"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[HANDSHAKE, MODERN])
def era(request: pytest.FixtureRequest) -> str:
    """The era of the server behind the environment."""
    return str(request.param)


@pytest.fixture(scope="module")
def asking(transport: str, era: str) -> Iterator[Any]:
    if transport == "stdio":
        yield proxied(era)
    else:
        with http_server(made(era)) as url:
            yield proxied(asking={"url": url})


@contextmanager
def episode(cls: Any) -> Iterator[tuple[Any, str]]:
    """Yield an orchestrator and the address of its episode."""
    with serving(cls, ServerConfig()) as url, EnvClient(url).sync() as orchestrator:
        yield orchestrator, orchestrator.reset().info["mcp_url"]


async def answer(message: str, response_type: Any, params: Any, context: Any) -> Any:
    assert message == "How large?"
    return {"size": 7}


# -- questions


@pytest.mark.slow
@pytest.mark.parametrize("front", [HANDSHAKE, MODERN])
def test_questions_pass_where_both_sides_speak_one_era(asking: Any, era: str, front: str) -> None:
    async def main(url: str) -> Any:
        async with Client(url, mode=FRONT[front], elicitation_handler=answer) as client:
            return await client.call_tool("ask", raise_on_error=False)

    with episode(asking) as (orchestrator, url):
        result = asyncio.run(main(url))
        if front == era:
            assert (result.is_error, result.content[0].text) == (False, "accept 7")
        else:
            assert result.is_error
            spoken = "speaks 2026-07-28" if front == MODERN else "has connected by handshake"
            assert f"asked for input, but the client {spoken}" in result.content[-1].text
        assert orchestrator.state().step_count == 1, "asking and answering are one step"


@pytest.mark.slow
def test_a_question_can_be_declined(asking: Any, era: str) -> None:
    async def decline(*args: Any) -> Any:
        return ElicitResult(action="decline")

    async def main(url: str) -> Any:
        async with Client(url, mode=FRONT[era], elicitation_handler=decline) as client:
            return await client.call_tool("ask")

    with episode(asking) as (_, url):
        assert asyncio.run(main(url)).content[0].text == "decline"


@pytest.mark.slow
def test_a_client_that_answers_no_questions_is_told_so(asking: Any, era: str) -> None:
    async def main(url: str) -> Any:
        async with Client(url, mode=FRONT[era]) as client:
            return await client.call_tool("ask", raise_on_error=False)

    with episode(asking) as (_, url):
        result = asyncio.run(main(url))
    assert result.is_error
    assert "the client has not declared that it answers questions" in result.content[-1].text


@pytest.mark.slow
def test_an_orchestrators_call_cannot_be_asked(asking: Any) -> None:
    with asking() as env:
        env.reset()
        refused = call(env, "ask")
        assert "this call did not come from an MCP client, so nobody can answer" in str(refused.error or refused.text)
        assert refused.info["status"]["code"] == "agent_error" and not refused.done
        assert call(env, "write", name="a", text="b").text == "written"


@pytest.mark.slow
def test_sampling_is_refused(asking: Any, era: str) -> None:
    async def main(url: str) -> Any:
        async with Client(url, mode=FRONT[era], elicitation_handler=answer) as client:
            return await client.call_tool("sample", raise_on_error=False)

    with episode(asking) as (_, url):
        result = asyncio.run(main(url))
    assert result.is_error
    assert "ampling" in result.content[-1].text or "sampling/createMessage" in result.content[-1].text


# -- cancellation and metadata


def read_until(path: Path, text: str) -> None:
    """Return once a file has this text."""
    until = time.monotonic() + 20
    while not path.exists() or path.read_text() != text:
        assert time.monotonic() < until, f"no {text!r} in {path}"
        os.sched_yield()


@pytest.mark.slow
@pytest.mark.parametrize("front", [HANDSHAKE, MODERN])
def test_an_agent_that_cancels_cancels_the_servers_tool(asking: Any, front: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def main(url: str) -> Any:
        async with Client(url, mode=FRONT[front]) as client:
            waiting = asyncio.ensure_future(client.call_tool("wait", {"path": str(mark)}))
            await asyncio.to_thread(read_until, mark, "started")
            waiting.cancel()
            await asyncio.wait([waiting])
            await asyncio.to_thread(read_until, mark, "cancelled")

    with episode(asking) as (_, url):
        asyncio.run(main(url))


@pytest.mark.slow
@pytest.mark.parametrize("front", [HANDSHAKE, MODERN])
def test_metadata_of_a_request_passes(asking: Any, front: str) -> None:
    async def main(url: str) -> Any:
        async with Client(url, mode=FRONT[front]) as client:
            return await client.call_tool("meta", meta={"example.org/note": "hello"})

    with episode(asking) as (_, url):
        assert asyncio.run(main(url)).data == "hello"


# -- results


@pytest.mark.slow
@pytest.mark.parametrize("front", [HANDSHAKE, MODERN])
def test_results_progress_and_messages_reach_agents_whole(asking: Any, front: str) -> None:
    seen: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async def on_log(message: Any) -> None:
        seen.append((message.level, message.data["msg"]))

    async def main(url: str) -> tuple[Any, Any]:
        async with Client(url, mode=FRONT[front], log_handler=on_log) as client:
            (tool,) = [tool for tool in await client.list_tools() if tool.name == "mixed"]
            return tool, await client.call_tool("mixed", progress_handler=on_progress)

    with episode(asking) as (_, url):
        tool, result = asyncio.run(main(url))
    assert (tool.annotations.read_only_hint, tool.annotations.title) == (True, "All kinds")
    assert tool.meta["example.org/kind"] == "all"
    assert [block.type for block in result.content] == ["text", "image", "audio", "resource_link", "resource"]
    assert result.content[0].annotations.priority == 0.5
    assert result.content[4].resource.text == "embedded"
    assert result.structured_content == {"a": [1, None]} and result.meta["example.org/of"] == "result"
    assert sorted(seen, key=str) == [("warning", "nearly there"), (1.0, 2.0, "half")]


# -- changes of tools


@pytest.mark.slow
def test_tools_that_change_in_an_episode_are_told_to_agents() -> None:
    async def main(url: str) -> tuple[set[str], list[str], Any]:
        told: list[str] = []

        async def hear(message: Any) -> None:
            told.append(getattr(message, "method", ""))

        async with Client(url, mode="legacy", message_handler=hear) as client:
            await client.call_tool("grow")
            names = {tool.name for tool in await client.list_tools()}
            return names, told, (await client.call_tool("grown")).data

    with episode(proxied(HANDSHAKE)) as (orchestrator, url):
        names, told, text = asyncio.run(main(url))
        assert "grown" in names and text == "grown"
        assert "notifications/tools/list_changed" in told
        orchestrator.reset()
        assert "grown" not in {tool.name for tool in orchestrator.list_tools()}


@pytest.mark.slow
def test_a_server_of_the_later_era_tells_its_subscriber_of_a_change() -> None:
    growing = str(Path(__file__).parent / "mcp_servers" / "growing.py")
    with proxied(growing={"command": sys.executable, "args": [growing]})() as env:
        env.reset()
        assert call(env, "grow").text == "grew"
        until = time.monotonic() + 20
        while "grown" not in {tool.name for tool in env.list_tools()}:  # it may be told after the call was answered
            assert time.monotonic() < until
            assert call(env, "idle").text == "idle"
        assert call(env, "grown").text == "grown"


@pytest.mark.slow
def test_tools_that_differ_after_a_reset_are_the_environments(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with proxied(MODERN, f"grown-if={mark}")() as env:
        env.reset()
        assert "grown" not in {tool.name for tool in env.list_tools()}
        mark.touch()
        env.reset()
        assert call(env, "grown").text == "grown"
        mark.unlink()
        env.reset()
        assert call(env, "grown").error.error_type == "tool_not_found"


@pytest.mark.slow
def test_a_reset_is_refused_if_other_tools_do_not_fit(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    class Own(proxied(MODERN, f"grown-if={mark}")):  # type: ignore[misc]
        """An environment with a tool of that name."""

        def __init__(self) -> None:
            super().__init__()

            def grown() -> str:
                """Be there first."""
                return "own"

            self.tool(grown)

    with Own() as env:
        env.reset()
        mark.touch()
        with pytest.raises(ExecutionError) as raised:
            env.reset()
        cause = raised.value.__cause__
        assert isinstance(cause, ConfigurationError) and "another tool of that name" in str(cause)
        mark.unlink()
        env.reset()
        assert call(env, "grown").text == "own"


# -- hooks


@pytest.fixture(scope="module")
def written_down() -> Any:
    return proxied(MODERN)


@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_change_arguments_and_results(written_down: Any, is_async: bool) -> None:
    seen: list[Any] = []

    class Hooked(written_down):  # type: ignore[misc]
        """Notes in capitals."""

        def before_call(self, server: str, tool: str, arguments: dict[str, Any]) -> Any:
            seen.append((server, tool, arguments))
            return {**arguments, "text": arguments["text"].upper()}

        def after_call(self, server: str, tool: str, arguments: dict[str, Any], result: Any) -> Any:
            seen.append(arguments["text"])
            block = {"type": "text", "text": result.content[0]["text"] + "!"}
            return result.model_copy(update={"content": [block]})

    class HookedAsync(Hooked):
        """The same with coroutines."""

        async def before_call(self, server: str, tool: str, arguments: dict[str, Any]) -> Any:
            return super().before_call(server, tool, arguments)

        async def after_call(self, server: str, tool: str, arguments: dict[str, Any], result: Any) -> Any:
            return super().after_call(server, tool, arguments, result)

    with (HookedAsync if is_async else Hooked)() as env:
        env.reset()
        assert call(env, "write", name="a", text="b").text == "written!"
    assert seen == [("asking", "write", {"name": "a", "text": "b"}), "B"]


def test_a_hook_refuses_a_call_or_fails(written_down: Any) -> None:
    class Strict(written_down):  # type: ignore[misc]
        """Refuses some notes."""

        def before_call(self, server: str, tool: str, arguments: dict[str, Any]) -> Any:
            if arguments["name"] == "secret":
                raise ToolError("That note is not yours.")
            return None if arguments["name"] == "nothing" else arguments

        def after_call(self, server: str, tool: str, arguments: dict[str, Any], result: Any) -> Any:
            raise KeyError("lost")

    with Strict() as env:
        env.reset()
        refused = call(env, "write", name="secret", text="")
        assert refused.error.message == "That note is not yours."
        assert refused.info["status"]["code"] == "agent_error"
        wrong = call(env, "write", name="nothing", text="")
        assert "before_call returned a NoneType; return the arguments as a dict" in wrong.error.message
        failed = call(env, "write", name="a", text="")
        assert failed.info["status"] == {"code": "env_error", "stage": "tool", "retryable": True}


@pytest.mark.slow
def test_a_hook_has_the_deadline_of_the_step(written_down: Any) -> None:
    class Slow(written_down):  # type: ignore[misc]
        """Never calls."""

        async def before_call(self, server: str, tool: str, arguments: dict[str, Any]) -> Any:
            await asyncio.Event().wait()

    with Slow() as env:
        env.reset()
        late = env.step(CallToolAction(tool_name="write", arguments={"name": "a", "text": ""}), timeout_s=0.3)
        assert late.error.error_type == "timeout"


# -- resources, prompts and completions


@pytest.mark.slow
@pytest.mark.parametrize("front", [HANDSHAKE, MODERN])
def test_resources_prompts_and_completions_are_those_of_the_episodes_own_server(asking: Any, front: str) -> None:
    async def main(url: str) -> None:
        async with Client(url, mode=FRONT[front]) as client:
            assert {str(each.uri) for each in await client.list_resources()} == {"note://list", "picture://dot"}
            assert [each.uri_template for each in await client.list_resource_templates()] == ["note://{name}"]
            await client.call_tool("write", {"name": "second", "text": "more"})
            assert "second" in (await client.read_resource("note://list"))[0].text
            assert (await client.read_resource("note://second"))[0].text == "more"
            (picture,) = await client.read_resource("picture://dot")
            assert (picture.mime_type, picture.blob) == ("image/png", "iVBORw==")
            (prompt,) = await client.list_prompts()
            assert (prompt.name, [each.name for each in prompt.arguments or ()]) == ("summarize", ["name"])
            rendered = await client.get_prompt("summarize", {"name": "second"})
            assert rendered.messages[0].content.text == "Summarize for one: more"
            for reference in (
                PromptReference(type="ref/prompt", name="summarize"),
                ResourceTemplateReference(type="ref/resource", uri="note://{name}"),
            ):
                suggested = await client.complete(reference, {"name": "name", "value": "sec"})
                assert suggested.values == ["second"]
            with pytest.raises(MCPError):
                await client.read_resource("note://nothing")

    with episode(asking) as (_, url):
        asyncio.run(main(url))


@pytest.mark.slow
def test_resources_are_read_on_plain_mcp_without_a_call_before() -> None:
    async def main(url: str) -> Any:
        async with Client(f"{url}/mcp") as client:
            assert len(await client.list_prompts()) == 1
            return (await client.read_resource("note://first"))[0].text

    with serving(proxied(MODERN), ServerConfig()) as url:
        assert asyncio.run(main(url)) == "the first note of one"


@pytest.mark.slow
def test_prompts_of_two_servers_get_names_and_the_first_has_a_shared_uri(caplog: pytest.LogCaptureFixture) -> None:
    async def main(url: str) -> Any:
        async with Client(url) as client:
            names = [each.name for each in await client.list_prompts()]
            text = (await client.get_prompt("two_summarize", {"name": "first"})).messages[0].content.text
            return names, text, (await client.read_resource("note://first"))[0].text

    with http_server(made(MODERN, title="two")) as address:
        cls = proxied(one={"command": sys.executable, "args": [ASKING, MODERN]}, two={"url": address})
        with episode(cls) as (_, url):
            names, text, note = asyncio.run(main(url))
    assert names == ["one_summarize", "two_summarize"]
    assert (text, note) == ("Summarize for two: the first note of two", "the first note of one")
    assert "servers 'one' and 'two' both have the resource note://list; 'one' answers" in caplog.text
