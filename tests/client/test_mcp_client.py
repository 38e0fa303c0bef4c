"""`MCPToolClient` against real FastMCP servers on uvicorn, in both eras of the protocol."""

# ruff: noqa: E402 - what is not a dependency of the client may be missing

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from client_servers import LIMIT_S, free_port, in_loop

pytest.importorskip("mcp", reason="MCPToolClient needs the extra mcpenv-client[mcp]")
fastmcp = pytest.importorskip("fastmcp", reason="the servers of these tests are FastMCP's")

import httpx2
import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.elicitation import AcceptedElicitation
from fastmcp.tools.base import ToolResult as FastMCPResult
from fastmcp.utilities.types import Audio, Image
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from mcpenv_client import (
    ConnectionFailed,
    EnvClient,
    ListingFailed,
    Mode,
    NotSerializable,
    OperationTimeout,
    SessionLost,
    ToolCallFailed,
    ToolResult,
    Unauthorized,
    UnsupportedVersion,
)
from mcpenv_client.mcp_client import MCPToolClient, SyncMCPToolClient

HANDSHAKE: Final = "2025-11-25"
MODERN: Final = "2026-07-28"
ERAS = [HANDSHAKE, MODERN]

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Point(BaseModel):
    x: int
    y: float = 0.5


class Tools:
    """A FastMCP server, and what its tools saw."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.started = threading.Event()
        self.together = asyncio.Event()
        self.inside = 0
        self.mcp = mcp = FastMCP("tools", list_page_size=3)

        @mcp.tool(annotations={"readOnlyHint": True}, meta={"own": [1]})
        def add(a: int, b: int = 2) -> int:
            """Add two numbers."""
            return a + b

        @mcp.tool
        def point(x: int) -> Point:
            return Point(x=x)

        @mcp.tool
        def picture() -> list[Any]:
            return ["before", Image(data=b"\x89PNG", format="png"), Audio(data=b"RIFF", format="wav")]

        @mcp.tool
        def big(size: int) -> str:
            return "x" * size

        @mcp.tool
        def refuse() -> str:
            raise ToolError("not today")

        @mcp.tool
        def unfit() -> FastMCPResult:
            return FastMCPResult(content="unfit", structured_content={"x": 1}, is_error=True)

        @mcp.tool
        async def slow() -> str:
            self.started.set()
            try:
                await asyncio.sleep(LIMIT_S)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "late"

        @mcp.tool
        async def meet() -> str:
            self.inside += 1
            if self.inside == 2:
                self.together.set()
            await self.together.wait()
            return "met"


class Gate:
    """Stands before an application and may refuse or look at requests.

    Attributes:
        refuse: gives a status for a request's headers and body, or None.
        methods: the methods of the requests that came.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.refuse: Callable[[dict[str, str], bytes], int | None] = lambda headers, body: None
        self.methods: list[str] = []

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.methods.append(scope["method"])
        message = await receive() if scope["method"] == "POST" else None
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        status = self.refuse(headers, b"" if message is None else message["body"])
        if status is not None:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return

        async def again() -> Any:
            nonlocal message
            first, message = message, None
            return await receive() if first is None else first

        await self.app(scope, again, send)


@contextmanager
def serving(app: Any, port: int = 0) -> Iterator[str]:
    """The address of a uvicorn in a thread."""
    config = uvicorn.Config(app, port=port, log_level="critical", timeout_graceful_shutdown=0, ws="none")
    server = uvicorn.Server(config)
    listening = config.bind_socket()
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    started = threading.Event()
    startup = server.startup

    async def announced(*args: Any, **kwargs: Any) -> None:
        await startup(*args, **kwargs)
        started.set()

    server.startup = announced  # type: ignore[method-assign]
    thread.start()
    try:
        assert started.wait(LIMIT_S)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        listening.close()


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture
def gate(tools: Tools) -> Gate:
    return Gate(tools.mcp.http_app(path="/mcp"))


@pytest.fixture
def url(gate: Gate) -> Iterator[str]:
    with serving(gate) as address:
        yield address


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> Any:
    return request.param


# -- tools


def test_listing_gives_every_page(url: str, era: Any) -> None:
    @in_loop
    async def body() -> None:
        async with MCPToolClient(url, protocol=era) as client:
            listed = {tool.name: tool for tool in await client.list_tools()}
            assert list(listed) == ["add", "point", "picture", "big", "refuse", "unfit", "slow", "meet"]
            add = listed["add"]
            assert add.description == "Add two numbers."
            assert add.input_schema["required"] == ["a"]
            assert add.output_schema is not None
            assert add.annotations == {"readOnlyHint": True}
            assert (add.meta or {})["own"] == [1]
            assert listed["point"].description == ""
            assert add.to_openai()["function"]["name"] == "add"

    body()


