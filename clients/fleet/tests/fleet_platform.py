"""A stand-in for the platform: its HTTP API as the SDK asks for it, instances with real FastMCP servers, and faults.

Verifiers run in a process of their own, as they do on the platform.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.http import StarletteWithLifespan
from fastmcp.tools.base import ToolResult
from mcp_types import ImageContent, TextContent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

KEY = "sk-fleet-secret"
PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63fccff0bf1e0006"
    )
).decode()

API, MCP = "api/v1/mcp", "mcp"


@dataclass
class Seen:
    """A request that the platform got."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]

    @property
    def what(self) -> str:
        """The request's name in `Platform.fail`: method and path, and for MCP the method of the message."""
        asked = self.body.get("method") if isinstance(self.body, dict) and self.path.endswith("/mcp") else None
        route = self.path.partition("/i/")[2].partition("/")[2] if "/i/" in self.path else self.path
        return f"{self.method} {route}" if asked is None else f"{route} {asked}"


@dataclass
class Fault:
    """What happens to the next requests of a kind, instead of an answer."""

    status: int | None = None
    body: Any = None
    times: int = 1
    before: bool = True
    hang: bool = False
    raw: str | None = None
    content_type: str = "text/html"


@dataclass
class Instance:
    """An instance with its data."""

    id: str
    request: dict[str, Any]
    tickets: list[str] = field(default_factory=lambda: ["first"])
    seed: int | None = None
    status: str = "running"
    calls: list[str] = field(default_factory=list)
    beats: int = 0
    apps: dict[str, ASGIApp] = field(default_factory=dict)


