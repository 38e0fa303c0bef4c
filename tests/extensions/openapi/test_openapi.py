"""HTTP APIs as environments, by their OpenAPI documents, with a real HTTP server."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import BytesParser
from email.policy import HTTP
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

import httpx
import pytest
import uvicorn
import yaml  # type: ignore[import-untyped]
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from mcpenv.errors import TargetError
from mcpenv.extensions.contract import ContractViolation, Verdict, check_environment
from mcpenv.server import create_app
from mcpenv.server.security.control_auth import AgentTokens
from mcpenv.targets.target import load_target
from mcpenv_client import ToolErrorType

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
        if name == "none":
            return JSONResponse({"detail": "no counter is named none; see /counters"}, 404)
        counts[name] = counts.get(name, 0) + (await request.json())["by"]
        return JSONResponse({"count": counts[name]})

    routes = [Route("/openapi.json", document), Route("/v1/count/{name}", add, methods=["POST"])]
    with served_by(Starlette(routes=routes)) as url:
        yield url


@contextmanager
def served_by(app: Starlette) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def made(target: str, *settings: str) -> Any:
    return load_target(target, settings).make()


MODERN = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "hello",
}


def test_an_agent_adds_no_header_to_a_request(tmp_path: Path) -> None:
    """An API must take neither another user nor another method from an agent, nor its credential for the server."""
    seen: list[Request] = []

    async def hello(request: Request) -> JSONResponse:
        seen.append(request)
        return JSONResponse({"x-trace": request.headers.get("x-trace")})

    trace = {"name": "X-Trace", "in": "header", "schema": {"type": "string"}}
    operation = {"operationId": "hello", "parameters": [trace], "responses": {"200": {"description": "ok"}}}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "an-agent", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "hello", "arguments": {"X-Trace": "of the call"}, "_meta": meta}
    own = {
        "Authorization": "Bearer a-token-of-the-agent",
        "Cookie": "a=b",
        "X-Operator": "agent",
        "X-Api-Key": "agent",
        "X-Forwarded-User": "admin",
        "X-HTTP-Method-Override": "DELETE",
        "X-Trace": "of the agent's request",
        "User-Agent": "an-agent",
    }
    with served_by(Starlette(routes=[Route("/hello", hello)])) as url:
        document = {**DOCUMENT, "servers": [{"url": url}], "paths": {"/hello": {"get": operation}}}
        (tmp_path / "api.json").write_text(json.dumps(document))
        target = load_target(f"openapi:{tmp_path / 'api.json'}", ['headers={"X-Operator": "operator"}'])
        app = create_app(target.make, auth=AgentTokens({"ada": "a-token-of-the-agent"}))
        with served_by(app) as server, httpx.Client(headers={**MODERN, **own}) as agent:
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            answer = agent.post(f"{server}/mcp", json=message).json()
    assert answer["result"]["structuredContent"] == {"x-trace": "of the call"}
    [request] = seen
    sent = dict(request.headers)
    assert sent.pop("host") == url.removeprefix("http://")
    assert sent.pop("x-operator") == "operator"
    assert sent.pop("x-trace") == "of the call"
    assert sent.pop("user-agent") != "an-agent"
    assert sent.keys() == {"accept", "accept-encoding", "connection"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": ".."},
        {"name": "../../admin"},
        {"name": "%2e%2e"},
        {"name": "a", "X-Trace": "a\r\nX-Other: b"},
        {"name": "a", "X-Trace": " a"},
        {"name": "a", "session": "mine; user=admin"},
        {"name": "a", "X-Trace": "\N{GREEK SMALL LETTER ALPHA}"},
    ],
)
def test_arguments_without_a_form_in_http_are_the_agents_error(arguments: dict[str, str], tmp_path: Path) -> None:
    """They reach no other path of the API, and are no failure of the environment, which would have no reward."""
    seen: list[str] = []

    async def everything(request: Request) -> JSONResponse:
        seen.append(request.url.path)
        return JSONResponse({})

    places = {"name": "path", "X-Trace": "header", "session": "cookie"}
    parameters = [
        {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}
        for name, place in places.items()
    ]
    operation = {"operationId": "get", "parameters": parameters, "responses": {"200": {"description": "ok"}}}
    with served_by(Starlette(routes=[Route("/{path:path}", everything)])) as url:
        document = {**DOCUMENT, "servers": [{"url": f"{url}/v1"}], "paths": {"/items/{name}": {"get": operation}}}
        (tmp_path / "api.json").write_text(json.dumps(document))
        with made(f"openapi:{tmp_path / 'api.json'}") as env:
            env.reset()
            step = env.call_tool("get", arguments)
    assert (step.info["status"]["code"], seen) == ("agent_error", [])
    assert step.error is not None
    assert "the arguments cannot be sent" in step.error.message


def test_a_header_of_the_operator_that_cannot_be_sent_is_refused(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTER_TOKEN", "the-token\n")
    with pytest.raises(TargetError, match="header Authorization: the value begins or ends with a blank") as caught:
        load_target(f"openapi:{api}/openapi.json", ['headers={"Authorization": "Bearer ${COUNTER_TOKEN}"}'])
    assert "the-token" not in str(caught.value)


def test_a_redirect_of_the_document_takes_no_header_to_another_origin(api: str) -> None:
    seen: dict[str, str | None] = {}

    async def here(request: Request) -> RedirectResponse:
        seen["here"] = request.headers.get("x-api-key")
        return RedirectResponse("/moved")

    async def moved(request: Request) -> RedirectResponse:
        seen["moved"] = request.headers.get("x-api-key")
        return RedirectResponse(f"{elsewhere}/there")

    async def there(request: Request) -> JSONResponse:
        seen["there"] = request.headers.get("x-api-key")
        return JSONResponse({**DOCUMENT, "servers": [{"url": f"{api}/v1"}]})

    with served_by(Starlette(routes=[Route("/there", there)])) as elsewhere:
        routes = [Route("/openapi.json", here), Route("/moved", moved)]
        with served_by(Starlette(routes=routes)) as url:
            with made(f"openapi:{url}/openapi.json", 'headers={"X-API-Key": "the-key"}') as env:
                assert [tool.name for tool in env.list_tools()] == ["add"]
    assert seen == {"here": "the-key", "moved": "the-key", "there": None}


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


def test_a_refusal_of_a_call_is_the_agents_error_with_the_apis_text(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTER_TOKEN", "the-token")
    with made(f"openapi:{api}/openapi.json", 'headers={"Authorization": "Bearer ${COUNTER_TOKEN}"}') as env:
        env.reset()
        step = env.call_tool("add", {"name": "none", "by": 1})
        assert step.info["status"] == {"code": "agent_error", "retryable": False, "stage": "tool"}
        assert step.error.message == 'HTTP 404 Not Found: {"detail":"no counter is named none; see /counters"}'
    with made(f"openapi:{api}/openapi.json") as env:  # credentials are the operator's
        env.reset()
        assert env.call_tool("add", {"name": "a", "by": 1}).info["status"]["code"] == "env_error"


OF_THE_OPERATOR = (401, 403, 407, 408, 425, 429)


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    """An API that answers with the status in its path."""

    async def refuse(request: Request) -> JSONResponse:
        return JSONResponse({"detail": f"the reason {request.path_params['status']}"}, request.path_params["status"])

    with served_by(Starlette(routes=[Route("/status/{status:int}", refuse)])) as url:
        yield url


@pytest.mark.parametrize("status", [each for each in range(400, 452) if each not in OF_THE_OPERATOR])
def test_every_other_4xx_is_the_agents_error_with_the_apis_text(refusing: str, tmp_path: Path, status: int) -> None:
    step = refused(refusing, tmp_path, status)
    assert step.info["status"] == {"code": "agent_error", "retryable": False, "stage": "tool"}
    assert step.error.message.startswith(f"HTTP {status}")
    assert step.error.message.endswith(f': {{"detail":"the reason {status}"}}')


@pytest.mark.parametrize("status", [*OF_THE_OPERATOR, 500, 501, 502, 503, 504])
def test_what_the_operator_is_refused_and_5xx_are_errors_of_the_environment(
    refusing: str, tmp_path: Path, status: int
) -> None:
    assert refused(refusing, tmp_path, status).info["status"]["code"] == "env_error"


def refused(url: str, folder: Path, status: int) -> Any:
    """Return the step of a call that an API answers with a status."""
    number = {"name": "status", "in": "path", "required": True, "schema": {"type": "integer"}}
    place = stored(folder, {"/status/{status}": operation("ask", {"type": "object"}, parameters=[number])})
    with made(place, f"base_url={url}") as env:
        env.reset()
        return env.call_tool("ask", {"status": status})


def test_an_argument_that_is_missing_is_invalid_and_reaches_no_api(tmp_path: Path) -> None:
    item = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    place = stored(tmp_path, {"/items/{id}": operation("item", {"type": "object"}, parameters=[item])})
    with made(place, AWAY) as env:
        env.reset()
        error = env.call_tool("item").error
    assert error.error_type is ToolErrorType.INVALID_ARGS and "id" in error.message


def nullable(version: str, schema: Any) -> str:
    answer = {"200": {"description": "ok", "content": {"application/json": {"schema": schema}}}}
    path = {"get": {"operationId": "get", "responses": answer}}
    return json.dumps({"openapi": version, "info": {"title": "T", "version": "1"}, "paths": {"/x": path}})


def test_a_document_of_3_0_with_schemas_of_3_1_is_read_as_3_1(tmp_path: Path) -> None:
    (tmp_path / "api.json").write_text(nullable("3.0.3", {"anyOf": [{"type": "string"}, {"type": "null"}]}))
    with made(f"openapi:{tmp_path}/api.json", "base_url=http://127.0.0.1:1") as env:
        assert [tool.name for tool in env.list_tools()] == ["get"]


def test_a_document_that_cannot_be_used_is_refused_by_its_first_fault_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "api.json").write_text(nullable("3.0.3", {"type": ["no", "type"], "properties": 3}))
    with pytest.raises(TargetError, match="the document cannot be used: paths") as raised:
        made(f"openapi:{tmp_path}/api.json", "base_url=http://127.0.0.1:1")
    assert len(str(raised.value)) < 700 and "\n" not in str(raised.value)


def operation(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    answer = {"200": {"description": "ok", "content": {"application/json": {"schema": schema}}}}
    return {"get": {"operationId": name, "responses": answer, **more}}


def stored(folder: Path, paths: dict[str, Any], **more: Any) -> str:
    document = {"openapi": "3.1.0", "info": {"title": "T", "version": "1"}, "paths": paths, **more}
    (folder / "api.json").write_text(json.dumps(document))
    return f"openapi:{folder}/api.json"


AWAY = "base_url=http://127.0.0.1:1"


def test_an_operation_with_a_fault_is_left_out_by_name_and_a_bad_shared_schema_takes_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = {
        "/good": operation("good", {"$ref": "#/components/schemas/Bad"}),
        "/bad": operation("bad", {"properties": 3}),
    }
    target = stored(tmp_path, paths, components={"schemas": {"Bad": {"properties": 3}}})
    with made(target, AWAY) as env:
        assert [tool.name for tool in env.list_tools()] == ["good"]
    assert "left out: " in caplog.text and "GET /bad" in caplog.text and "the schema Bad" in caplog.text


def test_operations_are_chosen_by_id_tag_or_path(tmp_path: Path) -> None:
    paths = {f"/{name}": operation(name, {}, tags=[f"of_{name}"]) for name in ("a", "b", "c", "d")}
    target = stored(tmp_path, paths)
    with made(target, AWAY, 'operations=["a", "of_b", "GET /c"]') as env:
        assert sorted(tool.name for tool in env.list_tools()) == ["a", "b", "c"]
    with pytest.raises(TargetError, match="no operation has the operationId or tag 'nothing'"):
        made(target, AWAY, 'operations=["a", "nothing"]')


def test_a_document_is_read_once_and_not_for_each_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {f"/{n}": operation(f"tool_{n}", {}) for n in range(50)}
    target = load_target(stored(tmp_path, paths), [AWAY])
    (tmp_path / "api.json").unlink()
    monkeypatch.setattr("mcpenv.extensions.openapi.environment.OpenAPIProvider", None)
    monkeypatch.setattr("fastmcp.FastMCP.add_tool", None)  # compares each tool with all others
    with target.make() as one, target.make() as other:
        assert len(one.list_tools()) == len(other.list_tools()) == 50
    with pytest.raises(ContractViolation) as broken:  # nothing answers there
        check_environment(target.make)
    report = broken.value.report
    assert report is not None and report["sharing"].verdict is Verdict.OK


def test_a_document_may_have_several_files_with_schemas_that_contain_themselves(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    tree = {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#/Tree"}}}
    (tmp_path / "parts" / "models.yaml").write_text(yaml.safe_dump({"Tree": tree}))
    body = {"content": {"application/json": {"schema": {"$ref": "models.yaml#/Tree"}}}}
    path = {"post": {"operationId": "grow", "requestBody": body, "responses": {"200": {"description": "ok"}}}}
    (tmp_path / "parts" / "grow.yaml").write_text(yaml.safe_dump(path))
    with made(stored(tmp_path, {"/grow": {"$ref": "parts/grow.yaml"}}), AWAY) as env:
        (tool,) = env.list_tools()
        assert tool.name == "grow" and set(tool.input_schema["properties"]) == {"name", "next"}


@pytest.mark.parametrize(
    ("reference", "said"),
    [("../elsewhere.yaml", "which is not beside it"), ("gone.yaml", "file .*gone.yaml cannot be read")],
)
def test_a_file_that_is_elsewhere_or_missing_is_refused(tmp_path: Path, reference: str, said: str) -> None:
    (tmp_path / "elsewhere.yaml").write_text("{}")
    (tmp_path / "inner").mkdir()
    with pytest.raises(TargetError, match=said):
        made(stored(tmp_path / "inner", {"/x": {"$ref": reference}}), AWAY)


def test_an_uploaded_file_has_a_name_and_its_bytes(tmp_path: Path) -> None:
    bodies: list[Any] = []

    async def upload(request: Request) -> JSONResponse:
        form = await request.form()
        file: Any = form["file"]
        bodies.append((file.filename, await file.read(), form["note"]))
        return JSONResponse({})

    properties = {"file": {"type": "string", "format": "binary"}, "note": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["file"]}
    body = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    path = {"post": {"operationId": "upload", "requestBody": body, "responses": {"200": {"description": "ok"}}}}
    target = stored(tmp_path, {"/files": path})
    app = Starlette(routes=[Route("/files", upload, methods=["POST"])])
    with served_by(app) as url, made(target, f"base_url={url}") as env:
        env.reset()
        for file in ("text", {"filename": "a.bin", "base64": "/wA="}, {"text": "é"}):
            assert env.call_tool("upload", {"file": file, "note": "mine"}).error is None
        refused = env.call_tool("upload", {"file": {"base64": "*"}, "note": "mine"})
        assert refused.info["status"]["code"] == "agent_error"
    assert bodies == [("file", b"text", "mine"), ("a.bin", b"\xff\x00", "mine"), ("file", "é".encode(), "mine")]


def test_an_array_of_files_is_a_part_for_each(tmp_path: Path) -> None:
    bodies: list[Any] = []

    async def upload(request: Request) -> JSONResponse:
        form = await request.form()
        files: list[Any] = form.getlist("files")
        bodies.append(([(file.filename, await file.read()) for file in files], form.getlist("tags")))
        return JSONResponse({})

    one = {"type": "string", "format": "binary"}
    properties = {
        "files": {"type": "array", "maxItems": 3, "items": {"$ref": "#/components/schemas/File"}},
        "tags": {"type": "array", "items": {"type": "string"}},
    }
    body = {"content": {"multipart/form-data": {"schema": {"type": "object", "properties": properties}}}}
    path = {"post": {"operationId": "upload", "requestBody": body, "responses": {"200": {"description": "ok"}}}}
    target = stored(tmp_path, {"/files": path}, components={"schemas": {"File": one}})
    app = Starlette(routes=[Route("/files", upload, methods=["POST"])])
    with served_by(app) as url, made(target, f"base_url={url}") as env:
        (tool,) = env.list_tools()
        files = tool.input_schema["properties"]["files"]
        assert (files["type"], files["maxItems"]) == ("array", 3) and "base64" in str(files["items"])
        env.reset()
        for given in (["text", {"filename": "a.bin", "base64": "/wA="}], [{"text": "alone"}], "alone"):
            assert env.call_tool("upload", {"files": given, "tags": ["x", "y"]}).error is None
        assert env.call_tool("upload", {"files": ["a", {"base64": "*"}]}).info["status"]["code"] == "agent_error"
    assert bodies == [
        ([("files", b"text"), ("a.bin", b"\xff\x00")], ["x", "y"]),
        ([("files", b"alone")], ["x", "y"]),
        ([("files", b"alone")], ["x", "y"]),
    ]


def test_yaml_is_read_as_its_version_1_2_and_a_status_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "api.yaml").write_text(
        """\ufeff
