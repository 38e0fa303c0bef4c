from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.dependencies import Depends
from fastmcp.exceptions import ToolError as FastMCPToolError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from mcp.shared.exceptions import MCPError
from mcp_types import PromptReference
from pydantic import BaseModel

from mcpenv import CallToolAction, CallToolObservation, Context, MCPEnvironment, Mode, ToolCall, ToolError, ToolOutcome
from mcpenv.server.serve import serving
from mcpenv_client import ToolErrorType


class Size(BaseModel):
    size: int


class Seen(Middleware):
    """Notes what it sees, and changes what it is told to change."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.listings = 0

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        self.calls.append(context.message.name)
        if context.message.name == "answered":
            raise FastMCPToolError("Middleware says no.")
        return await call_next(context)

    async def on_list_tools(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        self.listings += 1
        return [tool for tool in await call_next(context) if tool.name != "hidden"]


class World:
    """A server with everything that a server can have."""

    def __init__(self) -> None:
        self.lifespans: list[str] = []
        self.tasks: list[Any] = []
        self.middleware = Seen()

        @asynccontextmanager
        async def lifespan(server: FastMCP) -> AsyncIterator[dict[str, Any]]:
            self.tasks.append(asyncio.current_task())
            self.lifespans.append("entered")
            try:
                yield {"database": "open"}
            finally:
                self.tasks.append(asyncio.current_task())
                self.lifespans.append("left")

        server = self.server = FastMCP("world", lifespan=lifespan, middleware=[self.middleware])

        @server.tool
        def weigh(size: int, unit: str = "kg") -> str:
            """Weigh."""
            return f"{size} {unit}"

        @server.tool
        async def talk(ctx: Context) -> str:
            """Talk about it."""
            await ctx.info("talking")
            await ctx.report_progress(1, 2, "half")
            count = (await ctx.get_state("count")) or 0
            await ctx.set_state("count", count + 1)
            return f"{count}"

        @server.tool
        async def ask(ctx: Context) -> str:
            """Ask."""
            return str(await ctx.elicit("Sure?", response_type=str))

        @server.tool
        def refuse() -> str:
            """Refuse."""
            raise ToolError("Not now.")

        @server.tool
        def crash() -> str:
            """Crash."""
            raise LookupError("lost")

        @server.tool
        def inner_validation(text: str) -> int:
            """Validate something of its own."""
            return Size.model_validate({"size": text}).size

        @server.tool
        def hidden() -> str:
            """Not for everybody."""
            return "secret"

        @server.tool
        def answered() -> str:
            """Never reached."""
            return "reached"

        @server.tool
        async def depends(name: str = Depends(lambda: "injected")) -> str:
            """Depend."""
            return name

        @server.tool
        async def endless() -> str:
            """Never end."""
            await asyncio.Event().wait()
            return ""

        @server.resource("note://{name}")
        def note(name: str) -> str:
            """A note."""
            return f"note {name}"

        @server.resource("config://main")
        def config() -> str:
            """The configuration."""
            return "configured"

        @server.prompt
        def hello(name: str) -> str:
            """Say hello."""
            return f"Hello, {name}."

        below = FastMCP("below")

        @below.tool
        def mounted(text: str) -> str:
            """Return a tool of a mounted server."""
            return f"mounted {text}"

        @below.tool
        def reset() -> str:
            """A name that is reserved."""
            return "reset"

        server.mount(below)
        server.mount(below, namespace="sub")


class Env(MCPEnvironment):
    """The world, with tools of its own."""

    SURVIVES_TIMEOUT = True

    def __init__(self, world: World, name: str = "env") -> None:
        super().__init__(world.server)
        self.given = world

        @self.tool
        def own(text: str = "x") -> str:
            """Return a tool of the environment's own."""
            return f"{name} {text}"

        @self.tool
        async def own_later(ctx: Context) -> str:
            """Return a tool of the environment's own."""
            await ctx.info("own")
            return name

        @self.tool(terminal=True)
        def done() -> str:
            """End it."""
            return "done"

        @self.tool(mode=Mode.PRODUCTION)
        def live() -> str:
            """Only in production."""
            return "live"

        @self.tool
        def fail() -> str:
            """Fail."""
            raise ToolError("Own refusal.")

        @self.tool(timeout_s=0.01)
        async def late() -> str:
            """Be late."""
            await asyncio.Event().wait()
            return ""

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        return None if outcome.error is not None else 1.0


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def env(world: World) -> Any:
    env = Env(world)
    env.reset()
    yield env
    env.close()


def text(env: MCPEnvironment, tool: str, /, **arguments: Any) -> str:
    observation = env.call_tool(tool, arguments)
    assert isinstance(observation, CallToolObservation) and observation.error is None, observation.text
    return observation.text


