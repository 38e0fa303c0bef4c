"""The seven planes, each behind one small face, so that one test body runs over all of them."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import fastmcp
import httpx
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from starlette.testclient import TestClient

from mcpenv import MCPEnvironment, Mode
from mcpenv.server.app import create_app
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import CallToolAction, EnvClient, EpisodeDone, ListToolsAction, Tool, ToolErrorType
from mcpenv_client.errors import from_wire
from mcpenv_client.wire.protocol import encode_action

HERE = Path(__file__).parent
OVER = "The episode is over."


@dataclass
class Outcome:
    """The outcome of a call on any plane; fields that a plane does not have are None."""

    text: str
    content: list[dict[str, Any]]
    data: Any = None
    failed: bool = False
    error_type: ToolErrorType | None = None
    reward: float | None = None
    done: bool | None = None
    info: dict[str, Any] = field(default_factory=dict)


class Plane(Protocol):
    """One way to use an environment."""

    def list(self) -> list[Tool]: ...

    def call(self, name: str, arguments: dict[str, Any] | None = None) -> Outcome: ...

    def reset(self, **options: Any) -> None: ...


CONTROL = ("process", "ws-asgi", "ws-uvicorn", "http")
AGENT = ("mcp-handshake", "mcp-2026", "stdio")
ALL = (*CONTROL, *AGENT)


def of_observation(observation: dict[str, Any], data: dict[str, Any]) -> Outcome:
    result, error = observation["result"], observation["error"]
    if error is not None:
        kind = ToolErrorType(error["error_type"])
        outcome = Outcome(error["message"], [], failed=True, error_type=kind)
    else:
        text = "\n".join(b["text"] for b in result["content"] if b["type"] == "text")
        outcome = Outcome(text, result["content"], result["data"], result["is_error"])
    outcome.reward, outcome.done, outcome.info = data["reward"], data["done"], data.get("info", {})
    return outcome


class InProcess:
    def __init__(self, factory: Callable[[], MCPEnvironment], mode: Mode) -> None:
        self.env = factory()
        self.env._execution.mode = mode
        self.env.reset()

    def list(self) -> list[Tool]:
        return self.env.list_tools()

    def call(self, name: str, arguments: dict[str, Any] | None = None) -> Outcome:
        observation = self.env.step(CallToolAction(tool_name=name, arguments=arguments or {}))
        dumped = observation.model_dump(mode="json")
        return of_observation(dumped, dumped)

    def reset(self, **options: Any) -> None:
        self.env.reset(**options)


class SocketInMemory:
    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def _exchange(self, frame: dict[str, Any]) -> dict[str, Any]:
        self._socket.send_json(frame)
        reply = self._socket.receive_json()
        if reply["type"] == "error":
            raise from_wire(reply["data"])
        data: dict[str, Any] = reply["data"]
        return data

    def list(self) -> list[Tool]:
        data = self._exchange({"type": "step", "data": encode_action(ListToolsAction())})
        return [Tool.model_validate(tool) for tool in data["observation"]["tools"]]

    def call(self, name: str, arguments: dict[str, Any] | None = None) -> Outcome:
        action = {"type": "call_tool", "tool_name": name, "arguments": arguments or {}}
        data = self._exchange({"type": "step", "data": action})
        return of_observation(data["observation"], data)

    def reset(self, **options: Any) -> None:
        self._exchange({"type": "reset", "data": options})


class Socket:
    def __init__(self, client: Any) -> None:
        self._client = client

    def list(self) -> list[Tool]:
        tools: list[Tool] = self._client.list_tools()
        return tools

    def call(self, name: str, arguments: dict[str, Any] | None = None) -> Outcome:
        result = self._client.call_tool(name, arguments)
        dumped = result.observation.model_dump(mode="json")
        return of_observation(dumped, dumped)

    def reset(self, **options: Any) -> None:
        self._client.reset(**options)


class Http:
    def __init__(self, base_url: str) -> None:
        self._http = httpx.Client(base_url=base_url, timeout=30)
        self._session_id = self._post("/reset", {})["session_id"]

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self._http.post(path, json=body)
        data: dict[str, Any] = response.json()
        if response.is_error:
            raise from_wire(data)
        return data

    def list(self) -> list[Tool]:
        data = self._post("/step", {"action": {"type": "list_tools"}, "session_id": self._session_id})
        return [Tool.model_validate(tool) for tool in data["observation"]["tools"]]

    def call(self, name: str, arguments: dict[str, Any] | None = None) -> Outcome:
        action = {"type": "call_tool", "tool_name": name, "arguments": arguments or {}}
        data = self._post("/step", {"action": action, "session_id": self._session_id})
        return of_observation(data["observation"], data)

    def reset(self, **options: Any) -> None:
        self._post("/reset", {**options, "session_id": self._session_id})


class Loop:
    """An event loop in a thread, for clients that are asynchronous only."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Agent:
    """An MCP client, FastMCP's."""

    def __init__(self, client: fastmcp.Client[Any], loop: Loop) -> None:
        self.client = client
        self.loop = loop
        self.logs: list[str] = []

    def list(self) -> list[Tool]:
        listed = self.loop.run(self.client.list_tools())
        tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed]
        return [
            Tool(
                name=tool["name"],
                title=tool.get("title"),
                description=tool.get("description", ""),
                input_schema=tool["inputSchema"],
                output_schema=tool.get("outputSchema"),
                annotations=tool.get("annotations"),
                meta=tool.get("_meta"),
            )
            for tool in tools
        ]

    def call(self, name: str, arguments: dict[str, Any] | None = None) -> Outcome:
        try:
            result = self.loop.run(self.client.call_tool(name, arguments or {}))
        except ToolError as error:
            return Outcome(str(error), [], failed=True)
        except MCPError as error:
            kind = ToolErrorType.TOOL_NOT_FOUND if error.error.code == -32602 else None
            return Outcome(str(error), [], failed=True, error_type=kind)
        content = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
        text = "\n".join(block["text"] for block in content if block["type"] == "text")
        structured = result.structured_content
        wrapped = ((result.meta or {}).get("fastmcp") or {}).get("wrap_result")
        return Outcome(text, content, structured["result"] if wrapped else structured, result.is_error)

    def reset(self, **options: Any) -> None:
        raise NotImplementedError("the agent plane has no reset")


