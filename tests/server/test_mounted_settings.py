"""The settings of a mounted FastMCP server are in force over HTTP and stdio in both eras, or the start is refused."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import mcp_types
import pytest
from command_line import started
from fastmcp import Client, Context, FastMCP
from fastmcp.client.transports import StdioTransport
from fastmcp.server.auth import RemoteAuthProvider, StaticTokenVerifier, require_scopes
from fastmcp.server.extensions import ServerExtension
from fastmcp.skills import SkillsClientExtension
from fastmcp.utilities.tasks import TASKS_EXTENSION_ID
from key_value.aio.stores.memory import MemoryStore
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mounted_worlds import ICON, Shop, Stock, Stocking, Watching, full, shop
from pydantic import AnyHttpUrl
from starlette.testclient import TestClient

from mcpenv import ConfigurationError, InvalidTool, MCPEnvironment, Misuse, StartupError, ToolCall, ToolOutcome
from mcpenv.execution.server_settings import IGNORED, ON_SERVER, ON_TOOLS, REFUSED
from mcpenv.server.app import create_app
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

ERAS = ("legacy", "auto")  # 2025-11-25, and 2026-07-28 with discovery
TIMEOUT_S = 60
FOR_MCP = {"accept": "application/json, text/event-stream"}


def around(server: FastMCP, **attributes: Any) -> type[MCPEnvironment]:
    """An environment class that mounts the server."""

    def __init__(self: Any) -> None:
        MCPEnvironment.__init__(self, server)

    return type("Around", (MCPEnvironment,), {"__init__": __init__, "__doc__": "Around a server.", **attributes})


def run(main: Awaitable[Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, TIMEOUT_S))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(Shop) as base:
        yield base


def over_http(url: str) -> Callable[[], str]:
    return lambda: f"{url}/mcp"


def over_stdio(url: str) -> Callable[[], StdioTransport]:
    program = Path(__file__).with_name("mounted_worlds.py")
    return lambda: StdioTransport(sys.executable, [str(program), "Shop", "simulation"], keep_alive=False)


every_wire = pytest.mark.parametrize(
    "wire", [over_http, pytest.param(over_stdio, marks=(pytest.mark.process, pytest.mark.extension("stdio")))]
)
every_era = pytest.mark.parametrize("era", ERAS)


# -- every option


def test_every_option_of_fastmcp_s_constructor_is_decided() -> None:
    options = {
        name
        for name, parameter in inspect.signature(FastMCP.__init__).parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }
    decided = [*ON_SERVER, *ON_TOOLS, *REFUSED, *IGNORED]
    assert sorted(decided) == sorted(set(decided)) == sorted(options)


def test_every_public_attribute_that_can_be_set_is_decided() -> None:
    """A setter or an attribute of a newer FastMCP fails this test instead of being dropped."""
    server = FastMCP("plain")
    setters = {
        name for name, value in inspect.getmembers(FastMCP) if isinstance(value, property) and value.fset is not None
    }
    plain = {name for name in vars(server) if not name.startswith("_")}
    adders = {name for name in dir(FastMCP) if name.startswith(("add_", "custom_"))}
    assert setters == {"instructions"}
    assert plain == {
        "auth",
        "client_log_level",
        "experimental_capabilities",
        "middleware",
        "provider_error_strategy",  # of its own aggregation
        "providers",
        "strict_input_validation",
    }
    assert adders == {
        "add_completion_handler",
        "add_extension",
        "add_middleware",
        "add_prompt",
        "add_provider",
        "add_resource",
        "add_template",
        "add_tool",
        "add_transform",
        "custom_route",
    }


# -- identity and answers


@every_wire
@every_era
def test_clients_see_the_mounted_server_s_identity(url: str, wire: Any, era: Any) -> None:
    async def main() -> None:
        async with Client(wire(url)(), mode=era) as client:
            first = await client.list_tools_mcp()
            info, capabilities = client.server_info, client.server_capabilities
            assert client.protocol_version == ("2025-11-25" if era == "legacy" else "2026-07-28")
            assert client.instructions == "Buy apples."
            if era != "legacy":
                assert capabilities.extensions is not None
                assert capabilities.extensions["example.shop/stock"] == {"unit": "kg"}
                found = await client.session.discover()
                assert (found.ttl_ms, found.cache_scope) == (60_000, "public")
                assert (first.ttl_ms, first.cache_scope) == (60_000, "public")
            assert info is not None
            assert (info.name, info.version, info.website_url) == ("shop", "3.1", "https://shop.example")
            assert info.icons == [ICON]
            assert capabilities.experimental == {"example.shop/bulk": {"limit": 7}}
            assert len(first.tools) == 1 and first.next_cursor is not None

    run(main())


@every_era
def test_mcp_s_own_client_sees_them_too(url: str, era: str) -> None:
    async def main() -> None:
        async with streamable_http_client(f"{url}/mcp") as streams, ClientSession(*streams[:2]) as session:
            result: Any = await (session.initialize() if era == "legacy" else session.discover())
            assert result.instructions == "Buy apples."
            info = result.model_dump(by_alias=True, mode="json")
            info = info["serverInfo"] if era == "legacy" else info["_meta"]["io.modelcontextprotocol/serverInfo"]
            assert info["name"] == "shop" and info["icons"][0]["src"] == ICON.src
            tools = await session.list_tools()
            assert len(tools.tools) == 1

    run(main())


@every_wire
@every_era
def test_icons_of_tools_reach_clients(url: str, wire: Any, era: Any) -> None:
    async def main() -> None:
        async with Client(wire(url)(), mode=era) as client:
            icons = {tool.name: tool.icons for tool in await client.list_tools()}
            assert icons["buy"] == [ICON] and icons["praise"] == [ICON] and not icons["refund"]

    run(main())


@every_era
def test_icons_of_own_tools_reach_clients_without_a_mounted_server(era: Any) -> None:
    class Plain(MCPEnvironment):
        def __init__(self) -> None:
            @self.tool(icons=[ICON])
            def praise() -> str:
                return "good"

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp", mode=era) as client:
            assert (await client.list_tools())[0].icons == [ICON]

    with serving(Plain) as url:
        run(main(url))


def test_what_the_environment_s_class_says_wins() -> None:
    class Named(around(full())):  # type: ignore[misc]
        EXPOSED_NAME = "orchard"
        VERSION = "7.0"

        @classmethod
        def instructions(cls) -> str:
            return "Pick apples."

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp", mode="legacy") as client:
            result = client.initialize_result
            assert result is not None and result.instructions == "Pick apples."
            assert (result.server_info.name, result.server_info.version) == ("orchard", "7.0")

    with serving(Named) as url:
        run(main(url))


def test_a_name_that_fastmcp_made_up_is_not_shown() -> None:
    server = FastMCP()
    server.tool(name="look")(lambda: "dark")

    async def main() -> None:
        env = around(server)()
        async with Client(env.mcp, mode="legacy") as client:
            result = client.initialize_result
            assert result is not None and result.server_info.name == "Around" and result.server_info.version == "0.1.0"
            assert result.instructions == "Around a server."
        await env.close_async()

    run(main())


def test_an_environment_s_own_server_has_the_settings_too() -> None:
    async def main() -> None:
        env = around(full())()
        async with Client(env.mcp, mode="legacy") as client:
            result = client.initialize_result
            assert result is not None and result.server_info.icons == [ICON] and result.instructions == "Buy apples."
        with TestClient(env.mcp.http_app(), base_url="http://127.0.0.1") as http:
            assert http.get("/prices").json() == {"apples": 2}
        await env.close_async()

    run(main())


# -- extensions, skills, middleware


class Empty(mcp_types.RequestParams):
    pass


class GetStock(mcp_types.Request[Any, Any]):
    method: Any = "stock/get"
    params: Any = None


@every_wire
@every_era
def test_requests_and_interceptors_of_extensions_work(url: str, wire: Any, era: Any) -> None:
    async def main() -> None:
        async with Client(wire(url)(), mode=era) as client:
            stock: Any = await client.session.send_request(GetStock(params=Empty()), Stock)
            assert stock.apples == 3
            answered = await client.call_tool("sold_out", raise_on_error=False)
            assert answered.is_error and "a Stock of an extension is no result of a tool" in answered.content[0].text

    run(main())


def test_interceptors_of_extensions_run_in_steps_also_without_a_client() -> None:
    extension, server = Stocking(), shop()
    server.add_extension(extension)
    env = around(server)()
    env.reset()
    assert env.call_tool("buy", {"apples": 2}).text == "2 apples"
    assert extension.intercepted == ["buy"] and extension.running
    env.close()
    assert not extension.running


@every_wire
def test_skills_are_listed_and_read(url: str, wire: Any) -> None:
    async def main() -> None:
        async with Client(wire(url)(), mode="auto", extensions=[SkillsClientExtension()]) as client:
            skills = await client.list_skills()
            assert [skill.frontmatter.name for skill in skills] == ["haggle"]
            assert any("SKILL.md" in str(resource.uri) for resource in await client.list_resources())
            read = await client.read_skill(skills[0].uri)
            assert "Ask twice." in str(read.files)

    run(main())


@every_era
def test_middleware_sees_the_messages_that_are_no_calls(era: Any) -> None:
    server = full()
    watching = next(each for each in server.middleware if isinstance(each, Watching))

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp", mode=era) as client:
            if era == "legacy":
                await client.ping()
            await client.call_tool("buy", {"apples": 1})

    with serving(around(server)) as url:
        watching.seen.clear()
        run(main(url))
    assert ("initialize" if era == "legacy" else "server/discover") in watching.seen
    assert watching.seen.count("tools/call") == 1
    assert era != "legacy" or {"ping", "notifications/initialized"} <= set(watching.seen)


def test_the_tasks_extension_and_background_tools_are_refused_in_one_line() -> None:
    class Tasks(ServerExtension):
        identifier = TASKS_EXTENSION_ID

    extended = shop()
    extended.add_extension(Tasks())
    with pytest.raises(
        ConfigurationError, match="'shop': the tasks extension cannot be in force: a call that outlives"
    ):
        around(extended)()
    with pytest.raises(ConfigurationError, match="the tasks extension cannot be in force"), serving(around(extended)):
        pass
    lazy = FastMCP("lazy", tasks=True)

    @lazy.tool
    async def wait() -> str:
        return "waited"

    with pytest.raises(StartupError, match="task= of wait cannot be in force"), serving(around(lazy)):
        pass
    background, outer = FastMCP("background"), FastMCP("outer")

    @background.tool(task=True)
    async def slow() -> str:
        return "done"

    outer.mount(background)
    with (
        pytest.raises(StartupError, match="FastMCP server 'outer': task= of slow cannot be in force"),
        serving(around(outer)),
    ):
        pass
    env = around(outer)()
    with pytest.raises(ConfigurationError, match="task= of slow"):
        env.list_tools()
    env.close()


# -- authentication


TOKENS = StaticTokenVerifier(tokens={"secret-of-ada": {"client_id": "ada", "scopes": []}})
BY_OPERATOR = StaticTokenVerifier(tokens={"secret-of-bob": {"client_id": "bob", "scopes": []}})


def test_the_oauth_routes_of_a_mounted_server_s_authentication_are_served() -> None:
    login = [AnyHttpUrl("https://login.example")]
    oauth = RemoteAuthProvider(TOKENS, authorization_servers=login, base_url="http://127.0.0.1")
    with serving(around(shop(auth=oauth))) as url:
        refused = httpx.post(f"{url}/mcp", json={}, headers=FOR_MCP)
        assert refused.status_code == 401 and "resource_metadata" in refused.headers["www-authenticate"]
        metadata = httpx.get(f"{url}/.well-known/oauth-protected-resource").json()
        assert metadata["authorization_servers"] == ["https://login.example/"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extension("workers"))])
@every_era
def test_authentication_of_a_mounted_server_is_in_force_at_every_address(workers: int, era: Any) -> None:
    class Calling(around(shop(auth=TOKENS), SUPPORTS_CONCURRENT_SESSIONS=True)):  # type: ignore[misc]
        principals: list[str | None] = []

        def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
            self.principals.append(call.principal)
            return 1.0

    async def main(url: str) -> None:
        async with httpx.AsyncClient(base_url=url) as http:
            for address in ("/mcp", (await http.post("/reset")).json()["info"]["mcp_url"]):
                where = address if address.startswith("http") else url + address
                assert (await http.post(where, json={}, headers=FOR_MCP)).status_code == 401
                with pytest.raises(Exception, match=r"401|error response"):
                    async with Client(where, mode=era) as client:
                        await client.list_tools()
                async with Client(where, mode=era, auth="secret-of-ada") as client:
                    assert (await client.call_tool("buy", {"apples": 1})).data == "1 apples"

    with serving(Calling, workers=workers) as url:
        run(main(url))
    assert Calling.principals == ["ada"]


def test_authentication_that_the_operator_gives_wins_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main(url: str) -> None:
        async with Client(f"{url}/mcp", auth="secret-of-bob") as client:
            await client.list_tools()
        bearer = {"authorization": "Bearer secret-of-ada"}
        async with httpx.AsyncClient() as http:
            refused = await http.post(f"{url}/mcp", json={}, headers={**FOR_MCP, **bearer})
            assert refused.status_code == 401

    with serving(around(shop(auth=TOKENS)), auth=BY_OPERATOR) as url:
        run(main(url))
    assert "not by auth= of the FastMCP server" in caplog.text


@pytest.mark.process
def test_authentication_of_a_mounted_server_counts_as_credentials_for_other_machines(tmp_path: Path) -> None:
    arguments = ("--mode", "production", "--host", "0.0.0.0", "--port", "0")
    program = Path(__file__).with_name("mounted_worlds.py")
    with started(tmp_path, "run", f"{program}:Guarded", *arguments) as process:
        port = process.url().rpartition(":")[2]
        assert httpx.post(f"http://127.0.0.1:{port}/mcp", json={}, headers=FOR_MCP).status_code == 401
        said = "".join(process.out)
        assert "Agents need a token" in said and "without credentials" not in said
        process.end(signal.SIGTERM)
    with started(tmp_path, "run", f"{program}:Shop", *arguments) as process:
        assert process.end() == 2
        assert "host 0.0.0.0 is not loopback, and has no credentials (agent authentication)" in "".join(process.err)


def test_an_evaluation_s_own_server_admits_its_agents() -> None:
    async def main(url: str) -> None:
        async with Client(f"{url}/mcp") as client:
            assert (await client.call_tool("buy", {"apples": 1})).data == "1 apples"

    with serving(around(shop(auth=TOKENS)), auth=False) as url:
        run(main(url))


# -- routes


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extension("workers"))])
def test_custom_routes_are_served_and_guarded(workers: int) -> None:
    with serving(Shop, workers=workers) as url:
        assert httpx.get(f"{url}/prices").json() == {"apples": 2}
        assert httpx.post(f"{url}/prices").status_code == 405
        assert httpx.get(f"{url}/prices", headers={"Host": "evil.example"}).status_code == 421


def test_an_application_has_the_custom_routes_while_it_runs() -> None:
    app = create_app(Shop)
    for _ in range(2):
        with TestClient(app, base_url="http://127.0.0.1") as http:
            assert http.get("/prices").json() == {"apples": 2}
            assert http.get("/health").status_code == 200
    assert not any(getattr(route, "path", None) == "/prices" for route in app.routes)


@pytest.mark.parametrize("path", ["/health", "/mcp", "/reset", "/sessions/mine"])
def test_a_custom_route_at_a_path_of_the_server_s_own_is_refused(path: str) -> None:
    server = shop()
    server.custom_route(path, methods=["POST", "GET", "DELETE"])(lambda request: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigurationError, match=f"custom_route\\('{path}'\\)"), serving(around(server)):
        pass


# -- errors and logs


@pytest.mark.parametrize("masks", [True, False])
def test_masked_errors_are_masked_in_simulation_too(masks: bool) -> None:
    env = around(shop(mask_error_details=masks))()
    env.reset()
    error = env.call_tool("refund").error
    assert error is not None and ("cellar" in error.message) is not masks
    env.close()

    outer = FastMCP("outer")
    outer.mount(shop(mask_error_details=masks), namespace="inner")

    async def main(url: str, tool: str) -> None:
        async with Client(f"{url}/mcp") as client:
            answer = await client.call_tool(tool, raise_on_error=False)
            assert answer.is_error and ("cellar" in answer.content[0].text) is not masks

    with serving(around(outer)) as url:
        run(main(url, "inner_refund"))

    async def read(url: str) -> None:
        await main(url, "refund")
        async with Client(f"{url}/mcp") as client:
            with pytest.raises(MCPError) as raised:
                await client.read_resource("till://main")
            assert ("cellar" in str(raised.value)) is not masks

    with serving(around(shop(mask_error_details=masks))) as url:
        run(read(url))


@every_era
@pytest.mark.parametrize("wants", [True, False])
def test_what_an_agent_s_call_logs_stands_in_the_record_and_reaches_the_agent(era: Any, wants: bool) -> None:
    """Once each, whether the tool is handed in or own, and whether the agent wants messages or not."""
    logged: list[str] = []
    reported: list[float] = []

    async def on_log(params: mcp_types.LoggingMessageNotificationParams) -> None:
        logged.append(params.data["msg"])

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reported.append(progress)

    async def main(url: str) -> None:
        async with EnvClient(url) as control:
            address = (await control.reset()).info["mcp_url"]
            level: Any = "warning" if wants else None  # None: this agent of 2026-07-28 gets none
            async with (
                streamable_http_client(address) as streams,
                ClientSession(*streams[:2], logging_callback=on_log, log_level=level) as session,
            ):
                await (session.initialize() if era == "legacy" else session.discover())
                if era == "legacy":
                    await session.set_logging_level(level or "emergency")
                for name, arguments in (("buy", {"apples": 1}), ("praise", {})):
                    await session.call_tool(name, arguments, progress_callback=on_progress if wants else None)
            steps = (await control.trajectory()).steps
            first, second = ([(each.level, each.message, each.progress) for each in step.logs] for step in steps)
            assert first == [("debug", "debugging", None), ("warning", "buying 1", None), ("progress", "half", 1)]
            assert second == [("info", "praising", None), ("progress", None, 2)]

    with serving(Shop) as url:
        run(main(url))
    assert logged == (["buying 1"] if wants else [])
    assert reported == ([1, 2] if wants else [])


def test_the_server_s_own_log_level_holds() -> None:
    env = around(shop(client_log_level="warning"))()
    env.reset()
    env.call_tool("buy", {"apples": 1})
    assert env.trajectory is not None
    assert [each.level for each in env.trajectory.steps[0].logs] == ["warning", "progress"]
    env.close()


# -- the rest of the options


def test_strict_validation_resource_security_and_the_state_store_are_in_force() -> None:
    store = MemoryStore()
    server = shop(strict_input_validation=True, resource_security=None, session_state_store=store)

    @server.resource("file://{path*}")
    def file(path: str) -> str:
        return f"file {path}"

    @server.tool
    async def remember(ctx: Context) -> str:
        await ctx.set_state("seen", 1)
        return "noted"

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp") as client:
            refused = await client.call_tool("buy", {"apples": "1"}, raise_on_error=False)
            assert refused.is_error and "valid integer" in refused.content[0].text
            assert (await client.read_resource("file://a/..%2Fb"))[0].text == "file a/../b"
            await client.call_tool("remember")
            assert await store.keys("fastmcp_state")

    with serving(around(server)) as url:
        run(main(url))


def test_a_resource_that_the_default_policy_screens_is_screened() -> None:
    server = shop()
    server.resource("file://{path*}", name="file")(lambda path: "file")

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp") as client:
            with pytest.raises(MCPError, match=r"Unknown resource|not found"):
                await client.read_resource("file://a/..%2F..%2Fb")

    with serving(around(server)) as url:
        run(main(url))


def test_a_state_that_a_client_returns_is_sealed_by_the_server_s_own_policy() -> None:
    """Two servers with the same keys accept each other's states; one with other keys does not."""

    def asking(key: bytes) -> type[MCPEnvironment]:
        policy = RequestStateSecurity(keys=[key * 32], audience="shops")
        server = FastMCP("asking", request_state_security=policy)

        @server.tool
        async def order(ctx: Context) -> Any:
            if ctx.request_state is not None:
                return f"state {ctx.request_state}"
            question = mcp_types.ElicitRequest(
                params=mcp_types.ElicitRequestFormParams(
                    message="Sure?", requested_schema={"type": "object", "properties": {}}
                )
            )
            return mcp_types.InputRequiredResult(input_requests={"sure": question}, request_state="opened")

        return around(server)

    async def call(url: str, state: str | None = None) -> Any:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        }
        params: dict[str, Any] = {"name": "order", "arguments": {}, "_meta": meta}
        if state is not None:
            params |= {"requestState": state, "inputResponses": {"sure": {"action": "accept", "content": {}}}}
        headers = {
            **FOR_MCP,
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "order",
        }
        async with httpx.AsyncClient() as http:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            return (await http.post(f"{url}/mcp", json=body, headers=headers)).json()

    with serving(asking(b"k")) as one, serving(asking(b"k")) as same, serving(asking(b"o")) as other:
        sealed = run(call(one))["result"]["requestState"]
        assert "opened" not in sealed
        assert run(call(same, sealed))["result"]["content"][0]["text"] == "state opened"
        assert "error" in run(call(other, sealed))