def failed(env: MCPEnvironment, tool: str, /, **arguments: Any) -> tuple[ToolErrorType, str]:
    failure = env.call_tool(tool, arguments).error
    assert failure is not None
    return failure.error_type, failure.message


def test_only_a_fastmcp_server_can_be_handed_in() -> None:
    with pytest.raises(TypeError, match="takes a FastMCP server, not a str"):
        MCPEnvironment("server")  # type: ignore[arg-type]


def test_the_server_s_tools_are_called_as_steps_and_scored(env: Env) -> None:
    observation = env.call_tool("weigh", {"size": 3})
    assert observation.text == "3 kg" and observation.reward == 1.0
    assert text(env, "mounted", text="x") == text(env, "sub_mounted", text="x") == "mounted x"
    assert text(env, "depends") == "injected"
    assert env.step_count == 4
    assert env.trajectory is not None and env.trajectory.steps[0].outcome.value == "3 kg"


def test_own_tools_stand_beside_the_server_s_and_go_through_its_middleware(env: Env, world: World) -> None:
    assert text(env, "own", text="y") == "env y" and text(env, "own_later") == "env"
    assert world.middleware.calls == ["own", "own_later"]
    names = [tool.name for tool in env.list_tools()]
    assert {"weigh", "own", "own_later", "done", "fail", "mounted", "sub_mounted", "sub_reset"} <= set(names)
    assert len(names) == len(set(names)) and world.middleware.listings
    assert "live" not in names and failed(env, "live")[0] is ToolErrorType.TOOL_NOT_FOUND


def test_a_terminal_own_tool_ends_the_episode(env: Env) -> None:
    assert env.call_tool("done").terminated


def test_middleware_may_answer_in_the_tool_s_place(env: Env) -> None:
    assert failed(env, "answered") == (ToolErrorType.EXECUTION_ERROR, "Middleware says no.")
    assert env.trajectory is not None and env.trajectory.steps[-1].outcome.value is None


def test_invariant_4_what_middleware_hides_is_neither_listed_nor_callable(env: Env) -> None:
    assert "hidden" not in [tool.name for tool in env.list_tools()]
    assert failed(env, "hidden")[0] is ToolErrorType.TOOL_NOT_FOUND


def test_invariant_2_reserved_names_that_come_later_are_neither_listed_nor_callable(env: Env, world: World) -> None:
    late = FastMCP("late")
    for name in ("step", "state", "close"):
        late.tool(name=name)(lambda: "reached")
    world.server.mount(late)
    names = {tool.name for tool in env.list_tools()}
    for name in ("reset", "step", "state", "close"):
        assert name not in names and failed(env, name)[0] is ToolErrorType.TOOL_NOT_FOUND

    async def over_mcp() -> None:
        async with Client(env.mcp) as client:
            assert not {"reset", "step", "state", "close"} & {tool.name for tool in await client.list_tools()}
            for name in ("reset", "step"):
                with pytest.raises(Exception, match="Unknown tool"):
                    await client.call_tool(name)

    asyncio.run(over_mcp())


def test_tools_that_come_later_are_listed_and_callable(env: Env, world: World) -> None:
    env.list_tools()
    world.server.tool(name="later")(lambda: "later")
    assert "later" in [tool.name for tool in env.list_tools()] and text(env, "later") == "later"


def test_failures_are_told_apart_as_those_of_own_tools(env: Env) -> None:
    assert failed(env, "nonsense")[0] is ToolErrorType.TOOL_NOT_FOUND
    assert failed(env, "weigh", size="x")[0] is ToolErrorType.INVALID_ARGS
    assert failed(env, "weigh")[1].startswith("weigh: invalid arguments: size: ")
    assert failed(env, "weigh", size=1, colour="red")[0] is ToolErrorType.INVALID_ARGS
    assert failed(env, "weigh", size=1, siz=2)[1].endswith(". Did you mean 'size'? The parameters are: size, unit")
    assert failed(env, "own", text=3)[0] is ToolErrorType.INVALID_ARGS
    assert failed(env, "refuse") == (ToolErrorType.EXECUTION_ERROR, "Not now.")
    assert failed(env, "fail") == (ToolErrorType.EXECUTION_ERROR, "Own refusal.")
    kind, message = failed(env, "crash")
    # FastMCP's own text, which its server may mask.
    assert kind is ToolErrorType.EXECUTION_ERROR
    assert message.startswith("Error calling tool 'crash': lost (incident")


def test_invariant_8_a_validation_error_of_the_tool_s_own_is_no_invalid_argument(env: Env) -> None:
    assert failed(env, "inner_validation", text="x")[0] is ToolErrorType.EXECUTION_ERROR
    assert failed(env, "inner_validation", text=3)[0] is ToolErrorType.INVALID_ARGS