def test_results_are_those_of_the_contract(url: str, era: Any) -> None:
    @in_loop
    async def body() -> None:
        async with MCPToolClient(url, protocol=era) as client:
            added = await client.call_tool("add", {"a": 1})
            assert added == ToolResult(
                content=[{"type": "text", "text": "3"}],
                structured_content={"result": 3},
                data=3,
                meta={"fastmcp": {"wrap_result": True}},
            )
            assert added.text == "3"
            point = await client.call_tool("point", {"x": 1})
            assert (point.data, point.structured_content, point.meta) == ({"x": 1, "y": 0.5}, {"x": 1, "y": 0.5}, None)
            picture = await client.call_tool("picture")
            assert [block["type"] for block in picture.content] == ["text", "image", "audio"]
            assert picture.content[1] == {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}
            assert picture.text == "before\n[image]\n[audio]"

    body()


def test_a_result_may_be_large(url: str, era: Any) -> None:
    @in_loop
    async def body() -> None:
        async with MCPToolClient(url, protocol=era) as client:
            assert len((await client.call_tool("big", {"size": 3_000_000})).text) == 3_000_000

    body()


def test_errors_of_tools_raise_or_are_results(url: str, era: Any) -> None:
    @in_loop
    async def body() -> None:
        async with MCPToolClient(url, protocol=era) as client:
            for name, arguments, said in [
                ("refuse", {}, "not today"),
                ("nowhere", {}, "nowhere"),
                ("add", {"a": "one"}, "integer"),
                ("add", {}, "a"),
            ]:
                with pytest.raises(ToolCallFailed, match=said) as failed:
                    await client.call_tool(name, arguments)
                assert failed.value.tool_name == name
                result = await client.call_tool(name, arguments, raise_on_error=False)
                assert result.is_error
                assert result.text == failed.value.message
            unfit = await client.call_tool("unfit", raise_on_error=False)
            assert (unfit.is_error, unfit.text, unfit.data) == (True, "unfit", {"x": 1})
            # The session goes on.
            assert (await client.call_tool("add", {"a": 1})).data == 3

    body()


@in_loop
async def test_arguments_without_a_json_form_are_not_sent() -> None:
    with serving(Tools().mcp.http_app()) as url:
        async with MCPToolClient(url) as client:
            with pytest.raises(NotSerializable, match=r"arguments\.a"):
                await client.call_tool("add", {"a": float("nan")})
            assert (await client.call_tool("add", {"a": 1})).data == 3


@in_loop
async def test_a_server_without_tools_has_an_empty_listing() -> None:
    with serving(FastMCP("empty").http_app()) as url:
        async with MCPToolClient(url) as client:
            assert await client.list_tools() == []


def test_a_listing_that_fails_is_no_empty_one(url: str, gate: Gate, era: Any) -> None:
    @in_loop
    async def body() -> None:
        async with MCPToolClient(url, protocol=era) as client:
            gate.refuse = lambda headers, body: 500 if b"tools/list" in body else None
            with pytest.raises(ListingFailed, match="cannot list the tools of " + url):
                await client.list_tools()
            gate.refuse = lambda headers, body: None
            assert len(await client.list_tools()) == 8
            await client.close()
            with pytest.raises(SessionLost, match="closed"):
                await client.list_tools()

    body()


def test_a_timeout_cancels_the_call_and_the_session_goes_on(url: str, tools: Tools, era: Any) -> None:
    @in_loop
    async def body() -> None:
        async with MCPToolClient(url, protocol=era) as client:
            with pytest.raises(OperationTimeout, match="slow"):
                await client.call_tool("slow", timeout_s=0.3)
            assert await asyncio.to_thread(tools.cancelled.wait, LIMIT_S)
            assert (await client.call_tool("add", {"a": 1})).data == 3

    body()


def test_a_cancelled_caller_cancels_the_call(url: str, tools: Tools, era: Any) -> None:
    @in_loop
    async def body() -> None:
        async with MCPToolClient(url, protocol=era) as client:
            call = asyncio.ensure_future(client.call_tool("slow"))
            assert await asyncio.to_thread(tools.started.wait, LIMIT_S)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(tools.cancelled.wait, LIMIT_S)
            assert (await client.call_tool("add", {"a": 1})).data == 3

    body()


