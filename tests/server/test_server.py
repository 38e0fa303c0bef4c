"""The server's parts together: routes per mode, sessions, capacity, bad input, guard, lifespans."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from worlds import Ledger, World

from mcpenv import ConfigurationError, MCPEnvironment, Mode, Observation, StartupError
from mcpenv.server.app import EnvServer, create_app
from mcpenv.server.config import ConcurrencyConfig, ServerConfig
from mcpenv.server.serve import serve_http, serving
from mcpenv.server.uvicorn_server import KEEP_ALIVE_S
from mcpenv_client import (
    Action,
    AnyObservation,
    CapacityReached,
    EnvClient,
    InvalidMessage,
    SessionLost,
    State,
    Tool,
)

SIMULATION_ONLY = ("/reset", "/step", "/state")
BOTH = ("/health", "/ready", "/metadata", "/schema")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(World) as base_url:
        yield base_url


def post(url: str, path: str, body: Any = None, **kwargs: Any) -> httpx.Response:
    return httpx.post(url + path, json=body, **kwargs) if body is not None else httpx.post(url + path, **kwargs)


class Frames:
    """A raw control socket."""

    def __init__(self, url: str, query: str = "") -> None:
        self._manager = connect(url.replace("http", "ws") + "/ws" + query, max_size=None)

    def __enter__(self) -> Frames:
        self.socket = self._manager.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._manager.__exit__(None, None, None)

    def send(self, frame: Any) -> dict[str, Any]:
        self.socket.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))
        reply: dict[str, Any] = json.loads(self.socket.recv(20))
        return reply


# -- routes


def test_production_has_no_control_routes() -> None:
    with serving(World, mode="production") as url:
        for path in SIMULATION_ONLY:
            assert httpx.request("GET" if path == "/state" else "POST", url + path).status_code == 404
        with pytest.raises(InvalidStatus, match=r"403|404"), connect(url.replace("http", "ws") + "/ws"):
            pass
        for path in BOTH:
            assert httpx.get(url + path).status_code == 200, path
        assert httpx.get(url + "/metadata").json()["mode"] == "production"


def test_mode_comes_from_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPENV_MODE", "production")
    assert EnvServer(World).config.mode is Mode.PRODUCTION
    assert EnvServer(World, mode="simulation").config.mode is Mode.SIMULATION
    monkeypatch.setenv("MCPENV_MODE", "dreaming")
    with pytest.raises(ConfigurationError, match="MCPENV_MODE is 'dreaming'"):
        create_app(World)


def test_an_instance_is_refused() -> None:
    env = World()
    with pytest.raises(TypeError, match="an instance of World was given"):
        create_app(env)  # type: ignore[arg-type]
    env.close()


def test_routes_join_somebodys_own_app() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
        events.append("up")
        yield {}
        events.append("down")

    async def home(request: Any) -> PlainTextResponse:
        return PlainTextResponse("mine")

    app = Starlette(routes=[Route("/", home)], lifespan=lifespan)
    EnvServer(World).register_routes(app, mode="simulation")
    with TestClient(app) as client:
        assert client.get("/").text == "mine"
        assert client.post("/reset").status_code == 200
        assert events == ["up"]
    assert events == ["up", "down"]


def test_schema_describes_everything(url: str) -> None:
    schema = httpx.get(url + "/schema").json()
    assert {"action", "observation", "state", "tools", "reset"} <= schema.keys()
    env = World()
    assert [Tool.model_validate(tool) for tool in schema["tools"]] == env.list_tools()
    env.close()
    assert schema["reset"]["properties"]["start"] == {"default": 0, "title": "Start", "type": "integer"}
    assert schema["reset"]["additionalProperties"] is False
    names = {ref["$ref"].rpartition("/")[2] for ref in schema["action"]["anyOf"]}
    assert names == {"CallToolAction", "ListToolsAction"}
    assert schema["action"]["title"] == "Action"  # clients of OpenEnv's environments of tools look for it


# -- the wire


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", "INVALID_JSON"),
        ("", "INVALID_JSON"),
        ("\ud7ff", "INVALID_JSON"),
        ('{"type":"step","data":{"tool_name":NaN}}', "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        (b"\x00\x01", "INVALID_JSON"),
        ("[1]", "VALIDATION_ERROR"),
        ("null", "VALIDATION_ERROR"),
        ('"reset"', "VALIDATION_ERROR"),
        ("{}", "UNKNOWN_TYPE"),
        ({"type": "dance"}, "UNKNOWN_TYPE"),
        ({"type": ["reset"]}, "UNKNOWN_TYPE"),
        ({"type": None}, "UNKNOWN_TYPE"),
        ({"type": "reset", "data": []}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"nope": 1}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": "x"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"seed": True}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"episode_id": ""}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"start": "far"}}, "VALIDATION_ERROR"),
        ({"type": "reset", "extra": 1}, "VALIDATION_ERROR"),
        ({"type": "step"}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"type": "fly"}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"type": "call_tool"}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"type": "call_tool", "tool_name": 3}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"type": "call_tool", "tool_name": "add", "args": {}}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"type": "call_tool", "tool_name": "add", "arguments": 1}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"type": "list_tools"}, "timeout_s": -1}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"type": "list_tools"}, "timeout_s": "1"}, "VALIDATION_ERROR"),
        ({"type": "state", "request_id": ""}, "VALIDATION_ERROR"),
        ({"type": "state", "request_id": "x" * 256}, "VALIDATION_ERROR"),
        ({"type": "state", "request_id": 7}, "VALIDATION_ERROR"),
        ('{"type":"reset","data":{"x":"' + "y" * (5 * 1024 * 1024) + '"}}', "VALIDATION_ERROR"),
    ],
)
def test_invariant_7_a_bad_frame_never_ends_an_episode(url: str, frame: Any, code: str) -> None:
    with Frames(url) as frames:
        assert frames.send({"type": "reset", "data": {"start": 5}})["type"] == "observation"
        reply = frames.send(frame)
        assert reply["type"] == "error"
        assert reply["data"]["code"] == code
        assert "Traceback" not in reply["data"]["message"]
        after = frames.send({"type": "step", "data": {"type": "call_tool", "tool_name": "add"}})
        assert after["data"]["observation"]["result"]["data"] == 6


def test_request_ids_are_echoed_on_answers_and_refusals(url: str) -> None:
    with Frames(url) as frames:
        assert frames.send({"type": "reset", "request_id": "a"})["request_id"] == "a"
        assert frames.send({"type": "state", "request_id": "b"})["request_id"] == "b"
        assert frames.send({"type": "dance", "request_id": "c"})["request_id"] == "c"
        assert frames.send({"type": "step", "data": {"type": "fly"}, "request_id": "d"})["request_id"] == "d"
        assert "request_id" not in frames.send({"type": "state"})


def test_close_ends_the_socket_with_1000(url: str) -> None:
    with Frames(url) as frames:
        frames.socket.send('{"type":"close"}')
        with pytest.raises(ConnectionClosed) as closed:
            frames.socket.recv(10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


def test_the_protocol_has_a_version(url: str) -> None:
    with Frames(url, "?protocol=1.7") as frames:
        assert frames.send({"type": "state"})["protocol"] == "1.0"
        assert "protocol" not in frames.send({"type": "state"})
    with Frames(url) as frames:
        assert "protocol" not in frames.send({"type": "state"})
    with Frames(url, "?protocol=2.0") as frames:
        assert json.loads(frames.socket.recv(10))["data"]["code"] == "UNSUPPORTED_VERSION"
        with pytest.raises(ConnectionClosed):
            frames.socket.recv(10)


# -- HTTP


@pytest.mark.parametrize(
    ("path", "content", "status", "code"),
    [
        ("/reset", b"{", 400, "INVALID_JSON"),
        ("/reset", b"[]", 422, "VALIDATION_ERROR"),
        ("/reset", b'{"nope": 1}', 422, "VALIDATION_ERROR"),
        ("/reset", b'{"session_id": 3}', 422, "VALIDATION_ERROR"),
        ("/reset", b'{"session_id": "unknown"}', 404, "SESSION_LOST"),
        ("/step", b"", 422, "VALIDATION_ERROR"),
        ("/step", b'{"action": 3}', 422, "VALIDATION_ERROR"),
        ("/step", b'{"action": {"type": "fly"}}', 422, "VALIDATION_ERROR"),
        ("/step", b'{"action": {"type": "list_tools"}, "more": 1}', 422, "VALIDATION_ERROR"),
        ("/step", b'{"action": {"type": "list_tools"}, "session_id": "unknown"}', 404, "SESSION_LOST"),
        ("/reset", b'{"a":"' + b"x" * (4 * 1024 * 1024) + b'"}', 413, "VALIDATION_ERROR"),
    ],
)
def test_bad_bodies_get_their_code(url: str, path: str, content: bytes, status: int, code: str) -> None:
    response = httpx.post(url + path, content=content)
    assert (response.status_code, response.json()["code"]) == (status, code)


def test_http_sessions_keep_their_environment(url: str) -> None:
    first = post(url, "/reset", {"start": 3, "seed": 1}).json()
    second = post(url, "/reset", {"start": 30}).json()
    assert first["session_id"] != second["session_id"]
    action = {"type": "call_tool", "tool_name": "add"}
    for session, expected in ((first, 4), (second, 31), (first, 5)):
        step = post(url, "/step", {"action": action, "session_id": session["session_id"]}).json()
        assert step["observation"]["result"]["data"] == expected
    state = httpx.get(url + "/state", params={"session_id": first["session_id"]}).json()
    assert state == {"episode_id": first["info"]["episode_id"], "step_count": 2, "done": False}


def test_without_a_session_an_episode_is_thrown_away(url: str) -> None:
    action = {"type": "call_tool", "tool_name": "add"}
    for _ in range(2):
        step = post(url, "/step", {"action": action}).json()
        assert step["observation"]["result"]["data"] == 1
        assert step["info"]["reset"] == "implicit"
    assert httpx.get(url + "/state").json()["step_count"] == 0


def test_a_socket_session_is_not_reachable_over_http(url: str) -> None:
    with serving(World) as own:
        server_sessions: list[str] = []
        with Frames(own) as frames:
            frames.send({"type": "reset"})
            response = httpx.get(own + "/state", params={"session_id": "service"})
            assert response.status_code == 404
            assert not server_sessions


# -- sessions and capacity


class Counted(MCPEnvironment):
    """Counts its instances."""

    alive: int = 0

    def __init__(self) -> None:
        type(self).alive += 1

        @self.tool
        async def ping() -> str:
            """Ping."""
            return "pong"

    def close(self) -> None:
        type(self).alive -= 1


def test_every_environment_is_closed_when_its_session_and_when_the_server_ends() -> None:
    class Many(Counted):
        SUPPORTS_CONCURRENT_SESSIONS = True
        alive = 0

    async def main(url: str) -> None:
        clients: list[EnvClient[Any, Any, Any]] = [EnvClient(url) for _ in range(5)]
        for client in clients:
            await client.reset()
        assert Many.alive == 5
        await clients[0].close()
        async with httpx.AsyncClient() as http:
            await http.post(url + "/reset")
        # The server closed the first one before it could take the request after it.
        while Many.alive > 5:
            await asyncio.sleep(0)
        assert Many.alive == 5

    with serving(Many) as url:
        asyncio.run(asyncio.wait_for(main(url), 30))
    assert Many.alive == 0


def test_one_slot_refuses_the_second_orchestrator_and_takes_it_when_free() -> None:
    config = ServerConfig(queue_timeout_s=0.05)
    with serving(Counted, config) as url, EnvClient[Any, Any, Any](url).sync() as first:
        first.reset()
        with pytest.raises(CapacityReached) as refused:
            EnvClient[Any, Any, Any](url).sync().reset()
        assert refused.value.data["active_sessions"] == 1
        assert refused.value.data["max_sessions"] == 1
        assert refused.value.retry_after_s
        response = post(url, "/reset")
        assert response.status_code == 503
        assert response.headers["retry-after"]


def test_an_app_takes_its_number_of_sessions_as_openenv_does() -> None:
    class Many(Counted):
        SUPPORTS_CONCURRENT_SESSIONS = True

    with TestClient(create_app(Many, max_concurrent_envs=4), base_url="http://127.0.0.1") as client:
        assert client.get("/capacity").json()["max_sessions"] == 4
    assert EnvServer(Many, max_concurrent_envs=3).config.max_concurrent_envs == 3
    config = ServerConfig(max_concurrent_envs=4)
    with pytest.raises(ConfigurationError, match="max_concurrent_envs is given twice, as 4 and as 2"):
        create_app(Many, config=config, max_concurrent_envs=2)
    with pytest.raises(ConfigurationError, match="max_concurrent_envs"):
        create_app(Many, max_concurrent_envs=0)


def test_sessions_may_never_time_out() -> None:
    from fastmcp import Client

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp") as agent:
            assert (await agent.call_tool("ping")).data == "pong"

    limits = ConcurrencyConfig.model_validate({"session_timeout": None})
    with serving(Counted, concurrency=limits) as url:
        asyncio.run(asyncio.wait_for(main(url), 30))


def test_with_one_slot_an_idle_agent_gives_way_to_an_orchestrator() -> None:
    from fastmcp import Client

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp") as agent:
            assert (await agent.call_tool("ping")).data == "pong"
            async with EnvClient[Any, Any, Any](url) as orchestrator:
                assert (await orchestrator.call_tool("ping")).text == "pong"

    with serving(Counted) as url:
        asyncio.run(asyncio.wait_for(main(url), 30))


def test_with_one_slot_http_resets_that_nobody_came_back_to_give_way() -> None:
    with serving(Counted, ServerConfig(queue_timeout_s=0.05)) as url:
        first = post(url, "/reset").json()["session_id"]
        second = post(url, "/reset").json()["session_id"]
        action = {"type": "call_tool", "tool_name": "ping"}
        assert post(url, "/step", {"action": action, "session_id": first}).status_code == 404
        assert post(url, "/step", {"action": action, "session_id": second}).status_code == 200
        assert post(url, "/reset").status_code == 503


def test_an_http_session_in_which_an_agent_acted_does_not_give_way() -> None:
    from fastmcp import Client

    async def main(url: str) -> None:
        info = (await asyncio.to_thread(post, url, "/reset")).json()["info"]
        async with Client(info["mcp_url"], mode="2026-07-28") as agent:
            assert (await agent.call_tool("ping")).data == "pong"
            assert (await asyncio.to_thread(post, url, "/reset")).status_code == 503
            assert (await agent.call_tool("ping")).data == "pong"

    with serving(Counted, ServerConfig(queue_timeout_s=0.05)) as url:
        asyncio.run(asyncio.wait_for(main(url), 30))


def test_invariant_9_more_sessions_than_the_environment_allows() -> None:
    with pytest.raises(ConfigurationError, match="allows one"), serving(Counted, ServerConfig(max_concurrent_envs=2)):
        pass


def test_invariant_9_a_host_that_is_not_loopback() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        with pytest.raises(ConfigurationError, match="loopback"):
            serve_http(World, ServerConfig(), host=host, port=0)


def test_invariant_9_a_port_in_use(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*--port 0"):
        serve_http(World, ServerConfig(), port=int(url.rpartition(":")[2]))


def test_each_handshake_session_has_its_own_environment_and_delete_closes_it() -> None:
    from fastmcp import Client

    class Many(Counted):
        SUPPORTS_CONCURRENT_SESSIONS = True
        alive = 0

    async def main(url: str) -> None:
        async with Client(f"{url}/mcp", mode="legacy") as one:
            await one.list_tools()
            assert Many.alive == 0  # health checks and listings build nothing
            await one.call_tool("ping")
            async with Client(f"{url}/mcp", mode="legacy") as two:
                await two.call_tool("ping")
                assert Many.alive == 2
        while Many.alive:
            await asyncio.sleep(0)

    with serving(Many) as url:
        asyncio.run(asyncio.wait_for(main(url), 30))


def test_stateless_clients_share_the_service_session() -> None:
    from fastmcp import Client

    async def main(url: str) -> None:
        for expected in (1, 2, 3):
            async with Client(f"{url}/mcp", mode="2026-07-28") as client:
                assert (await client.call_tool("add")).data == expected

    with serving(World) as url:
        asyncio.run(asyncio.wait_for(main(url), 30))


def test_idle_sessions_end_and_used_ones_do_not() -> None:
    class Many(Counted):
        SUPPORTS_CONCURRENT_SESSIONS = True
        alive = 0

    with serving(Many, ServerConfig(session_timeout_s=0.2)) as url:
        with EnvClient[Any, Any, Any](url).sync() as held:
            held.reset()
            session_id = post(url, "/reset").json()["session_id"]
            deadline = time.monotonic() + 30
            while Many.alive > 1 and time.monotonic() < deadline:
                httpx.get(url + "/health")
            assert Many.alive == 1
            lost = post(url, "/step", {"action": {"type": "list_tools"}, "session_id": session_id})
            assert lost.json()["code"] == "SESSION_LOST"
            assert held.call_tool("ping").text == "pong"


# -- what authors' code does wrong


def test_a_prototype_that_fails_refuses_to_start() -> None:
    class Own(MCPEnvironment):
        def __init__(self) -> None:
            raise RuntimeError("secret at /srv/broken/place")

    said = r"Own could not be made: RuntimeError: .* \(.*test_server\.py:\d+\)"
    with pytest.raises(StartupError, match=said), serving(Own):
        pass


# -- own types


class Move(Action):
    type: str = "move"
    payload: bytes = b""


class Board(Observation):
    cells: list[int]


class Count(State):
    moves: int = 0


class Game(MCPEnvironment):
    """Own actions, observations and states."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    action_types = (Move,)
    observation_type = Board
    state_type = Count

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Board:
        self.moves = 0
        return Board(cells=[seed or 0])

    def act(self, action: Action) -> Board:
        assert isinstance(action, Move)
        self.moves += 1
        return Board(cells=list(action.payload), reward=1, terminated=self.moves == 2)

    @property
    def state(self) -> Count:
        return Count(moves=self.moves)


