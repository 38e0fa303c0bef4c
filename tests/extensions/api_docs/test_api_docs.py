"""The description of the routes at ``/openapi.json`` and ``/docs``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from worlds import World

from mcpenv.server import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client.types.tools import Mode


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(World) as base_url:
        yield base_url


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
def test_both_are_checked_for_their_host_and_need_no_token(path: str) -> None:
    with serving(World, ServerConfig(control_token="the-control-token")) as base:
        assert httpx.get(base + path).status_code == 200
        assert httpx.get(base + path, headers={"Host": "evil.example"}).status_code == 421


def test_in_production_the_routes_of_episodes_are_not_described() -> None:
    with serving(World, mode="production") as base:
        paths = httpx.get(f"{base}/openapi.json").json()["paths"].keys()
        assert "/metadata" in paths and not {"/reset", "/step", "/state"} & paths


@pytest.mark.parametrize("mode", list(Mode))
def test_the_root_says_where_the_routes_are_described(mode: Mode) -> None:
    with serving(World, ServerConfig(mode=mode, control_token="the-control-token")) as base:
        assert httpx.get(base + httpx.get(base).json()["routes"]).headers["content-type"].startswith("text/html")


def test_docs_page_shows_the_routes(url: str) -> None:
    text = httpx.get(url + "/docs").text
    assert "/reset" in text
    assert "<script" not in text


def test_the_document_says_which_routes_need_the_token(url: str) -> None:
    def secured(base: str) -> set[str]:
        paths = httpx.get(base + "/openapi.json").json()["paths"]
        return {path for path, methods in paths.items() for name, each in methods.items() if "security" in each}

    assert secured(url) == set()
    with serving(World, ServerConfig(control_token="the-control-token")) as guarded:
        needing = secured(guarded)
        sessions = {"/sessions", "/sessions/{session_id}", "/capacity"}
        sessions |= {f"/sessions/{{session_id}}/{part}" for part in ("pause", "resume")}
        assert needing >= {"/reset", "/step", "/end", "/state", "/metrics", *sessions}
        assert httpx.get(guarded + "/docs").status_code == 200


@pytest.mark.parametrize("mode", ["simulation", "production"])
@pytest.mark.parametrize("control", [None, "the-control-token"])
@pytest.mark.parametrize("metrics", [None, "the-metrics-token"])
def test_every_route_that_is_described_exists_and_no_other(mode: Any, control: str | None, metrics: str | None) -> None:
    config = ServerConfig(mode=Mode(mode), control_token=control, metrics_token=metrics)
    tokens = {"controlToken": control, "metricsToken": metrics}
    with serving(World, config) as url:
        document = httpx.get(f"{url}/openapi.json").json()
        paths = document["paths"]
        for path in ("/sessions", "/sessions/{session_id}", "/capacity", "/metrics"):
            described = paths.get(path, {})
            there = httpx.get(url + path, headers={"Authorization": f"Bearer {control or metrics}"}).status_code
            unknown = path == "/sessions/{session_id}" and there == 404 and bool(described)  # no such session
            assert (path in paths) is (there != 404 or unknown), (path, there)
            if path not in paths:
                continue
            assert ("post" in described) is (path == "/sessions" and mode == "simulation")
            allowed = [name for each in described["get"].get("security", ()) for name in each]
            assert set(allowed) <= document["components"].get("securitySchemes", {}).keys()
            if allowed and path != "/sessions/{session_id}":
                assert httpx.get(url + path).status_code == 401
                for name in allowed:
                    headers = {"Authorization": f"Bearer {tokens[name]}"}
                    assert httpx.get(url + path, headers=headers).status_code == 200


def test_the_description_of_the_routes_is_shown_in_no_frame() -> None:
    with serving(World) as url:
        policy = httpx.get(f"{url}/docs").headers["content-security-policy"]
    assert policy == "frame-ancestors 'none'"