class Platform:
    """The platform. Tests read what it has seen, and say what fails.

    Attributes:
        instances: all that were made, by id.
        seen: all requests.
        endpoints: the endpoints that instances have.
        without_tools: endpoints that list nothing.
        verifier: the source of the verifier that the platform keeps as "kept".
        bundles: archives of verifiers by hash.
        executed: requests to run a verifier.
    """

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self.seen: list[Seen] = []
        self.endpoints: tuple[str, ...] = (API, MCP)
        self.without_tools: set[str] = set()
        self.kept_verifier = "def verify(env):\n    return 0.25\n"
        self.bundles: dict[str, str] = {}
        self.executed: list[dict[str, Any]] = []
        self.result: Any = None
        self.url = ""
        self._faults: dict[str, list[Fault]] = {}
        self._living: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()
        self._answered = threading.Condition()

    def fail(self, what: str, fault: Fault) -> None:
        """Let the next requests of a kind fail."""
        self._faults.setdefault(what, []).append(fault)

    def count(self, what: str) -> int:
        """Return how many requests of a kind came."""
        return sum(each.what == what for each in self.seen)

    @property
    def running(self) -> list[Instance]:
        """The instances that were not closed."""
        return [each for each in self.instances.values() if each.status == "running"]

    def wait_for_beats(self, number: int) -> None:
        """Wait until some instance has had so many heartbeats."""
        with self._answered:
            assert self._answered.wait_for(lambda: any(i.beats >= number for i in self.instances.values()), 30)

    def wait_until_none_runs(self) -> None:
        """Wait until every instance is closed."""
        with self._answered:
            assert self._answered.wait_for(lambda: not self.running, 30)

    # -- serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or let it fail."""
        if scope["type"] != "http":
            await self._api()(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        seen = Seen(scope["method"], scope["path"], _json(body), dict(request.headers))
        self.seen.append(seen)
        fault = self._fault(seen.what)
        if fault is not None and fault.before:
            await self._failed(fault, scope, receive, send)
        elif fault is not None:
            await self._app(scope)(scope, _replayed(body, receive), _nowhere)
            await self._failed(fault, scope, receive, send)
        else:
            await self._app(scope)(scope, _replayed(body, receive), send)
        with self._answered:
            self._answered.notify_all()

    def _fault(self, what: str) -> Fault | None:
        waiting = self._faults.get(what)
        if not waiting:
            return None
        waiting[0].times -= 1
        return waiting.pop(0) if waiting[0].times == 0 else waiting[0]

    async def _failed(self, fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
        if fault.hang:
            await self._ending.wait()
        if fault.raw is not None:
            await Response(fault.raw, fault.status or 200, media_type=fault.content_type)(scope, receive, send)
            return
        status = fault.status or 500
        body = {"detail": f"status {status}"} if fault.body is None else fault.body
        await JSONResponse(body, status)(scope, receive, send)

    def _app(self, scope: Scope) -> ASGIApp:
        """Return the app of an instance's endpoint, or that of the API."""
        _, found, rest = scope["path"].partition("/i/")
        identity, _, path = rest.partition("/")
        instance = self.instances.get(identity)
        if not found or (instance is not None and path not in (API, MCP)):
            return self._api()
        if scope["headers"] and (b"authorization", f"Bearer {KEY}".encode()) not in scope["headers"]:
            return JSONResponse({"detail": "who are you?"}, 401)
        if instance is None or instance.status != "running" or path not in instance.apps:
            return JSONResponse({"detail": "not found"}, 404)
        return instance.apps[path]

    def _api(self) -> ASGIApp:
        return Starlette(
            routes=[
                Route("/v1/env/instances", self._make, methods=["POST"]),
                Route("/v1/env/instances", self._list, methods=["GET"]),
                Route("/v1/env/instances/{id}", self._close, methods=["DELETE"]),
                Route("/v1/env/instances/{id}/heartbeat", self._beat, methods=["POST"]),
                Route("/v1/runner-auth/token", lambda _: JSONResponse({"token": "runner"}), methods=["GET"]),
                Route("/v1/verifiers/check", self._check, methods=["GET"]),
                Route("/v1/verifiers/execute", self._execute, methods=["POST"]),
                Route("/v1/verifiers/{id}", self._verifier, methods=["GET"]),
                Route("/i/{id}/api/v1/env/reset", self._reset, methods=["POST"]),
            ]
        )

    async def _make(self, request: Request) -> Response:
        asked = await request.json()
        if asked["env_key"] == "nowhere":
            return JSONResponse({"detail": "Environment 'nowhere' not found"}, 400)
        instance = Instance(f"i{len(self.instances)}", asked)
        for path in self.endpoints:
            server = FastMCP(path) if path in self.without_tools else SERVERS[path](instance)
            instance.apps[path] = await self._started(server.http_app(path=f"/i/{instance.id}/{path}"))
        self.instances[instance.id] = instance
        return JSONResponse(self._shown(instance))

    async def _started(self, app: StarletteWithLifespan) -> ASGIApp:
        """Return an app whose lifespan has begun. A task of its own leaves it, because only that may."""
        ready = asyncio.Event()

        async def live() -> None:
            async with app.lifespan(app):
                ready.set()
                await self._ending.wait()

        self._living.append(asyncio.create_task(live()))
        await ready.wait()
        return app

    async def _list(self, request: Request) -> Response:
        run_id = request.query_params["run_id"]
        return JSONResponse([self._shown(i) for i in self.instances.values() if i.request.get("run_id") == run_id])

    async def _close(self, request: Request) -> Response:
        instance = self.instances[request.path_params["id"]]
        instance.status = "stopped"
        return JSONResponse(self._shown(instance))

    async def _beat(self, request: Request) -> Response:
        instance = self.instances[request.path_params["id"]]
        instance.beats += 1
        return JSONResponse({"success": True, "instance_id": instance.id})

    async def _reset(self, request: Request) -> Response:
        instance = self.instances[request.path_params["id"]]
        if instance.status != "running":
            return JSONResponse({"detail": "not found"}, 404)
        if request.headers.get("x-runner-token") != "runner":
            return JSONResponse({"detail": "not found"}, 404)
        instance.seed = (await request.json())["seed"]
        instance.tickets[:] = ["first"] if instance.seed is None else [f"first of {instance.seed}"]
        return JSONResponse({"success": True, "message": "reset"})

    async def _check(self, request: Request) -> Response:
        return JSONResponse({"success": request.query_params["sha256"] in self.bundles})

    async def _verifier(self, request: Request) -> Response:
        return JSONResponse({"key": "kept", "code": self.kept_verifier})

    async def _execute(self, request: Request) -> Response:
        asked = await request.json()
        self.executed.append(asked)
        if "bundle" in asked:
            self.bundles[asked["sha256"]] = asked["bundle"]
        instance = self.instances[asked["args_array"][-1]["env"]]
        if self.result is not None:
            return JSONResponse(self.result)
        sent = json.dumps({**asked, "bundle": self.bundles[asked["sha256"]], "tickets": instance.tickets})
        ran = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("verifier_runtime.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        output, _ = await ran.communicate(sent.encode())
        return JSONResponse({"execution_time_ms": 1, **json.loads(output)})

    def _shown(self, instance: Instance) -> dict[str, Any]:
        root = f"{self.url}/i/{instance.id}/"
        manager = f"{root}api/v1/env"
        others = (
            "docs",
            "reset",
            "diff",
            "snapshot",
            "execute_verifier_function",
            "execute_verifier_function_with_upload",
        )
        return {
            "instance_id": instance.id,
            "env_key": instance.request["env_key"],
            "version": instance.request.get("env_version", "v1"),
            "status": instance.status,
            "subdomain": instance.id,
            "created_at": "",
            "updated_at": "",
            "team_id": "team",
            "region": "here",
            "data_key": instance.request.get("data_key"),
            "data_version": instance.request.get("data_version"),
            "run_id": instance.request.get("run_id"),
            "heartbeat_interval": instance.request.get("heartbeat_interval"),
            "urls": {"root": root, "app": [root], "manager": {"api": manager, **dict.fromkeys(others, manager)}},
        }

    def let_go(self) -> None:
        """Let requests that hang go on."""
        self._ending.set()

    async def end(self) -> None:
        """End the instances' servers."""
        self._ending.set()
        await asyncio.gather(*self._living)


def api_server(instance: Instance) -> FastMCP:
    """Return the server of tools that work on the data."""
    server = FastMCP("api")

    @server.tool
    def add_ticket(title: str) -> str:
        """Add a ticket."""
        instance.calls.append(title)
        instance.tickets.append(title)
        return f"added {title}"

    @server.tool(output_schema=None)
    def list_tickets() -> ToolResult:
        """Return the tickets as JSON text."""
        return ToolResult(content=[_text(json.dumps(instance.tickets))])

    @server.tool
    def shared() -> str:
        """A tool of both endpoints."""
        return "of api"

    @server.tool(output_schema=None)
    def answer(kind: str) -> ToolResult:
        """Answer with a kind of result."""
        if kind == "error":
            raise ToolError("there is no such ticket")
        if kind == "structured":
            return ToolResult(content=[_text("2 tickets")], structured_content={"count": 2})
        kinds: dict[str, list[Any]] = {
            "text": [_text("plain")],
            "json": [_text('{"count": 2}')],
            "texts": [_text("one"), _text("two")],
            "empty": [],
            "long": [_text("\n".join(f"line {n}: {'the ticket' if n == 777 else 'nothing'}" for n in range(1000)))],
        }
        return ToolResult(content=kinds[kind])

    return server


def mcp_server(instance: Instance) -> FastMCP:
    """Return the server of computer use."""
    server = FastMCP("mcp")

    @server.tool(output_schema=None)
    def computer(action: str) -> ToolResult:
        """Use the computer."""
        instance.calls.append(action)
        return ToolResult(content=[_text(action), ImageContent(type="image", data=PNG, mime_type="image/png")])

    @server.tool
    def shared() -> str:
        """A tool of both endpoints."""
        return "of mcp"

    return server


SERVERS = {API: api_server, MCP: mcp_server}


@contextmanager
def serving() -> Iterator[Platform]:
    """Serve a platform from a thread of its own."""
    platform = Platform()
    started = threading.Event()
    loop_of: list[Any] = []

    async def serve() -> None:
        config = uvicorn.Config(platform, port=0, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        config.load()
        door = socket.create_server(("127.0.0.1", 0))
        platform.url = f"http://127.0.0.1:{door.getsockname()[1]}"
        loop_of.extend((asyncio.get_running_loop(), server))
        started.set()
        await server.serve([door])
        await platform.end()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield platform
    finally:
        loop, server = loop_of
        loop.call_soon_threadsafe(platform.let_go)
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _replayed(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replay() -> Any:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _nowhere(message: Any) -> None:
    """Drop an answer."""
