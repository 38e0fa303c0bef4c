"""One MCP client over stdin and stdout, on which nothing but MCP is written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any

import anyio
from fastmcp.server.context import reset_transport, set_transport
from mcp.server.stdio import stdio_server
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, jsonrpc_message_adapter
from pydantic import ValidationError

from mcpenv import MCPEnvironment, tracing
from mcpenv.server.app import EnvServer
from mcpenv.server.config import LogFormat, ServerConfig
from mcpenv.server.serve import configure_process
from mcpenv.server.uvicorn_server import at_ending_signals, loop_factory
from mcpenv_client.types.values import MAX_PARTS, excess_parts


@dataclass(frozen=True)
class Wire:
    """The descriptors of the process's original stdin and stdout."""

    stdin: int
    stdout: int


@contextlib.contextmanager
def claimed() -> Iterator[Wire]:
    """Take stdin and stdout for the protocol, for the rest of the process.

    All other code, and its child processes, read an empty stdin and write to stderr instead of stdout. Enter it before
    user code is imported. The descriptors are not given back: code that runs at exit may print, too.
    """
    sys.stdout.flush()
    wire = Wire(os.dup(0), os.dup(1))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        yield wire


def serve_stdio(
    env_factory: Callable[[], MCPEnvironment],
    config: ServerConfig,
    *,
    log_level: str = "info",
    log_format: LogFormat = "text",
    access_log: bool = True,
    wire: Wire | None = None,
) -> None:
    """Serve one MCP client over stdin and stdout until it closes them.

    Args:
        wire: from `claimed`; by default they are claimed here.

    Raises:
        StartupError: the environment does not start.
    """
    configure_process(log_level, log_format, access_log)
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(claimed()) if wire is None else wire
        server = EnvServer(env_factory, config=config)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            if runner.run(_serve(server, wire)):
                # A thread waits for the next line of stdin and cannot be stopped; everything else has ended.
                tracing.flush()
                os._exit(0)


async def _serve(server: EnvServer, wire: Wire) -> bool:
    """Serve until stdin ends (False) or a signal comes (True)."""
    stopped = asyncio.Event()
    async with server.running(http=False):
        serving = asyncio.ensure_future(_answer(server, wire))
        stopping = asyncio.ensure_future(stopped.wait())
        with at_ending_signals(lambda _: stopped.set()):
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            stopping.cancel()
            serving.result()
    return stopped.is_set()


async def _answer(server: EnvServer, wire: Wire) -> None:
    """Do what `FastMCP.run_stdio_async` does, at the wire's descriptors."""
    agents = server.agent_server
    stdout, app = _Lines(wire), agents.http_app()
    token = set_transport("stdio")
    try:
        async with app.lifespan(app), stdio_server(stdin=stdout, stdout=stdout) as streams:  # type: ignore[arg-type]
            low_level = agents._mcp_server
            await low_level.run(streams[0], streams[1], low_level.create_initialization_options())
    finally:
        reset_transport(token)


class _Lines:
    """The lines from and to the client, as the asynchronous file that MCP's transport reads and writes.

    Lines that are no message are answered here: the transport drops them, and their client would wait for ever.
    """

    def __init__(self, wire: Wire) -> None:
        # A thread may still read when the process ends, so the descriptors are never closed.
        self._stdin = anyio.wrap_file(
            TextIOWrapper(os.fdopen(wire.stdin, "rb", closefd=False), encoding="utf-8", errors="replace")
        )
        self._stdout = anyio.wrap_file(
            TextIOWrapper(os.fdopen(wire.stdout, "wb", closefd=False), encoding="utf-8", newline="\n")
        )
        self._writing = anyio.Lock()

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self._stdin:
            refusal = refusal_of(line)
            if refusal is None:
                yield line
            elif refusal:
                await self.write(refusal + "\n")

    async def write(self, text: str) -> None:
        """Write a whole line."""
        async with self._writing:
            await self._stdout.write(text)
            await self._stdout.flush()

    async def flush(self) -> None:
        """Do nothing: `write` has flushed."""


def refusal_of(line: str) -> str | None:
    """Return the answer to a line that is no JSON-RPC message, "" for a blank one, and None for a message.

    The answer has the id of the request if it can be read, although its text is no JSON for MCP, such as half an emoji.
    """
    if not line.strip():
        return ""
    excess = excess_parts(line.encode())
    try:
        if not excess:
            jsonrpc_message_adapter.validate_json(line, by_name=False)
            return None
        code, message = INVALID_PARAMS, f"the request has {excess} lists, objects and commas, more than {MAX_PARTS}"
    except ValidationError as error:
        is_json = error.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid"
        code, message = (INVALID_REQUEST, "Invalid request") if is_json else (PARSE_ERROR, "Parse error")
    return json.dumps({"jsonrpc": "2.0", "id": _id_in(line), "error": {"code": code, "message": message}})


def _id_in(line: str) -> str | int | None:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = value.get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None