def test_with_dynamic_tools_settings_of_a_server_that_is_not_known_at_start_are_refused() -> None:
    class Dynamic(around(shop(instructions="Buy.", website_url="https://shop.example"))):  # type: ignore[misc]
        DYNAMIC_TOOLS = True

    with serving(Dynamic) as url:
        refused = httpx.post(f"{url}/reset")
        assert refused.status_code == 500
        assert "instructions, website_url cannot be in force" in refused.json()["message"]

    class Plain(around(shop())):  # type: ignore[misc]
        DYNAMIC_TOOLS = True

    with serving(Plain) as url:
        assert httpx.post(f"{url}/reset").status_code == 200


# -- names


def test_an_own_tool_with_the_name_of_a_mounted_one_is_refused() -> None:
    class Twice(around(shop())):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

            @self.tool(mode="simulation")  # type: ignore[untyped-decorator]
            def buy() -> str:
                return "own"

    said = "tool 'buy': FastMCP server 'shop' has a tool of that name in simulation mode"
    with pytest.raises(StartupError, match=said), serving(Twice):
        pass
    for use in (lambda env: env.list_tools(), lambda env: env.call_tool("buy"), lambda env: env.call_tool("refund")):
        env: Any = Twice()
        with pytest.raises(InvalidTool, match=said):
            use(env)  # type: ignore[no-untyped-call]
        env.close()