openapi: 3.0.3
info: {title: Switches, version: 2024-01-02}
paths:
  /on:
    get:
      operationId: on
      parameters:
      - {name: "y", in: query, schema: {type: string, enum: [on, off, NO, =, 2024-01-02], example: yes}}
      - {name: "n", in: query, schema: {type: boolean, default: true}}
      responses:
        200: {description: ok}
        404: {description: not there}
"""
    )
    target = load_target(f"openapi:{tmp_path}/api.yaml", [AWAY])
    with target.make() as env:
        (tool,) = env.list_tools()
        assert tool.input_schema["properties"]["y"]["enum"] == ["on", "off", "NO", "=", "2024-01-02"]
        assert tool.input_schema["properties"]["n"]["default"] is True
        assert env.VERSION == "2024-01-02"


@contextmanager
def sending(folder: Path, paths: dict[str, Any], **more: Any) -> Iterator[tuple[Any, list[tuple[Any, bytes]]]]:
    """Serve an environment and its API, which answers ``{}``. Yields it and each request with its body."""
    seen: list[tuple[Any, bytes]] = []

    async def everything(request: Request) -> JSONResponse:
        seen.append((request, await request.body()))
        return JSONResponse({})

    app = Starlette(routes=[Route("/{path:path}", everything, methods=["GET", "POST"])])
    with served_by(app) as url, made(stored(folder, paths, **more), f"base_url={url}") as env:
        env.reset()
        yield env, seen


def with_body(kind: str, schema: Any, **more: Any) -> dict[str, Any]:
    """Return a path with an operation ``up``, whose body is of a media type."""
    body = {"content": {kind: {"schema": schema, **more}}}
    return {"/up": {"post": {"operationId": "up", "requestBody": body, "responses": {"200": {"description": "ok"}}}}}


def parts_of(request: Any, body: bytes) -> list[tuple[str, str | None, str | None, Any]]:
    """Return name, file name, content type and content of each part of a multipart body."""
    head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
    message = BytesParser(policy=HTTP).parsebytes(head + body)
    return [
        (
            str(part.get_param("name", header="content-disposition")),
            part.get_filename(),
            part["content-type"],
            part.get_payload(decode=True),
        )
        for part in message.iter_parts()
    ]


OBJECT = {"type": "object"}
OBJECTS = {"type": "array", "items": OBJECT}
PNG = {"contentType": "image/png"}
JSON = "application/json"


@pytest.mark.parametrize(
    ("schema", "value", "encoding", "sent"),
    [
        (OBJECT, {"a": 1, "b": None}, None, [(None, JSON, b'{"a": 1, "b": null}')]),
        ({}, {"a": 1}, None, [(None, JSON, b'{"a": 1}')]),
        (OBJECTS, [{"a": True}, {}], None, [(None, JSON, b'[{"a": true}, {}]')]),
        ({"type": "array"}, [[1], "x"], None, [(None, JSON, b'[[1], "x"]')]),
        (
            {"type": "array"},
            [1, True, None, "x"],
            None,
            [(None, None, each) for each in (b"1", b"true", b"null", b"x")],
        ),
        ({"type": "array"}, ["x", 1], {"explode": False}, [(None, None, b"x,1")]),
        ({"type": "array"}, [], None, []),
        ({"type": "boolean"}, False, None, [(None, None, b"false")]),
        ({"type": ["string", "null"]}, None, None, [(None, None, b"null")]),
        ({"type": "string"}, None, None, []),
        ({"type": "number"}, 1.5, None, [(None, None, b"1.5")]),
        ({"type": "string"}, "x", {"contentType": "text/csv"}, [(None, "text/csv", b"x")]),
        (OBJECT, {"a": 1}, {"contentType": "application/vnd.a+json"}, [(None, "application/vnd.a+json", b'{"a": 1}')]),
        ({"type": "string"}, "x", {"contentType": JSON}, [(None, JSON, b'"x"')]),
        ({}, {"base64": "/wA="}, PNG, [("value", "image/png", b"\xff\x00")]),
        ({"type": "string"}, "x", PNG, [("value", "image/png", b"x")]),
        ({"type": "array", "items": {}}, ["x", "y"], PNG, [("value", "image/png", b"x"), ("value", "image/png", b"y")]),
        (
            {"type": "string", "format": "binary"},
            {"filename": "a.jpg", "text": "x"},
            {"contentType": "image/png, image/*"},
            [("a.jpg", "image/jpeg", b"x")],
        ),
        ({"type": "string", "contentMediaType": "image/png"}, "x", None, [("value", "image/png", b"x")]),
    ],
)
def test_a_part_of_a_form_has_the_form_and_type_that_the_document_says(
    tmp_path: Path, schema: Any, value: Any, encoding: Any, sent: list[tuple[Any, ...]]
) -> None:
    whole = {"type": "object", "properties": {"value": schema, "note": {"type": "string"}}}
    paths = with_body("multipart/form-data", whole, encoding={"value": encoding} if encoding else {})
    with sending(tmp_path, paths) as (env, seen):
        assert env.call_tool("up", {"value": value, "note": "n"}).error is None
    found = parts_of(*seen[0])
    assert [each for name, *each in found if name == "value"] == list(map(list, sent))
    assert [each for name, *each in found if name != "value"] == [[None, None, b"n"]]


def test_the_parts_of_a_form_of_any_names_are_encoded_too(tmp_path: Path) -> None:
    with sending(tmp_path, with_body("multipart/form-data", OBJECT)) as (env, seen):
        assert env.call_tool("up", {"body": {"meta": {"a": 1}}}).error is None
    assert parts_of(*seen[0]) == [("meta", None, JSON, b'{"a": 1}')]


@pytest.mark.parametrize(
    ("schema", "value", "encoding", "sent"),
    [
        (OBJECT, {"a": 1}, {}, [("value", '{"a": 1}')]),
        ({}, {"a": None}, {}, [("value", '{"a": null}')]),
        ({"type": "array"}, [{"a": 1}], {}, [("value", '[{"a": 1}]')]),
        ({"type": "array"}, [1, True, None], {}, [("value", "1"), ("value", "true"), ("value", "null")]),
        ({"type": "array"}, ["x", 1], {"explode": False}, [("value", "x,1")]),
        (OBJECT, {"a": 1}, {"contentType": JSON}, [("value", '{"a": 1}')]),
        (
            OBJECT,
            {"a": {"b": [1, {"c": False}]}},
            {"style": "deepObject", "explode": True},
            [("value[a][b][0]", "1"), ("value[a][b][1][c]", "false")],
        ),
    ],
)
def test_a_field_of_an_urlencoded_form_is_never_pythons_text(
    tmp_path: Path, schema: Any, value: Any, encoding: Any, sent: list[tuple[str, str]]
) -> None:
    whole = {"type": "object", "properties": {"value": schema, "note": {"type": "string"}}}
    paths = with_body("application/x-www-form-urlencoded", whole, encoding={"value": encoding})
    with sending(tmp_path, paths) as (env, seen):
        assert env.call_tool("up", {"value": value, "note": "n"}).error is None
    assert parse_qsl(seen[0][1].decode()) == [*sent, ("note", "n")]


@pytest.mark.parametrize(
    ("kind", "value", "encoding"),
    [
        ("multipart/form-data", {"value": {"a": 1}}, {"contentType": "application/xml"}),
        ("application/x-www-form-urlencoded", {"value": {"a": 1}}, {"contentType": "application/xml"}),
    ],
)
def test_an_object_that_is_no_json_is_the_agents_error(tmp_path: Path, kind: str, value: Any, encoding: Any) -> None:
    paths = with_body(kind, {"type": "object", "properties": {"value": {}}}, encoding={"value": encoding})
    with sending(tmp_path, paths) as (env, seen):
        step = env.call_tool("up", value)
    assert (step.info["status"]["code"], seen) == ("agent_error", [])
    assert "value can only be a text of application/xml" in step.error.message


@pytest.mark.parametrize(
    ("place", "more", "value", "sent"),
    [
        ("query", {"content": {JSON: {"schema": OBJECT}}}, {"a": [1]}, 'value={"a": [1]}'),
        ("query", {"content": {JSON: {"schema": {"type": "string"}}}}, "x", 'value="x"'),
        (
            "query",
            {"schema": OBJECT, "style": "deepObject", "explode": True},
            {"a": {"b": [True]}},
            "value[a][b][0]=true",
        ),
        ("query", {"schema": OBJECT}, {"a": {"b": 1}, "c": None}, 'a={"b": 1}&c=null'),
        ("query", {"schema": OBJECTS}, [{"a": 1}], 'value={"a": 1}'),
        ("query", {"schema": {"type": "array"}, "explode": False}, [{"a": 1}, None], 'value={"a": 1},null'),
        ("path", {"schema": OBJECT, "required": True}, {"a": {"b": 1}}, 'a,{"b": 1}'),
        ("path", {"content": {JSON: {"schema": OBJECT}}, "required": True}, {"a": 1}, '{"a": 1}'),
        ("header", {"schema": OBJECT}, {"a": {"b": 1}}, 'a,{"b": 1}'),
        ("header", {"content": {JSON: {"schema": OBJECT}}}, {"a": "é"}, '{"a": "\\u00e9"}'),
        ("cookie", {"schema": OBJECT}, {"a": 1}, "value=a,1"),
        ("cookie", {"schema": {"type": "array"}}, [1, True], "value=1,true"),
    ],
)
def test_a_parameter_is_never_pythons_text(tmp_path: Path, place: str, more: Any, value: Any, sent: str) -> None:
    shared = {"P": {"name": "value", "in": place, **more}}
    path = "/x/{value}" if place == "path" else "/x"
    found = operation("ask", OBJECT, parameters=[{"$ref": "#/components/parameters/P"}])
    with sending(tmp_path, {path: found}, components={"parameters": shared}) as (env, seen):
        assert env.call_tool("ask", {"value": value}).error is None
    [(request, _)] = seen
    got = {
        "query": unquote_plus(request.url.query),
        "path": request.path_params["path"].removeprefix("x/"),
        "header": request.headers.get("value"),
        "cookie": request.headers.get("cookie"),
    }
    assert got[place] == sent


@pytest.mark.parametrize(
    ("files", "schemas"),
    [
        ({"node": {"next": "node.yaml"}}, {"Node": {"$ref": "./node.yaml"}}),
        (
            {"node": {"leaf": "leaf.yaml"}, "leaf": {"node": "node.yaml"}},
            {"Node": {"$ref": "./node.yaml"}, "Leaf": {"$ref": "./leaf.yaml"}},
        ),
        ({"node": {"next": "node.yaml"}}, {"Node": {"$ref": "./node.yaml"}, "Same": {"$ref": "node.yaml"}}),
        ({"node": {"next": "node.yaml"}}, {"Node": {"allOf": [{"$ref": "./node.yaml"}]}}),
        ({"node": {"next": "node.yaml"}}, {"Node": {"$ref": "./node.yaml"}, "node_1": {"type": "integer"}}),
        (
            {"node": {"next": "node.yaml"}},
            {"Node": {"allOf": [{"$ref": "./node.yaml"}]}, "node_1": {"type": "integer"}},
        ),
    ],
)
@pytest.mark.parametrize("parts", [None, "schemas", "components"])
def test_shared_schemas_in_files_of_their_own_may_contain_themselves(
    tmp_path: Path, files: dict[str, dict[str, str]], schemas: Any, parts: str | None
) -> None:
    for name, properties in files.items():
        inner = {"name": {"type": "string"}, **{each: {"$ref": file} for each, file in properties.items()}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"type": "object", "properties": inner}))
    components: Any = {"schemas": schemas}
    if parts is not None:
        (tmp_path / "parts.yaml").write_text(yaml.safe_dump(components))
        components = {"schemas": {"$ref": "parts.yaml#/schemas"}} if parts == "schemas" else {"$ref": "parts.yaml"}
    place = stored(tmp_path, with_body(JSON, {"$ref": "#/components/schemas/Node"}), components=components)
    target = load_target(place, [AWAY])
    with target.make() as env:
        (tool,) = env.list_tools()
        if parts is None and "node_1" in schemas:
            assert env.document["components"]["schemas"]["node_1"] == {"type": "integer"}
    assert "name" in (tool.input_schema.get("properties") or {}) or '"name"' in json.dumps(tool.input_schema)


WRONG = {"type": "strin"}


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
@pytest.mark.parametrize(
    ("kind", "component", "uses"),
    [
        ("parameters", {"name": "p", "in": "query", "schema": WRONG}, {"parameters": [{"$ref": "here"}]}),
        (
            "responses",
            {"description": "", "content": {JSON: {"schema": WRONG}}},
            {"responses": {"200": {"$ref": "here"}}},
        ),
        ("requestBodies", {"content": {JSON: {"schema": WRONG}}}, {"requestBody": {"$ref": "here"}}),
        ("headers", {"schema": WRONG}, {"responses": {"200": {"description": "", "headers": {"H": {"$ref": "here"}}}}}),
    ],
)
def test_a_fault_in_a_component_leaves_out_the_operations_that_refer_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str, kind: str, component: Any, uses: dict[str, Any]
) -> None:
    name = f"#/components/{kind}/Wrong"
    answers = {"responses": {"200": {"description": "ok"}}}
    user = json.loads(json.dumps({"operationId": "user", **answers, **uses}).replace('"here"', f'"{name}"'))
    other = {"$ref": "#/components/responses/Other"}
    paths = {
        "/good": operation("good", OBJECT),
        "/user": {"post": user, "get": operation("kept", OBJECT)["get"]},
        "/through": {"get": {"operationId": "through", "responses": {"200": other}}},
    }
    links = {"Other": {"description": "", "headers": {"X": {"$ref": name}}}} if kind == "headers" else {}
    components: dict[str, Any] = {"responses": links}
    if kind != "headers":
        del paths["/through"]
    components.setdefault(kind, {})["Wrong"] = component
    with made(stored(tmp_path, paths, components=components, openapi=version), AWAY) as env:
        assert {tool.name for tool in env.list_tools()} == {"good", "kept"}
    assert f"components.{kind}.Wrong" in caplog.text and "POST /user" in caplog.text
    assert ("GET /through" in caplog.text) == (kind == "headers")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"info": {"title": "T", "version": 1.0}}, None),
        ({"info": {"title": "T", "version": "1", "license": {"url": "x"}}}, "info.license"),
        ({"info": {"title": "T", "version": "1", "description": 3}}, "info.description"),
        ({"tags": [{"description": "no name"}]}, "tags"),
        ({"externalDocs": {}}, "externalDocs"),
        ({"webhooks": {"a": 3}}, "webhooks"),
        ({"security": 3}, "security"),
        ({"components": {"securitySchemes": {"S": {}}}}, "components.securitySchemes.S"),
    ],
)
def test_a_fault_beside_the_operations_leaves_out_no_operation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: dict[str, Any], said: str | None
) -> None:
    with made(stored(tmp_path, {"/good": operation("good", OBJECT)}, **more), AWAY) as env:
        assert [tool.name for tool in env.list_tools()] == ["good"]
        assert isinstance(env.document["info"]["version"], str)
    assert ("left out: " in caplog.text) == (said is not None) and (said or "") in caplog.text


NO_PATHS = "openapi: 3.1.0\ninfo: {title: T, version: '1'}\n"
GOOD = "paths: {/x: {get: {operationId: good, responses: {200: {description: ok}}}}}\n"
HEAD = NO_PATHS + GOOD


@pytest.mark.parametrize("settings", [(), ('operations=["good"]',)])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD.replace("3.1.0", "3.1"), None),
        (HEAD.replace("3.1.0", "3.0"), None),
        (HEAD + "components: {parameters: , schemas: {Bad: {properties: 3}}}", None),
        (HEAD + "components: ", None),
        (HEAD + "components: [a]", "components is not an object"),
        (HEAD + "components: {schemas: [a]}", "components.schemas is not an object"),
        (HEAD.replace("operationId", "tags: , operationId"), None),
        (HEAD.replace("paths: {", "paths: {/null: , x-any: 3, /wrong: 3, /wrong2: {get: 3}, "), None),
        (HEAD + "servers: ['http://127.0.0.1:1']", None),
        (HEAD + "servers: {url: 'http://127.0.0.1:1'}", None),
        (HEAD + "servers: [3]", "servers is not a list of objects with a url"),
        (HEAD.replace("{title: T, version: '1'}", ""), None),
        (HEAD.replace("{title: T, version: '1'}", "[a]"), "info is not an object"),
        (NO_PATHS + "paths: ", "no operation"),
        (NO_PATHS + "paths: {}", "no operation"),
        (NO_PATHS + "paths: {/x: {parameters: []}}", "no operation"),
        (NO_PATHS + "paths: [a]", "paths is not an object"),
    ],
)
def test_a_malformed_document_is_repaired_or_refused_by_the_place(
    tmp_path: Path, text: str, said: str | None, settings: tuple[str, ...]
) -> None:
    (tmp_path / "api.yaml").write_text(text)
    if said is None:
        with made(f"openapi:{tmp_path}/api.yaml", AWAY, *settings) as env:
            assert [tool.name for tool in env.list_tools()] == ["good"]
    else:
        with pytest.raises(TargetError, match=said):
            made(f"openapi:{tmp_path}/api.yaml", AWAY, *settings)


def test_an_unknown_argument_is_invalid_and_reaches_no_api(tmp_path: Path) -> None:
    limit = {"name": "limit", "in": "query", "schema": {"type": "integer"}}
    with sending(tmp_path, {"/items": operation("items", OBJECT, parameters=[limit])}) as (env, seen):
        error = env.call_tool("items", {"limt": 5}).error
        assert env.call_tool("items", {"limit": 5}).error is None
    assert error.error_type is ToolErrorType.INVALID_ARGS and "limt" in error.message
    assert [request.url.query for request, _ in seen] == ["limit=5"]


@pytest.mark.parametrize(
    ("kind", "content", "block", "structured"),
    [
        ("text/plain; charset=iso-8859-1", "é".encode("latin-1"), {"type": "text", "text": "é"}, None),
        ("application/json; charset=iso-8859-1", b'{"a": "\xe9"}', None, {"a": "é"}),
        ("image/png", b"\x89PNG", {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}, None),
        ("audio/wav", b"\xff", {"type": "audio", "data": "/w==", "mimeType": "audio/wav"}, None),
        ("application/pdf", b"%PDF\xff", {"type": "resource"}, None),
        ("text/plain; charset=utf-8", b"\xff", {"type": "resource"}, None),
        ("text/plain; charset=none", b"\xff", {"type": "resource"}, None),
    ],
)
@pytest.mark.parametrize("declared", [True, False])
def test_an_answer_that_is_not_utf_8_is_read_by_its_charset_or_is_base64(
    tmp_path: Path, kind: str, content: bytes, block: Any, structured: Any, declared: bool
) -> None:
    async def answer(request: Request) -> Response:
        return Response(content, headers={"content-type": kind})

    media = kind.partition(";")[0]
    schema = OBJECT if media == JSON else {"type": "string"}
    said = {"200": {"description": "", **({"content": {media: {"schema": schema}}} if declared else {})}}
    paths = {"/x": {"get": {"operationId": "get", "responses": said}}}
    with served_by(Starlette(routes=[Route("/x", answer)])) as url:
        with made(stored(tmp_path, paths), f"base_url={url}") as env:
            env.reset()
            step = env.call_tool("get")
    assert step.error is None
    if block is None:
        assert step.result.structured_content == structured
    else:
        (found,) = step.result.content
        assert block.items() <= found.items()
        if block["type"] == "resource":
            assert found["resource"]["blob"] == b64encode(content).decode()


@pytest.mark.parametrize(
    ("content", "used"),
    [
        ({"application/xml": {"schema": OBJECT}}, None),
        ({"multipart/mixed": {"schema": {"properties": {"a": {}}}}}, None),
        ({"application/xml": {"schema": OBJECT}, JSON: {"schema": OBJECT}}, JSON),
        ({"text/plain": {"schema": {"type": "string"}}, JSON: {"schema": OBJECT}}, "text/plain"),
        ({"application/xml": {"schema": {"type": "string"}}}, "application/xml"),
        ({"*/*": {"schema": OBJECT}}, JSON),
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_an_operation_whose_body_has_no_form_is_left_out_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: Any, used: str | None, shared: bool
) -> None:
    paths: Any = {**with_body(JSON, OBJECT), "/x": operation("other", OBJECT)}
    paths["/up"]["post"]["requestBody"] = {"$ref": "#/components/requestBodies/B"} if shared else {"content": content}
    with sending(tmp_path, paths, components={"requestBodies": {"B": {"content": content}}}) as (env, seen):
        assert {tool.name for tool in env.list_tools()} == ({"other"} if used is None else {"other", "up"})
        if used is not None:
            text = used != JSON
            assert env.call_tool("up", {"body": "<a/>" if text else {"a": 1}}).error is None
            assert (seen[0][0].headers["content-type"], seen[0][1]) == (used, b"<a/>" if text else b'{"a":1}')
    assert ("POST /up" in caplog.text) == (used is None)
