"""HTTP APIs as environments, by their OpenAPI documents, with a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml  # type: ignore[import-untyped]
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mcpenv.errors import TargetError
from mcpenv.targets.target import load_target

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Counter", "version": "7", "description": "An API that counts."},
    "servers": [{"url": "/v1"}],
    "paths": {
        "/count/{name}": {
            "post": {
                "operationId": "add",
                "summary": "Add to a counter.",
                "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}],
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {
                                "type": "object",
                                "properties": {"by": {"type": "integer"}},
                                "required": ["by"],
                            }
                        }
                    },
                },
                "responses": {"200": {"description": "ok"}},
            }
        }
    },
}


@pytest.fixture(scope="module")
def api() -> Iterator[str]:
    counts: dict[str, int] = {}

    async def document(request: Request) -> JSONResponse:
        return JSONResponse(DOCUMENT)

    async def add(request: Request) -> JSONResponse:
        if request.headers.get("authorization") != "Bearer the-token":
            return JSONResponse({"detail": "no token"}, 401)
        name = request.path_params["name"]
        counts[name] = counts.get(name, 0) + (await request.json())["by"]
        return JSONResponse({"count": counts[name]})

    routes = [Route("/openapi.json", document), Route("/v1/count/{name}", add, methods=["POST"])]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def made(target: str, *settings: str) -> Any:
    return load_target(target, settings).make()


def test_operations_are_tools_and_headers_come_from_variables(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTER_TOKEN", "the-token")
    target = load_target(f"openapi:{api}/openapi.json", ['headers={"Authorization": "Bearer ${COUNTER_TOKEN}"}'])
    assert target.name == "Counter"
    with target.make() as env:
        (tool,) = env.list_tools()
        assert tool.name == "add" and set(tool.input_schema["required"]) == {"name", "by"}
        env.reset()
        result: Any = env.call_tool("add", {"name": "a", "by": 2})
        assert result.result.structured_content == {"count": 2}
        env.reset()
        result = env.call_tool("add", {"name": "a", "by": 2})
        assert result.result.structured_content == {"count": 4}, "the API keeps its state"


def test_a_file_in_yaml_with_another_address_works_and_a_refused_request_is_a_tool_error(
    api: str, tmp_path: Path
) -> None:
    (tmp_path / "counter.yaml").write_text(yaml.safe_dump(DOCUMENT))
    with made(f"openapi:{tmp_path}/counter.yaml", f"base_url={api}/v1") as env:
        env.reset()
        assert "401" in env.call_tool("add", {"name": "b", "by": 1}).error.message


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("{", (), "the document cannot be read"),
        ("a: 1", (), "this is no OpenAPI document"),
        (json.dumps({"swagger": "2.0", "paths": {}}), (), "OpenAPI 2.0 is not supported"),
        (json.dumps(DOCUMENT), (), "names no address of the API; add --set base_url=URL"),
        (
            json.dumps(DOCUMENT),
            ('headers={"A": "${NOT_SET_HERE}"}',),
            "header A: the environment variable NOT_SET_HERE",
        ),
        (json.dumps(DOCUMENT), ("timeout_s=soon",), "timeout_s"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, text: str, settings: tuple[str, ...], said: str) -> None:
    (tmp_path / "document").write_text(text)
    with pytest.raises(TargetError, match=said):
        load_target(f"openapi:{tmp_path}/document", settings)