def test_calls_of_several_tasks_run_side_by_side(url: str, era: Any) -> None:
    @in_loop
    async def body() -> None:
        async with MCPToolClient(url, protocol=era) as client:
            met = await asyncio.gather(client.call_tool("meet"), client.call_tool("meet"))
            assert [result.text for result in met] == ["met", "met"]

    body()


# -- eras


@pytest.mark.parametrize(("protocol", "version"), [("auto", MODERN), (HANDSHAKE, HANDSHAKE), (MODERN, MODERN)])
def test_the_era_can_be_chosen(url: str, gate: Gate, protocol: Any, version: str) -> None:
    @in_loop
    async def body() -> None:
        client = MCPToolClient(url, protocol=protocol)
        assert client.protocol_version is None
        async with client:
            assert client.protocol_version == version
            assert (await client.call_tool("add", {"a": 1})).data == 3
        assert ("DELETE" in gate.methods) == (version == HANDSHAKE)

    body()


def test_an_older_server_is_spoken_to_unless_the_newer_era_was_asked_for(url: str, gate: Gate) -> None:
    gate.refuse = lambda headers, body: 400 if headers.get("mcp-protocol-version") == MODERN else None

    @in_loop
    async def body() -> None:
        async with MCPToolClient(url) as client:
            assert client.protocol_version == HANDSHAKE
            assert (await client.call_tool("add", {"a": 1})).data == 3
        with pytest.raises(UnsupportedVersion, match=f"{HANDSHAKE}, not {MODERN}"):
            await MCPToolClient(url, protocol=MODERN).connect()

    body()


# -- construction


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h:1", "http://h:1/mcp"),
        ("http://h:1/", "http://h:1/mcp"),
        ("http://h:1/mcp", "http://h:1/mcp"),
        ("https://h/prefix/mcp/", "https://h/prefix/mcp"),
        ("ws://h", "http://h/mcp"),
        ("http://h/episodes/x1/mcp", "http://h/episodes/x1/mcp"),
    ],
)
def test_addresses(given: str, url: str) -> None:
    assert MCPToolClient(given).url == url


def test_what_cannot_be_is_refused_at_once() -> None:
    for mode in ("simulation", Mode.SIMULATION):
        with pytest.raises(ValueError, match="EnvClient"):
            MCPToolClient("http://h", mode=mode)
    with pytest.raises(ValueError, match="unknown mode"):
        MCPToolClient("http://h", mode="test")
    with pytest.raises(ValueError, match="unknown protocol"):
        MCPToolClient("http://h", protocol="2024-11-05")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="base_url"):
        MCPToolClient("h")
    for mode in ("production", Mode.PRODUCTION):
        MCPToolClient("http://h", mode)


# -- connecting and losing


def test_connections_that_cannot_be_made_are_named(url: str, era: Any) -> None:
    @in_loop
    async def body() -> None:
        port = free_port()
        with pytest.raises(ConnectionFailed, match=f"http://127.0.0.1:{port}/mcp") as refused:
            await MCPToolClient(f"http://me:secret@127.0.0.1:{port}", protocol=era).connect()
        assert "secret" not in str(refused.value)
        with pytest.raises(ConnectionFailed, match="404"):
            async with MCPToolClient(url + "/elsewhere", protocol=era):
                pass

    body()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (JSONResponse({"code": "CODE_NOT_LOADED", "message": "shop.py:3: no"}, 503), r"mcp: HTTP 503: shop\.py:3: no$"),
        (JSONResponse({"message": "shop.py:3: no"}, 503), "mcp: HTTP 503: (?!shop)"),
        (JSONResponse(["shop.py:3: no"], 503), "mcp: HTTP 503: (?!shop)"),
        (Response("{", 503, media_type="application/json"), "mcp: HTTP 503: (?!{)"),
        (Response("shop.py:3: no", 503), "mcp: HTTP 503: (?!shop)"),
    ],
)
def test_a_refusal_gives_the_servers_reason(answer: Response, says: str, era: Any) -> None:
    @in_loop
    async def body() -> None:
        with serving(answer) as url, pytest.raises(ConnectionFailed, match=says) as refused:
            await MCPToolClient(url, protocol=era).connect()
        assert refused.value.http_status == 503

    body()


@in_loop
async def test_a_server_that_does_not_answer() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as mute:
        port = mute.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionFailed, match=r"within 0\.2 s"):
            await MCPToolClient(f"http://127.0.0.1:{port}", connect_timeout_s=0.2).connect()


