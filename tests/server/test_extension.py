"""Extensions of a server: which are served, and when each of their members is called."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from worlds import World

from mcpenv.errors import ConfigurationError, StartupError
from mcpenv.server import EnvServer, ServerConfig, create_app, extension
from mcpenv.server.extension import Access, Doc, Extension, ServerRoute
from mcpenv.server.serve import Listening, Served, serve_workers, serving
from mcpenv_client.types.tools import Mode

TOKEN = "a-control-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Marked:
    """The middleware that adds a header to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-mark", b"1")]}
            await send(message)

        await self.app(scope, receive, marked)


class Noted(Extension):
    """Notes what is called."""

    middleware = (Marked,)

    def __init__(self, server: EnvServer) -> None:
        self.server = server
        self.calls = ["made"]
        made.append(self)

    def routes(self) -> list[ServerRoute]:
        self.calls.append("routes")
        return [
            ServerRoute("/noted", self.answer, Access.CONTROLLED),
            ServerRoute("/noted/open", self.answer, Access.GUARDED, docs=Doc("Noted")),
            ServerRoute(
                "/noted/{number:int}", self.answer, Access.CONTROLLED, ("POST",), Doc("Note", errors={404: "None"})
            ),
            ServerRoute("/metadata", self.answer, Access.GUARDED, docs=Doc("Never served")),
            ServerRoute("/{name}/splits", self.answer, Access.GUARDED),
        ]

    def admits(self, scope: Scope) -> bool:
        return (b"x-badge", b"gold") in scope["headers"]

    async def start(self) -> None:
        assert self.server.agent_server is not None and self.server.access is not None
        self.calls.append("start")

    def end_streams(self) -> None:
        self.calls.append("end_streams")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def answer(self, request: Request) -> Response:
        return JSONResponse({"noted": self.server.config.mode.value})


class Failing(Extension):
    """Cannot start."""

    def __init__(self, server: EnvServer) -> None:
        pass

    async def start(self) -> None:
        raise StartupError("there is no such thing here")


made: list[Noted] = []


@pytest.fixture(autouse=True)
def _none_is_made() -> None:
    made.clear()


def config_of(*extensions: Any, **more: Any) -> ServerConfig:
    return ServerConfig(extensions=extensions, **more)


@contextmanager
def client_of(app: Starlette) -> Iterator[TestClient]:
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> dict[str, EntryPoint]:
    """Return the entry points, which a test may change."""
    changed = dict(extension.installed())
    monkeypatch.setattr(extension, "installed", lambda: changed)
    monkeypatch.setattr("mcpenv.server.config.installed", lambda: changed)
    return changed


def test_an_extension_is_chosen_by_the_name_of_its_entry_point(entries: dict[str, EntryPoint]) -> None:
    entries["noted"] = EntryPoint("noted", f"{__name__}:Noted", extension.GROUP)
    with client_of(create_app(World)) as client:
        assert client.get("/noted").status_code == 404 and made == []
    with client_of(create_app(World, config=config_of("noted"))) as client:
        assert client.get("/noted").json() == {"noted": "simulation"}


def test_a_name_that_is_not_installed_is_refused_with_the_names_that_are(entries: dict[str, EntryPoint]) -> None:
    entries.clear()
    entries |= {name: EntryPoint(name, f"{__name__}:Noted", extension.GROUP) for name in ("noted", "hosts")}
    with pytest.raises(ConfigurationError, match=r"'other' is not installed; installed: hosts, noted$"):
        create_app(World, config=config_of("other"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("not_there:X", "cannot be loaded: ModuleNotFoundError: No module named 'not_there'"),
        ("sys:exit_", "cannot be loaded: AttributeError: module 'sys' has no attribute 'exit_'"),
        ("json", "json is no subclass of mcpenv.server.extension.Extension"),
    ],
)
def test_an_entry_that_is_no_extension_is_refused_with_its_value(
    value: str, reason: str, entries: dict[str, EntryPoint]
) -> None:
    entries["broken"] = EntryPoint("broken", value, "mcpenv.server")
    with pytest.raises(ConfigurationError, match=r"the server extension '?broken'?: ") as refused:
        create_app(World, config=config_of("broken"))
    assert reason in str(refused.value)


def test_an_extension_that_is_named_twice_is_made_once() -> None:
    EnvServer(World, config=config_of(Noted, Noted))
    assert len(made) == 1


def test_middleware_is_around_every_response_also_without_a_route() -> None:
    with client_of(create_app(World, config=config_of(Noted))) as client:
        answers = [client.get("/health"), client.get("/nothing-here"), client.get("/mcp")]
        assert [answer.status_code for answer in answers] == [200, 404, 400]
        assert [answer.headers.get("x-mark") for answer in answers] == ["1", "1", "1"]


def test_middleware_of_agents_is_not_around_a_control_plane_at_an_address_of_its_own() -> None:
    class OfAgents(Extension):
        agent_middleware = (Marked,)

        def __init__(self, server: EnvServer) -> None:
            """Do nothing."""

    server = EnvServer(World, config=config_of(OfAgents))
    for app, marked in zip(server.applications(split=True), (True, False), strict=True):
        assert ("x-mark" in TestClient(app).get("/nothing-here").headers) == marked
    (app,) = server.applications(split=False)
    assert "x-mark" in TestClient(app).get("/nothing-here").headers