def praising(server: FastMCP) -> Any:
    """Return an environment around a server, with a tool ``praise`` of its own."""

    class Own(around(server)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

            @self.tool  # type: ignore[untyped-decorator]
            def praise() -> str:
                return "own"

    return Own()


def test_an_own_tool_s_name_that_a_mounted_one_takes_later_is_refused_by_listings() -> None:
    server = shop()

    env = praising(server)
    assert "praise" in [tool.name for tool in env.list_tools()]
    server.tool(name="praise")(lambda: "theirs")
    with pytest.raises(InvalidTool, match="'praise': FastMCP server 'shop' has a tool of that name"):
        env.list_tools()
    env.close()


def test_an_own_tool_that_comes_late_is_refused_where_it_is_registered() -> None:
    class Late(around(shop())):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

            @self.tool  # type: ignore[untyped-decorator]
            def take(name: str, mode: str | None = None) -> str:
                self.tool(lambda: "own", name=name, mode=mode)
                return name

    env: Any = Late()
    assert env.call_tool("take", {"name": "praise"}).text == "praise"
    for mode in (None, "production"):
        refused = env.call_tool("take", {"name": "buy", "mode": mode}).error
        assert "'buy': FastMCP server 'shop' has a tool of that name" in refused.message
    assert env.call_tool("buy", {"apples": 1}).text == "1 apples"
    assert {"take", "praise", "buy"} <= {tool.name for tool in env.list_tools()}
    env.close()


def test_a_mounted_tool_that_takes_an_own_name_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    server = shop()

    env = praising(server)
    env.list_tools()
    server.tool(name="praise")(lambda: "theirs")
    with pytest.raises(InvalidTool):
        env.list_tools()
    assert [each.levelname for each in caplog.records if "'praise': FastMCP server 'shop'" in each.message] == ["ERROR"]
    env.close()


@pytest.mark.parametrize("masks", [True, False])
def test_a_file_that_a_mounted_tool_does_not_find_is_not_named(masks: bool) -> None:
    server = shop(mask_error_details=masks)

    @server.tool
    def read() -> str:
        return open("till-receipts.txt").read()

    env = around(server)()
    error = env.call_tool("read").error
    assert error is not None
    message = error.message
    assert message.startswith("Error calling tool 'read'") and "till-receipts" not in message
    assert ("No such file" in message) is not masks
    env.close()


def test_a_hidden_tool_that_an_agent_may_not_see_is_known_all_the_same() -> None:
    server = shop(auth=TOKENS)
    server.tool(name="audit", auth=require_scopes("audit"))(lambda: "audited")

    class Dynamic(MCPEnvironment):
        DYNAMIC_TOOLS = True

        def __init__(self) -> None:
            super().__init__(server, tools={"audit": {"hidden": True}})

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp", auth="secret-of-ada") as client:
            assert "audit" not in [tool.name for tool in await client.list_tools()]

    # The authentication that DYNAMIC_TOOLS cannot know is the operator's here.
    server.auth = None
    with serving(Dynamic, auth=TOKENS) as url:
        run(main(url))


def test_a_name_may_have_a_mounted_tool_in_one_mode_and_an_own_one_in_the_other(url: str) -> None:
    async def text(url: str) -> str:
        async with Client(f"{url}/mcp") as client:
            assert [tool.name for tool in await client.list_tools()].count("refund") == 1
            content: Any = (await client.call_tool("refund", raise_on_error=False)).content
            return str(content[0].text)

    assert run(text(url)) == "play money"
    with serving(Shop, mode="production") as production:
        assert run(text(production)).startswith("The tool failed (incident ")


@pytest.mark.parametrize("mode", ["simulation", "production"])
def test_mounted_tools_can_be_hidden_or_given_one_mode(mode: Any) -> None:
    class Some(MCPEnvironment):
        server = shop()

        def __init__(self) -> None:
            super().__init__(self.server, tools={"buy": {"mode": "simulation"}, "refund": {"hidden": True}})

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp") as client:
            names = {tool.name for tool in await client.list_tools()}
            assert names == ({"buy", "sold_out"} if mode == "simulation" else {"sold_out"})
            for name in {"buy", "refund"} - names:
                with pytest.raises(MCPError, match="Unknown tool"):
                    await client.call_tool(name, {"apples": 1})

    with serving(Some, mode=mode) as url:
        run(main(url))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bye": {"hidden": True}}, "tools= names it, and FastMCP server 'shop' has no such tool; it has: buy, refund"),
        ({"buy": {"mode": "sometimes"}}, "'simulation' or 'production'"),
        ({"buy": {"hiden": True}}, "unknown key 'hiden'. Did you mean 'hidden'"),
        ({"buy": {"colour": "red"}}, "unknown key 'colour': the keys are name, description"),
        ({"buy": True}, "tools= has a bool for it; write a dict of settings"),
        ({"buy": {"name": "reset"}}, "reserved for the orchestrator"),
        ({"buy": {"name": "refund"}}, "'buy' has the name 'refund' too"),
        ({"buy": {"name": "get"}, "refund": {"name": "get"}}, "it gets the name 'get', as 'buy' does"),
        ({"buy": {"arguments": {"pears": 1}}}, "it has no argument 'pears' to bind"),
    ],
)
def test_settings_of_tools_that_cannot_be_used_are_refused(options: Any, said: str) -> None:
    class Some(MCPEnvironment):
        server = shop()

        def __init__(self) -> None:
            super().__init__(self.server, tools=options)

    with pytest.raises(StartupError, match=said), serving(Some):
        pass


def test_settings_of_tools_need_a_server_and_a_dict() -> None:
    class Without(MCPEnvironment):
        def __init__(self) -> None:
            super().__init__(tools={"buy": {"hidden": True}})

    with pytest.raises(Misuse, match="none was given"):
        Without()
    wrong: Any = ["buy"]
    with pytest.raises(TypeError, match="takes a dict of settings"):
        MCPEnvironment(shop(), tools=wrong)


def test_the_server_on_its_own_keeps_all_its_tools() -> None:
    server = shop()
    env = MCPEnvironment(server, tools={"refund": {"hidden": True}, "buy": {"mode": "production"}})

    async def main() -> None:
        async with Client(server) as client:
            assert {tool.name for tool in await client.list_tools()} == {"buy", "refund", "sold_out"}
            assert (await client.call_tool("buy", {"apples": 1})).data == "1 apples"

    run(main())
    env.close()
