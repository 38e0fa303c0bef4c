"""The commands ``mcpenv tasks serve`` and ``mcpenv tasks score``: one episode of one task, for other harnesses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from socket import AF_UNIX, create_server
from socket import socket as Socket
from typing import Annotated, Any

from cyclopts import Parameter

from mcpenv.cli.instance import instance
from mcpenv.cli.output import author_output, note, print_json, quiet_logs, report
from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.rewards.rubrics import worth_of
from mcpenv.server.security.host_check import is_loopback
from mcpenv.server.serve import address_of
from mcpenv.targets.target import load_target
from mcpenv_client.errors import McpenvError
from mcpenv_client.types.tools import Mode

FAILED = 1


def serve(
    target: str,
    task: str,
    /,
    *,
    socket: Path,
    port: int = 8000,
    host: str = "127.0.0.1",
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    tasks: Path | None = None,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Begin one episode of a task, and serve its tools to agents over MCP until the process is ended.

    The socket appears once agents can call tools. `mcpenv tasks score` ends the episode through the socket. Only this
    user can connect to it.

    Args:
        target: An environment as for run.
        task: The task's id.
        socket: Path of the Unix socket to make, for mcpenv tasks score.
        port: Port for agents; the address is http://HOST:PORT/mcp.
        host: Address to listen at.
        settings: name=value for the environment's constructor; may be given several times.
        tasks: Tasks to use instead of the environment's own: a .jsonl file, a .parquet file or a dataset's folder.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    if socket.exists():
        raise ConfigurationError(f"--socket {socket}: it exists")
    with author_output():
        loaded = load_target(target, settings or (), tasks)
        try:
            listening = create_server((host, port))
        except OSError as error:
            raise ConfigurationError(f"--port {port}: {error.strerror}") from error
        # The HTTP server repeats the signal that stopped it, which by default ends the process at once.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with listening, instance(loaded, Mode.SIMULATION) as env:
            try:
                asyncio.run(_serve(env, task, socket, listening))
            finally:
                socket.unlink(missing_ok=True)
    return 0


def score(
    socket: Path,
    /,
    *,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """End the episode that `mcpenv tasks serve` serves, and print its score and the parts of it as JSON.

    Exit status 0: it was scored. 1: it was not. 2: no episode is served there.

    Args:
        socket: The path given to mcpenv tasks serve.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    answer = _asked(socket)
    if "error" in answer:
        report(str(answer["error"]))
        return FAILED
    print_json(answer)
    return 0


def _asked(path: Path) -> dict[str, Any]:
    with Socket(AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError as error:
            raise ConfigurationError(f"{path}: no episode is served there: {error.strerror}") from error
        with connection.makefile("rb") as answer:
            found: dict[str, Any] = json.loads(answer.read())
    return found


async def _serve(env: MCPEnvironment, task: str, path: Path, listening: Socket) -> None:
    """Serve agents at a socket that already listens, so that they can connect at once."""
    await env.reset_async(task=task)
    ending = asyncio.Lock()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with ending:
            answered = await _ended(env)
        writer.write(json.dumps(answered).encode())
        await writer.drain()
        writer.close()

    before = os.umask(0o177)  # only this user may connect
    try:
        server = await asyncio.start_unix_server(answer, path)
    finally:
        os.umask(before)
    async with server:
        host, port = listening.getsockname()[:2]
        note(f"Serving task {task!r} at http://{address_of(host, port)}/mcp")
        local = is_loopback(host)  # a web page that is open on this machine must not act in the episode
        await env.mcp.run_http_async(
            show_banner=False, sockets=[listening], log_level="warning", host_origin_protection=local
        )


async def _ended(env: MCPEnvironment) -> dict[str, Any]:
    """End the episode, and return its score, or an error."""
    try:
        observation = await env.end_async()
    except McpenvError as error:
        cause = error.__cause__
        return {"error": f"{error}" if cause is None else f"{error}: {type(cause).__name__}: {cause}"}
    assert env.trajectory is not None
    worth = worth_of(env.trajectory)
    if worth is None:
        return {"error": "the episode was not scored: its task has no verifier, and its environment gives no reward"}
    return {"reward": worth, **(observation.info.get("reward") or {})}