def test_a_validation_error_of_the_tool_s_own_has_no_input_and_no_address(
    env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    message = failed(env, "inner_validation", text="of the author")[1]
    said = "size: Input should be a valid integer, unable to parse string as an integer"
    assert message.startswith(f"Error calling tool 'inner_validation': {said} (incident ")
    assert "tool 'inner_validation' raised ValidationError" in caplog.text


def test_deadlines_hold_for_the_server_s_tools_and_for_own_ones(env: Env) -> None:
    observation = env.call_tool("endless", timeout_s=0.02)
    assert observation.error is not None and observation.error.error_type is ToolErrorType.TIMEOUT
    assert failed(env, "late")[0] is ToolErrorType.TIMEOUT
    assert text(env, "own") == "env x"


def test_what_the_server_s_tools_log_goes_to_the_record(env: Env) -> None:
    assert text(env, "talk") == "0"
    assert env.trajectory is not None
    logs = [(entry.level, entry.message, entry.progress) for entry in env.trajectory.steps[-1].logs]
    assert logs == [("info", "talking", None), ("progress", "half", 1)]
    text(env, "own_later")
    assert [entry.message for entry in env.trajectory.steps[-1].logs] == ["own"]
    kind, message = failed(env, "ask")
    assert kind is ToolErrorType.EXECUTION_ERROR and "nobody to ask" in message


def test_environments_that_share_a_server_keep_apart(world: World) -> None:
    envs = [Env(world, name) for name in ("one", "other")]
    for _ in range(2):
        assert [text(env, "own") for env in envs] == ["one x", "other x"]
    assert [text(env, "talk") for env in (*envs, *envs)] == ["0", "0", "1", "1"]
    assert len([tool for tool in envs[0].list_tools() if tool.name == "own"]) == 1
    for env in envs:
        env.close()


def test_what_a_server_s_tool_keeps_lasts_until_the_next_reset(env: Env) -> None:
    assert [text(env, "talk") for _ in range(2)] == ["0", "1"]
    env.reset()
    assert text(env, "talk") == "0"


def test_the_lifespan_is_entered_once_and_left_in_the_same_task_at_close(world: World) -> None:
    env = Env(world)
    assert world.lifespans == []
    env.list_tools()
    text(env, "weigh", size=1)
    text(env, "own")
    assert world.lifespans == ["entered"]
    env.close()
    assert world.lifespans == ["entered", "left"] and world.tasks[0] is world.tasks[1]
    env.close()
    assert world.lifespans == ["entered", "left"]


@pytest.mark.parametrize("how", ["blocking, then awaited", "awaited, then blocking", "blocking inside a loop"])
def test_close_leaves_the_lifespan_whichever_way_it_was_entered(world: World, how: str) -> None:
    env = Env(world)

    async def step() -> None:
        await env.step_async(CallToolAction(tool_name="weigh", arguments={"size": 1}))

    async def inside() -> None:
        env.call_tool("weigh", {"size": 1})
        await asyncio.wait_for(env.close_async(), 5)

    async def closing() -> None:
        await asyncio.wait_for(env.close_async(), 5)

    if how == "blocking, then awaited":
        text(env, "weigh", size=1)
        asyncio.run(closing())
    elif how == "awaited, then blocking":
        asyncio.run(step())  # its loop ends, and with it the lifespan
        env.close()
    else:
        asyncio.run(inside())
    assert world.lifespans == ["entered", "left"]


def test_a_lifespan_that_fails_fails_the_call_and_not_the_environment() -> None:
    @asynccontextmanager
    async def lifespan(server: FastMCP) -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    server = FastMCP("broken", lifespan=lifespan)

    class Broken(MCPEnvironment):
        def __init__(self) -> None:
            super().__init__(server)

            @self.tool
            def own() -> str:
                """Own."""
                return "own"

    env = Broken()
    env.reset()
    for _ in range(2):
        kind, message = failed(env, "own")
        assert kind is ToolErrorType.EXECUTION_ERROR and message.startswith("OSError")
    env.close()


def test_resources_and_prompts_are_served_beside_the_tools(env: Env, world: World) -> None:
    async def over_mcp() -> None:
        async with Client(env.mcp) as client:
            assert {str(resource.uri) for resource in await client.list_resources()} == {"config://main"}
            assert [template.uri_template for template in await client.list_resource_templates()] == ["note://{name}"]
            assert (await client.read_resource("config://main"))[0].text == "configured"
            assert (await client.read_resource("note://1"))[0].text == "note 1"
            assert [prompt.name for prompt in await client.list_prompts()] == ["hello"]
            prompt = await client.get_prompt("hello", {"name": "Ada"})
            assert prompt.messages[0].content.text == "Hello, Ada."
            assert (await client.call_tool("weigh", {"size": 2})).data == "2 kg"
            assert (await client.call_tool("own", {"text": "z"})).data == "env z"
            refused = await client.call_tool("refuse", raise_on_error=False)
            assert refused.is_error and refused.content[0].text == "Not now."
        await env.close_async()

    asyncio.run(over_mcp())
    assert env.trajectory is not None
    assert [step.call.plane.value for step in env.trajectory.steps] == ["agent"] * 3
    assert world.middleware.calls == ["weigh", "own", "refuse"]


def test_an_own_tool_cannot_be_called_around_its_environment(world: World) -> None:
    Env(world)

    async def main() -> None:
        async with Client(world.server) as client:
            assert "own" not in [tool.name for tool in await client.list_tools()]
            with pytest.raises(Exception, match="Unknown tool"):
                await client.call_tool("own")

    asyncio.run(main())


def test_an_environment_s_server_can_be_mounted_elsewhere() -> None:
    class Small(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool
            def small(text: str) -> str:
                """Make it small."""
                return text.lower()

    env, front = Small(), FastMCP("front")
    front.mount(env.mcp, namespace="env")

    async def main() -> None:
        async with Client(front) as client:
            assert [tool.name for tool in await client.list_tools()] == ["env_small"]
            assert (await client.call_tool("env_small", {"text": "ABC"})).data == "abc"

    asyncio.run(main())
    assert env.step_count == 1


def test_in_process_environments_of_a_shared_server_run_at_the_same_time(world: World) -> None:
    async def main() -> None:
        envs = [Env(world, str(number)) for number in range(5)]
        calls = [env.step_async(CallToolAction(tool_name="own_later")) for env in envs for _ in range(3)]
        texts = [observation.text for observation in await asyncio.gather(*calls)]
        assert texts == [str(number) for number in range(5) for _ in range(3)]
        for env in envs:
            await env.close_async()

    asyncio.run(main())
    assert world.lifespans[0] == "entered" and world.lifespans.count("entered") == world.lifespans.count("left")


class Tree(BaseModel):
    """A schema that refers to itself has definitions."""

    leaf: Size
    rest: list[Tree] = []


def test_schemas_keep_their_definitions_whoever_made_the_tool() -> None:
    server = FastMCP("defining")  # as FastMCP is by default: it would replace references

    @server.tool
    def theirs(tree: Tree) -> Tree:
        """Grow."""
        return tree

    class Defining(MCPEnvironment):
        def __init__(self) -> None:
            super().__init__(server)

            @self.tool
            def own(tree: Tree) -> Tree:
                """Grow."""
                return tree

    env = Defining()
    for tool in env.list_tools():
        assert tool.input_schema["$defs"].keys() == {"Size", "Tree"}
        assert tool.input_schema["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
        assert tool.output_schema is not None
        assert "$defs" in tool.output_schema
    env.close()


CITY = PromptReference(type="ref/prompt", name="travel")


async def completed(client: Client[Any], beginning: str) -> list[str]:
    return (await client.complete(CITY, {"name": "city", "value": beginning})).values


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_a_server_s_completions_are_its_environment_s(mode: str) -> None:
    server, threads = FastMCP("completing"), set()

    @server.prompt(CITY.name)  # FastMCP suggests nothing for a prompt that it does not have
    def of_city(city: str) -> str:
        return city

    @server.completion
    def complete(ref: Any, argument: Any, context: Any) -> list[str]:
        threads.add(threading.current_thread())
        if argument.value == "fail":
            raise ValueError("the secret of /home/somebody")
        return [city for city in ("paris", "park") if city.startswith(argument.value)]

    class Completing(MCPEnvironment):
        def __init__(self) -> None:
            super().__init__(server)

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp", mode=mode) as client:
            assert await completed(client, "pari") == ["paris"]
            with pytest.raises(MCPError, match="incident") as raised:
                await completed(client, "fail")
            assert "secret" not in str(raised.value)
            assert await completed(client, "par") == ["paris", "park"]

    with serving(Completing) as url:
        loops = {thread for thread in threading.enumerate() if thread.name == "mcpenv-serving"}
        asyncio.run(asyncio.wait_for(main(url), 30))
    assert threads and not threads & loops


def test_without_a_completion_handler_nothing_is_suggested() -> None:
    class Silent(MCPEnvironment):
        def __init__(self) -> None:
            super().__init__(FastMCP("silent"))

    async def main() -> None:
        env = Silent()
        async with Client(env.mcp) as client:
            assert await completed(client, "p") == []
        await env.close_async()

    asyncio.run(main())