def test_a_bearer_token_is_sent_and_a_missing_one_named(url: str, gate: Gate, era: Any) -> None:
    gate.refuse = lambda headers, body: None if headers.get("authorization") == "Bearer good" else 401

    @in_loop
    async def body() -> None:
        for headers in (None, {"Authorization": "Bearer bad"}):
            with pytest.raises(Unauthorized):
                await MCPToolClient(url, headers=headers, protocol=era).connect()
        async with MCPToolClient(url, headers={"Authorization": "Bearer good"}, protocol=era) as client:
            assert (await client.call_tool("add", {"a": 1})).data == 3
            gate.refuse = lambda headers, body: 401  # it has expired
            with pytest.raises(Unauthorized):
                await client.call_tool("add", {"a": 1})

    body()


class Renewing(httpx2.Auth):
    """Gets another token when one is refused, as OAuth does."""

    def __init__(self) -> None:
        self.tokens = iter(["old", "good"])
        self.token = next(self.tokens)

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self.token}"
        response = yield request
        if response.status_code == 401:
            self.token = next(self.tokens)
            request.headers["Authorization"] = f"Bearer {self.token}"
            yield request


def test_authorization_of_any_kind_may_renew_itself(url: str, gate: Gate, era: Any) -> None:
    gate.refuse = lambda headers, body: None if headers.get("authorization") == "Bearer good" else 401

    @in_loop
    async def body() -> None:
        async with MCPToolClient(url, auth=Renewing(), protocol=era) as client:
            assert (await client.call_tool("add", {"a": 1})).data == 3

    body()


def test_what_a_tool_asks_the_user_is_answered_by_the_callback(url: str, tools: Tools, era: Any) -> None:
    @tools.mcp.tool
    async def greet(ctx: Context) -> Any:
        """Ask for a name, in the words of either era."""
        if ctx.request_context is not None and ctx.request_context.protocol_version == HANDSHAKE:
            said = await ctx.elicit("Who?", str)
            assert isinstance(said, AcceptedElicitation)
            return f"hello {said.data}"
        answer = (ctx.input_responses or {}).get("who")
        if not isinstance(answer, ElicitResult):
            schema = {"type": "object", "properties": {"value": {"type": "string"}}}
            form = ElicitRequestFormParams(message="Who?", requested_schema=schema)
            return InputRequiredResult(input_requests={"who": ElicitRequest(params=form)})
        return f"hello {(answer.content or {})['value']}"

    asked = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"value": "Ada"})

    @in_loop
    async def body() -> None:
        async with MCPToolClient(url, protocol=era, elicitation_callback=answer) as client:
            assert (await client.call_tool("greet")).text == "hello Ada"
        async with MCPToolClient(url, protocol=era) as mute:
            with pytest.raises(ToolCallFailed):
                await mute.call_tool("greet")

    body()
    assert asked == ["Who?"]


def test_a_server_that_goes_loses_the_session_and_connect_begins_another(tools: Tools, era: Any) -> None:
    port = free_port()

    @in_loop
    async def body() -> None:
        with serving(tools.mcp.http_app(), port) as url:
            client = MCPToolClient(url, protocol=era)
            assert (await client.call_tool("add", {"a": 1})).data == 3
        for _ in range(2):
            with pytest.raises(SessionLost):
                await client.call_tool("add", {"a": 1})
            with pytest.raises(ListingFailed):
                await client.list_tools()
        with serving(Tools().mcp.http_app(), port):
            with pytest.raises(SessionLost):
                await client.call_tool("add", {"a": 1})
            await client.connect()
            assert (await client.call_tool("add", {"a": 1})).data == 3
            await client.close()

    body()


def test_a_session_that_the_server_forgot_is_lost(tools: Tools) -> None:
    port = free_port()

    @in_loop
    async def body() -> None:
        with serving(tools.mcp.http_app(), port) as url:
            client = MCPToolClient(url, protocol=HANDSHAKE)
            await client.connect()
        with serving(Tools().mcp.http_app(), port):  # restarted
            with pytest.raises(SessionLost, match="404"):
                await client.call_tool("add", {"a": 1})
            await client.connect()
            assert (await client.call_tool("add", {"a": 1})).data == 3
            await client.close()

    body()


def test_close_from_another_task_and_twice(url: str, era: Any) -> None:
    @in_loop
    async def body() -> None:
        client = MCPToolClient(url, protocol=era)
        await client.close()  # never opened
        await asyncio.create_task(client.connect())
        await asyncio.create_task(client.close())
        await client.close()
        with pytest.raises(SessionLost, match="closed"):
            await client.call_tool("add", {"a": 1})
        async with client:
            assert (await client.call_tool("add", {"a": 1})).data == 3

    body()