def test_own_actions_observations_and_states_cross_the_wire() -> None:
    with serving(Game) as url:
        with EnvClient[Move, Board, Count](url).sync() as client:
            assert client.reset(seed=4).observation.cells == [4]
            first = client.step(Move(payload=b"\x00\xff"))
            assert first.observation.cells == [0, 255]
            assert (first.reward, first.done) == (1.0, False)
            assert client.step(Move()).done is True
            state = client.state()
            assert (state.moves, state.step_count) == (2, 2)
        with EnvClient[Any, Any, Any](url).sync() as untyped:
            observation = untyped.reset(seed=9).observation
            assert isinstance(observation, AnyObservation)
            assert observation.cells == [9]  # type: ignore[attr-defined]
            assert untyped.step({"payload": "AAE="}).observation.cells == [0, 1]


def test_an_environment_without_own_actions_says_so(url: str) -> None:
    with EnvClient[Any, Any, Any](url).sync() as client, pytest.raises(InvalidMessage, match="takes: list_tools, call"):
        client.step({"type": "move"})


# -- guard


@pytest.mark.parametrize("path", ["/reset/", "/mcp//", "/sessions/x/../"])
def test_nothing_is_redirected_to_the_host_that_a_request_names(url: str, path: str) -> None:
    assert "location" not in httpx.get(url + path, headers={"Host": "evil.example"}).headers