def test_in_an_application_of_ones_own_middleware_is_around_the_routes_of_the_server_only() -> None:
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("mine")

    app = Starlette(routes=[Route("/", home)])
    EnvServer(World, config=config_of(Noted)).register_routes(app)
    with client_of(app) as client:
        assert "x-mark" not in client.get("/").headers
        assert client.get("/health").headers["x-mark"] == "1"
        with client.websocket_connect("/ws") as socket:
            socket.send_json({"type": "state"})
            assert socket.receive_json()["type"]


def test_a_credential_of_an_extension_opens_the_control_plane_and_its_own_routes() -> None:
    with client_of(create_app(World, config=config_of(Noted, control_token=TOKEN))) as client:
        for path in ("/noted", "/sessions", "/metrics"):
            assert [
                client.get(path, headers=headers).status_code
                for headers in ({}, {"X-Badge": "tin"}, {"X-Badge": "gold"}, BEARER)
            ] == [401, 401, 200, 200]
        with client.websocket_connect("/ws", headers={"X-Badge": "gold"}) as socket:
            socket.send_json({"type": "state"})
            assert socket.receive_json()["type"]


def test_a_route_is_behind_the_check_of_the_host() -> None:
    with client_of(create_app(World, config=config_of(Noted))) as client:
        assert client.get("/noted/open", headers={"Host": "elsewhere.example"}).status_code == 421


def test_the_kernel_s_route_of_the_same_path_wins_except_those_of_tasks() -> None:
    with client_of(create_app(World, config=config_of(Noted))) as client:
        assert client.get("/metadata").json()["name"]
        assert client.get("/anything/splits").json() == {"noted": "simulation"}


@pytest.mark.extension("api_docs")
def test_a_route_with_a_description_is_in_the_openapi_document() -> None:
    with client_of(create_app(World, config=config_of(Noted, control_token=TOKEN))) as client:
        paths = client.get("/openapi.json").json()["paths"]
    assert paths["/noted/open"]["get"]["summary"] == "Noted" and "/noted" not in paths
    assert "security" not in paths["/noted/open"]["get"] and paths["/metadata"]["get"]["summary"] != "Never served"
    (number,), note = paths["/noted/{number}"]["parameters"], paths["/noted/{number}"]["post"]
    assert (number["name"], number["schema"]["type"]) == ("number", "integer")
    assert note["responses"].keys() == {"200", "404", "401"} and note["security"] == [{"controlToken": []}]


def test_each_member_is_called_in_its_time() -> None:
    app = create_app(World, config=config_of(Noted))
    (noted,) = made
    assert noted.calls == ["made", "routes"]
    with client_of(app) as client:
        assert noted.calls == ["made", "routes", "start"]
        client.get("/noted")
    assert noted.calls == ["made", "routes", "start", "stop"]


def test_streams_are_ended_before_the_server_stops() -> None:
    with serving(World, config_of(Noted)):
        noted = made[-1]
    first = noted.calls.index("end_streams")
    assert noted.calls[:first] == ["made", "routes", "start"] and noted.calls[-1] == "stop"


def test_an_extension_that_cannot_start_keeps_the_server_from_it_and_stops_the_others() -> None:
    async def run() -> None:
        async with EnvServer(World, config=config_of(Noted, Failing)).running():
            raise AssertionError

    with pytest.raises(StartupError, match="no such thing"):
        asyncio.run(run())
    assert made[-1].calls == ["made", "routes", "start", "stop"]


def test_with_another_mode_extensions_are_made_again() -> None:
    app = Starlette()
    server = EnvServer(World, config=config_of(Noted, control_token=TOKEN))
    server.register_routes(app, mode="production")
    with client_of(app) as client:
        assert client.get("/noted", headers=BEARER).json() == {"noted": "production"}
    assert [noted.calls for noted in made] == [["made", "routes"], ["made", "routes", "start", "stop"]]


# -- without extensions of mcpenv's own

PLAIN = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def test_without_the_extension_of_openenv_all_requests_at_mcp_are_mcp_s(entries: dict[str, EntryPoint]) -> None:
    entries.pop("openenv", None)
    with client_of(create_app(World)) as client:
        answer = client.post("/mcp", json=PLAIN)
        assert answer.status_code >= 400 and "inputSchema" not in answer.text
        with client.websocket_connect("/ws") as socket:
            socket.send_text(json.dumps({"type": "mcp", "data": PLAIN}))
            refused = socket.receive_json()
            assert refused["type"] == "error" and "no extension of it does" in refused["data"]["message"]


def test_without_the_console_there_is_none_unless_it_is_asked_for(entries: dict[str, EntryPoint]) -> None:
    for name in ("console", "records"):
        entries.pop(name, None)
    with client_of(create_app(World)) as client:
        assert client.get("/console").status_code == 404
    with pytest.raises(ConfigurationError, match="'console' is not installed"):
        create_app(World, config=ServerConfig(console=True))


def test_without_records_episodes_are_recorded_and_not_shown(entries: dict[str, EntryPoint], tmp_path: Any) -> None:
    entries.pop("records", None)
    with client_of(create_app(World, config=ServerConfig(record=tmp_path))) as client:
        client.post("/reset")
        assert client.get("/records").status_code == 404
        assert client.get("/metadata").json()["recording"]["episodes_lost"] == 0


@pytest.mark.one_worker("it is about a server without the extension for several")
def test_several_workers_need_their_extension(entries: dict[str, EntryPoint]) -> None:
    entries.pop("workers", None)
    config = ServerConfig(mode=Mode.SIMULATION)
    with pytest.raises(ConfigurationError, match="'workers' is not installed"):
        serve_workers(lambda: Served(World), config, 2, Listening(port=0))