def test_a_call_under_way_ends_when_the_client_is_closed(url: str, tools: Tools, era: Any) -> None:
    @in_loop
    async def body() -> None:
        client = MCPToolClient(url, protocol=era)
        call = asyncio.ensure_future(client.call_tool("slow"))
        assert await asyncio.to_thread(tools.started.wait, LIMIT_S)
        await client.close()
        with pytest.raises(SessionLost, match="closed"):
            await call

    body()


def test_a_client_that_is_dropped_ends_its_session_and_says_so(url: str, gate: Gate) -> None:
    @in_loop
    async def body() -> None:
        client = MCPToolClient(url, protocol=HANDSHAKE)
        await client.connect()
        with pytest.warns(ResourceWarning, match="not closed"):
            del client
            gc.collect()
        while "DELETE" not in gate.methods:
            await asyncio.sleep(0.01)

    body()


# -- blocking


def test_the_blocking_form(url: str, era: Any) -> None:
    before = threading.active_count()
    with MCPToolClient(url, protocol=era).sync() as client:
        assert isinstance(client, SyncMCPToolClient)
        assert client.protocol_version == era
        assert len(client.list_tools()) == 8
        assert client.call_tool("add", {"a": 1}).data == 3
        with pytest.raises(ToolCallFailed):
            client.call_tool("refuse")
        assert client.call_tool("refuse", raise_on_error=False).is_error
        others = [MCPToolClient(url, protocol=era).sync() for _ in range(20)]
        for other in others:
            assert other.call_tool("add", {"a": 1}).data == 3
        assert sum(thread.name == "mcpenv-client" for thread in threading.enumerate()) == 1
        assert threading.active_count() <= before + 1 + 40  # the server's own tool threads
        for other in others:
            other.close()


# -- the same tool, over both planes


def environment() -> Any:
    """An environment whose tools give every kind of result."""
    mcpenv = pytest.importorskip("mcpenv", reason="compares with mcpenv's own server")

    class Kinds(mcpenv.MCPEnvironment):  # type: ignore[misc, name-defined]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            @self.tool  # type: ignore[untyped-decorator]
            def number(by: int = 1) -> int:
                return by + 1

            @self.tool  # type: ignore[untyped-decorator]
            def words() -> list[str]:
                return ["a", "é", "\U0001f600"]

            @self.tool  # type: ignore[untyped-decorator]
            def point() -> Point:
                return Point(x=2**60)

            @self.tool  # type: ignore[untyped-decorator]
            def anything() -> dict[str, Any]:
                return {"result": [1, None, {"deep": 1e-9}]}

            @self.tool  # type: ignore[untyped-decorator]
            def nothing() -> None:
                return None

            @self.tool  # type: ignore[untyped-decorator]
            def untyped(text: str = "x"):  # type: ignore[no-untyped-def]
                return text

            @self.tool  # type: ignore[untyped-decorator]
            def picture() -> list[Any]:
                return ["before", Image(data=b"\x89PNG", format="png"), Audio(data=b"RIFF", format="wav")]

            @self.tool  # type: ignore[untyped-decorator]
            def result() -> FastMCPResult:
                return FastMCPResult(content="own", structured_content={"a": 1}, meta={"trace": "t"})

            @self.tool(annotations={"readOnlyHint": True}, title="A title")  # type: ignore[untyped-decorator]
            def dressed() -> bool:
                """With everything."""
                return True

            @self.tool  # type: ignore[untyped-decorator]
            def refuse() -> str:
                raise mcpenv.ToolError("not today")

    return Kinds


def test_both_clients_give_the_same_tools_and_results(era: Any) -> None:
    kinds = environment()
    from mcpenv.server.serve import serving as serving_environment

    with serving_environment(kinds) as url:
        with EnvClient(url).sync() as env, MCPToolClient(url, protocol=era).sync() as client:
            env.reset()
            listed = client.list_tools()
            assert listed == env.list_tools()
            assert len(listed) == 10
            for tool in listed:
                observed, result = env.call_tool(tool.name), client.call_tool(tool.name, raise_on_error=False)
                if tool.name == "refuse":
                    assert observed.error is not None
                    assert (result.is_error, result.text) == (True, observed.error.message)
                else:
                    assert result == observed.observation.result  # type: ignore[attr-defined]
