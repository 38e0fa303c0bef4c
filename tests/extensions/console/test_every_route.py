"""The promises of the page on security, for every route of a server with all extensions that have routes."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route, WebSocketRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol
from worlds import World

from mcpenv import Mode
from mcpenv.server.app import EnvServer
from mcpenv.server.config import ServerConfig
from mcpenv.server.mcp.server_card import PATHS as CARDS
from mcpenv.server.security.control_auth import AgentTokens
from mcpenv.server.serve import serving

CONTROL, AGENT = "the-control-token", "the-token-of-ada"
PROBES = {"/health", "/ready"}
PUBLIC = {
    *("/metadata", "/schema", "/openapi.json", "/docs", *PROBES, *CARDS),
    *("/console", "/console/frame.html", "/console/{path:path}"),
    *("/console/api/session", "/console/api/sign-in", "/console/api/sign-out"),
}
OF_AGENTS = {"/mcp/", "/episodes/{handle}/mcp", "/episodes/{handle}/mcp/"}
SHARED = "/mcp"
FOREIGN = ("evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "[::ffff:192.0.2.1]", "0.0.0.0.evil")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Any]]]:
    folder: Path = tmp_path_factory.mktemp("record")
    config = ServerConfig(
        control_token=CONTROL, record=folder, console=True, wires=("ors", "nemo-gym"), metrics_token="of-the-metrics"
    )
    auth = AgentTokens({"ada": AGENT})
    routes = EnvServer(World, config=config, auth=auth).routes()
    with serving(World, config, auth=auth) as url:
        yield url, routes


def requests(routes: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the method, the route, and a path of each."""
    for route in routes:
        if isinstance(route, Route):
            path = re.sub(r"\{(\w+)(:path)?\}", "x", route.path)
            methods = route.methods or {"GET", "POST", "DELETE"}
            yield from ((method, route.path, path) for method in sorted(methods - {"HEAD"}))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_the_table_has_the_routes_of_all_extensions(served: tuple[str, list[Any]]) -> None:
    _, routes = served
    paths = {route.path for route in routes}
    expected = {"/ws", "/reset", "/sessions/events", "/records/{episode_id:path}", "/create_session", SHARED}
    assert expected <= paths, paths
    assert paths >= PUBLIC | OF_AGENTS


def test_every_route_that_is_not_public_needs_a_token_and_not_that_of_the_other_plane(
    served: tuple[str, list[Any]],
) -> None:
    url, routes = served
    wrong: dict[str, dict[str, str]] = {
        "none": {},
        "of an agent": bearer(AGENT),
        "as an API key": {"X-API-Key": AGENT},
        "of metrics": bearer("of-the-metrics"),
        "a cookie": {"Cookie": f"mcpenv_console_00000000=99999999999.a.b; token={CONTROL}"},
    }
    with httpx.Client(base_url=url, timeout=20) as client:
        for method, route, path in requests(routes):
            if route in PUBLIC:
                continue
            for name, headers in wrong.items():
                allowed = (name == "of metrics" and route == "/metrics") or (name == "of an agent" and "/mcp" in route)
                if not allowed:
                    answer = client.request(method, path, headers=headers)
                    assert answer.status_code == 401, (method, route, name, answer.status_code, answer.text)
            if route in OF_AGENTS:
                answer = client.request(method, path, headers=bearer(CONTROL))
                assert answer.status_code == 401, (method, route, answer.status_code)


