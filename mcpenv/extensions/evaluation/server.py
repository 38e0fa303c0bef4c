"""Servers: find or start the server of an evaluation, and read its description."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from pydantic import ValidationError

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.targets.place import is_url
from mcpenv_client.client import EnvClient
from mcpenv_client.connection.addresses import http_base, is_loopback, without_password
from mcpenv_client.errors import AGENTS_TOKEN, ConnectionFailed
from mcpenv_client.types.server import ServerCapacityStatus
from mcpenv_client.types.tools import Mode

from .server_process import OwnServer

CONNECT_S = 15.0
"""Timeout of HTTP requests about the server itself, in seconds."""

CAPACITY_S = 60.0
"""Seconds that an episode waits for a free session: the previous session may still be closing."""


@dataclass(frozen=True)
class Server:
    """The server of an evaluation, with an accessible control plane.

    Attributes:
        url: its base URL.
        control_token: the token for its control plane; None if it requires none.
        name, version, description: of the environment.
        has_tasks: True if the environment has tasks.
        task_set: their licence, source and version; None if the server does not tell them.
        slots: maximum concurrent sessions.
        free: number of sessions that were free at the start.
        folder: the folder of the environment's code; None if unknown, as for a server at a URL.
    """

    url: str
    control_token: str | None = field(repr=False)
    name: str
    version: str | None
    description: str
    has_tasks: bool
    slots: int
    free: int
    folder: Path | None = None
    task_set: dict[str, str | None] | None = None

    def client(self) -> EnvClient:
        """Return a client for a new session, not yet connected."""
        return EnvClient(self.url, headers=_headers(self.control_token), capacity_timeout_s=CAPACITY_S)

    async def check(self) -> None:
        """Raise if the server does not answer.

        Raises:
            ConnectionFailed: the server cannot be reached.
        """
        async with _http(self.url, self.control_token) as http:
            try:
                await http.get("/health")
            except httpx.HTTPError as error:
                raise ConnectionFailed(self.shown, str(error) or type(error).__name__) from error

    @property
    def shown(self) -> str:
        """The URL without a password, for messages."""
        return without_password(self.url)


@asynccontextmanager
async def served(
    target: str | type[MCPEnvironment],
    *,
    settings: Sequence[str] = (),
    tasks: Path | None = None,
    columns: str | None = None,
    control_token: str | None = None,
    log: Path,
) -> AsyncIterator[Server]:
    """Yield the server at the URL ``target``, or start one for the duration of the block.

    Args:
        target: a URL, a TARGET of the command line, or a class, which is served in a thread of this process.
        settings: ``name=value`` each, for a target's constructor.
        tasks: a file of tasks to use instead of the target's own.
        columns: its columns by the fields of a task: ``prompt=question,answer=solution``.
        control_token: the token of the server at a URL.
        log: the file to which the output of a server process is appended.

    Raises:
        ConnectionFailed: no server of mcpenv answers at the URL.
        ConfigurationError: the target cannot be served, or the server's control plane is not accessible.
    """
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(target, str) and is_url(target):
            if settings or tasks is not None:
                raise ConfigurationError(
                    "--set and --tasks are for an environment's code; a running server has its own"
                )
            yield await _described(_base(target), control_token)
            return
        token = secrets.token_urlsafe(24)
        if isinstance(target, str):
            own = OwnServer(target, settings, tasks, columns, token, log)
            # In a thread, because stopping may take seconds.
            stack.push_async_callback(asyncio.to_thread, own.stop)
            url, folder = await asyncio.to_thread(own.started)
        else:
            if settings or tasks is not None:
                raise ConfigurationError(
                    "settings and tasks cannot be given for a class, which has its own; name a TARGET instead"
                )
            config = replace(ServerConfig(), control_token=token, require_handle=True)
            url = stack.enter_context(serving(target, config))
            file = getattr(sys.modules.get(target.__module__), "__file__", None)
            folder = None if file is None else Path(file).parent
        yield replace(await _described(url, token), folder=folder)


def _base(url: str) -> str:
    try:
        return http_base(http_base(url), "/mcp")
    except ValueError as error:
        raise ConfigurationError(str(error).replace("base_url", "URL", 1)) from error


def _headers(control_token: str | None) -> dict[str, str]:
    return {} if control_token is None else {"Authorization": f"Bearer {control_token}"}


def _http(url: str, control_token: str | None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=url, headers=_headers(control_token), timeout=CONNECT_S, trust_env=not is_loopback(url)
    )


async def _described(url: str, control_token: str | None) -> Server:
    shown = without_password(url)
    async with _http(url, control_token) as http:
        metadata = await _object(http, shown, "/metadata")
        if metadata.get("mode") == Mode.PRODUCTION:
            raise ConfigurationError(f"{shown}: it is in production, where there are no episodes; run it in simulation")
        answered = await _object(http, shown, "/capacity")
    try:
        capacity = ServerCapacityStatus.model_validate(answered)
    except ValidationError as error:
        raise ConnectionFailed(shown, "its answer about capacity is not that of an mcpenv server") from error
    if not capacity.ready:
        raise ConfigurationError(f"{shown}: it takes no new sessions: {capacity.reason or 'try again later'}")
    version = metadata.get("version")
    return Server(
        url=url,
        control_token=control_token,
        name=str(metadata.get("name") or "environment"),
        version=None if version is None else str(version),
        description=str(metadata.get("description") or ""),
        has_tasks=bool(metadata.get("tasks")),
        task_set=metadata.get("task_set"),
        slots=capacity.max_sessions,
        free=capacity.available_slots,
    )


async def _object(http: httpx.AsyncClient, shown: str, path: str) -> dict[str, Any]:
    try:
        reply = await http.get(path)
        body = reply.json() if reply.is_success else None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConnectionFailed(shown, str(error) or type(error).__name__) from error
    except ValueError as error:
        raise ConnectionFailed(shown, f"{path} is not JSON; is it a server of mcpenv?") from error
    if reply.status_code == httpx.codes.UNAUTHORIZED:
        another = ", and refuses this one" if "Authorization" in http.headers else ""
        another += ", which is an agent's" if AGENTS_TOKEN in reply.text else ""
        raise ConfigurationError(
            f"{shown}: it requires its control token{another} (--control-token-file, or MCPENV_CONTROL_TOKEN)"
        )
    if reply.status_code == httpx.codes.NOT_FOUND:
        raise ConfigurationError(
            f"{shown}: it has no {path}: it is not in simulation mode, or its control plane has another URL"
        )
    if not isinstance(body, dict):
        raise ConfigurationError(f"{shown}: it answered {path} with status {reply.status_code}")
    return body