def test_an_address_with_a_slash_at_its_end_is_served(url: str) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28"}
    for path in ("/mcp/", "/episodes/unknown/mcp/"):
        assert (
            httpx.post(url + path, json=ping, headers=headers).json()
            == httpx.post(url + path.rstrip("/"), json=ping, headers=headers).json()
        )


@pytest.mark.parametrize(
    "headers", [{"Host": "localhost:1"}, {"Host": "[::1]:80"}, {"Origin": "http://localhost:6274"}], ids=str
)
def test_hosts_and_origins_of_this_machine_are_answered(url: str, headers: dict[str, str]) -> None:
    assert httpx.get(url + "/metadata", headers=headers).status_code == 200


def test_health_is_answered_whatever_the_host(url: str) -> None:
    for headers in ({"Host": ""}, {"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        assert httpx.get(url + "/health", headers=headers).status_code == 200
        assert httpx.get(url + "/metadata", headers=headers).status_code in (403, 421)


def test_allowed_hosts_and_origins_are_answered() -> None:
    config = ServerConfig(allowed_hosts=("env.example",), allowed_origins=("https://app.example",))
    with serving(World, config) as url:
        headers = {"Host": "env.example", "Origin": "https://app.example"}
        assert httpx.get(url + "/metadata", headers=headers).status_code == 200


# -- shared by all sessions


def test_lifespan_is_entered_once_and_shared() -> None:
    events: list[str] = []

    class Shares(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            self.seen = self.shared

            @self.tool
            def who() -> int:
                """Return the id of the shared object."""
                return id(self.seen)

        @classmethod
        @asynccontextmanager
        async def lifespan(cls) -> AsyncIterator[dict[str, str]]:
            events.append("up")
            yield {"model": "loaded"}
            events.append("down")

    with serving(Shares) as url:
        with EnvClient[Any, Any, Any](url).sync() as one, EnvClient[Any, Any, Any](url).sync() as two:
            assert one.call_tool("who").text == two.call_tool("who").text
        assert events == ["up"]
    assert events == ["up", "down"]


@pytest.mark.parametrize("factory", [Ledger, lambda: Ledger()], ids=["class", "factory"])
def test_thread_affine_environments_leave_no_thread(factory: Callable[[], MCPEnvironment]) -> None:
    others = set(threading.enumerate())
    with serving(factory) as url:
        for _ in range(3):
            with EnvClient[Any, Any, Any](url).sync() as client:
                client.reset()
                assert client.call_tool("book", {"amount": 1}).error is None
    for thread in set(threading.enumerate()) - others:
        if thread.name == "mcpenv-environment":
            thread.join(30)  # it was told to end, and may be about to
            assert not thread.is_alive()


def test_a_lost_session_stays_lost_until_a_reset() -> None:
    with serving(World) as url:
        client = EnvClient[Any, Any, Any](url).sync()
        client.reset()
    with pytest.raises(SessionLost):
        client.call_tool("add")


def test_invariant_2_agents_are_not_told_what_earns_reward() -> None:
    from fastmcp import Client

    class Told(MCPEnvironment):
        """Find the key.

        Reward:
            1.0 for the key.
        """

    async def main(url: str) -> str | None:
        async with Client(f"{url}/mcp", mode="legacy") as client:
            return client.initialize_result.instructions if client.initialize_result else None

    with serving(Told) as url:
        assert asyncio.run(asyncio.wait_for(main(url), 30)) == "Find the key."


def test_an_idle_connection_is_closed_by_its_client_and_not_by_the_server_in_the_middle_of_a_request() -> None:
    kept_s = [limits.keepalive_expiry for limits in (httpx.Limits(), httpx2.Limits())]
    assert all(each is not None and 2 * each < KEEP_ALIVE_S for each in kept_s)


def test_only_an_own_action_may_leave_out_its_type_and_only_if_it_is_the_only_one() -> None:
    class OfOneAction(MCPEnvironment):
        action_types = (Move,)

    with serving(OfOneAction) as own:
        schema = httpx.get(own + "/schema").json()["action"]
    needs = {definition["title"]: "type" in definition.get("required", ()) for definition in schema["$defs"].values()}
    assert needs == {"CallToolAction": True, "ListToolsAction": True, "Move": False}


@pytest.mark.parametrize("blanks", [b"", b" ", b"\t ", b"   "])
def test_blanks_after_the_value_of_a_header_are_none_of_it(blanks: bytes) -> None:
    params = {
        "name": "add",
        "arguments": {"by": 2},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    with serving(World) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        head = [
            b"POST /mcp HTTP/1.1",
            b"Host: %s:%s" % (host.encode(), port.encode()),
            b"Accept: application/json, text/event-stream",
            b"Content-Type: application/json",
            b"MCP-Protocol-Version: 2026-07-28" + blanks,
            b"Mcp-Method: tools/call" + blanks,
            b"Mcp-Name: add" + blanks,
            b"Connection: close",
            b"Content-Length: %d" % len(body),
        ]
        with socket.create_connection((host, int(port)), 10) as wire:
            wire.sendall(b"\r\n".join([*head, b"", body]))
            reply = b"".join(iter(lambda: wire.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert b"application/json" in reply  # what plain JSON is sent for: it was understood as of that revision
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["result"]["isError"] is False