def test_every_route_but_probes_refuses_foreign_hosts_and_origins_with_the_token(
    served: tuple[str, list[Any]],
) -> None:
    url, routes = served
    with httpx.Client(base_url=url, timeout=20) as client:
        for method, route, path in requests(routes):
            token = bearer(AGENT if route in OF_AGENTS else CONTROL)
            scraped = route == "/metrics"  # a scraper finds a server by its address
            for host in FOREIGN if route not in PROBES and not scraped else ():
                answer = client.request(method, path, headers={**token, "Host": host})
                assert answer.status_code == 421, (method, route, host, answer.status_code)
            for origin in ("https://evil.example", "null", f"{url}.evil.example", "file://"):
                if route not in PROBES and not scraped:
                    answer = client.request(method, path, headers={**token, "Origin": origin})
                    assert answer.status_code == 403, (method, route, origin, answer.status_code)
            answer = client.request(method, path, headers={"Origin": "https://evil.example"})
            assert not [name for name in answer.headers if name.startswith("access-control")], (method, route)


def test_every_socket_checks_host_origin_and_token(served: tuple[str, list[Any]]) -> None:
    url, routes = served
    subprotocol = "mcpenv.token." + base64.urlsafe_b64encode(CONTROL.encode()).decode().rstrip("=")
    sockets = [route.path for route in routes if isinstance(route, WebSocketRoute)]
    assert sockets == ["/ws"]
    for path in sockets:
        address = url.replace("http", "ws", 1) + path
        for refused, headers, origin in (
            (401, {}, None),
            (401, bearer(AGENT), None),
            (403, bearer(CONTROL), Origin("https://evil.example")),
            (403, bearer(CONTROL), Origin("null")),
            (403, {**bearer(CONTROL), "Host": "evil.example"}, None),
        ):
            with pytest.raises(InvalidStatus) as raised, connect(address, additional_headers=headers, origin=origin):
                pass
            assert raised.value.response.status_code == refused, (path, headers, origin)
        with connect(address, subprotocols=[Subprotocol("mcpenv"), Subprotocol(subprotocol)]):
            pass


def test_no_page_that_the_server_answers_can_be_framed_by_another_site(served: tuple[str, list[Any]]) -> None:
    url, routes = served
    pages = []
    with httpx.Client(base_url=url, timeout=20, headers=bearer(CONTROL)) as client:
        for method, route, path in requests(routes):
            if method != "GET" or route in OF_AGENTS or route == "/sessions/events":
                continue
            with client.stream("GET", path) as answer:
                if answer.headers.get("content-type", "").startswith("text/html"):
                    pages.append(route)
                    policy = answer.headers.get("content-security-policy", "")
                    assert re.search(r"frame-ancestors '(none|self)'(;|$)", policy), (route, policy)
    assert {"/docs", "/console/frame.html", "/console/{path:path}"} <= set(pages)


@pytest.mark.parametrize("mode", Mode)
def test_with_a_control_port_the_agents_address_has_nothing_of_the_control_plane(mode: Mode) -> None:
    config = ServerConfig(mode=mode, control_token=CONTROL, console=True, metrics_token="of-the-metrics")
    server = EnvServer(World, config=config, auth=AgentTokens({"ada": AGENT}))

    async def answers() -> tuple[dict[str, int], ...]:
        async with server.running():
            of_agents, of_control = server.applications(split=True)
            paths = sorted({path for app in (of_agents, of_control) for *_, path in requests(app.routes)})
            paths.remove("/sessions/events") if mode is Mode.SIMULATION else None
            found: list[dict[str, int]] = []
            for app in (of_agents, of_control):
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=20) as client:
                    found.append({path: (await client.get(path)).status_code for path in paths})
            return tuple(found)

    agents, control = asyncio.run(answers())
    described = {"/metadata", "/schema", "/openapi.json", "/docs"}
    # Every caller; with a token of an agent; and nobody else has anything here.
    assert {path for path, status in agents.items() if status == 200} == {"/", *PROBES, *CARDS}
    assert {path for path, status in agents.items() if status == 401} <= {
        "/mcp",
        "/mcp/",
        "/episodes/x/mcp",
        "/episodes/x/mcp/",
    }
    assert {path for path, status in control.items() if status == 200} >= {"/", *PROBES, *described}
    assert "/metrics" in {path for path, status in control.items() if status == 401}