@contextmanager
def opened(name: str, factory: Callable[[], MCPEnvironment], mode: Mode) -> Iterator[Plane]:
    """The plane of that name, with an environment behind it."""
    config = ServerConfig(mode=mode)
    if name == "process":
        plane = InProcess(factory, mode)
        try:
            yield plane
        finally:
            plane.env.close()
    elif name == "ws-asgi":
        with TestClient(create_app(factory, config=config)) as app, app.websocket_connect("/ws") as socket:
            yield SocketInMemory(socket)
    elif name == "ws-uvicorn":
        with serving(factory, config) as url, EnvClient[Any, Any, Any](url).sync() as client:
            yield Socket(client)
    elif name == "http":
        with serving(factory, config) as url:
            yield Http(url)
    elif name == "stdio":
        yield from _stdio(factory, mode)
    else:
        era = "legacy" if name == "mcp-handshake" else "2026-07-28"
        with serving(factory, config) as url:
            yield from _agent(fastmcp.Client(f"{url}/mcp", mode=era))


def _stdio(factory: Any, mode: Mode) -> Iterator[Plane]:
    script = str(HERE / "stdio_server.py")
    options = {"settings": factory.keywords} if hasattr(factory, "keywords") else {}
    cls = getattr(factory, "func", factory)
    arguments = [script, cls.__name__, mode.value, repr(options.get("settings", {}))]
    yield from _agent(fastmcp.Client(StdioTransport(sys.executable, arguments, keep_alive=False)))


def _agent(client: fastmcp.Client[Any]) -> Iterator[Plane]:
    loop = Loop()
    try:
        loop.run(client.__aenter__())  # type: ignore[no-untyped-call]
        try:
            yield Agent(client, loop)
        finally:
            loop.run(client.__aexit__(None, None, None))  # type: ignore[no-untyped-call]
    finally:
        loop.close()


__all__ = ["AGENT", "ALL", "CONTROL", "OVER", "EpisodeDone", "Outcome", "Plane", "opened"]
