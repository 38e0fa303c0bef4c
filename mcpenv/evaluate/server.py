"""Server: where the episodes of an evaluation run, and what it says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from mcpenv_client.addresses import http_base, is_loopback, without_password
from mcpenv_client.client import EnvClient
from mcpenv_client.errors import ConnectionFailed

from ..config import ServerConfig
from ..environment import MCPEnvironment
from ..errors import ConfigurationError
from ..serve import serving
from ..targets import is_url
from .own_server import OwnServer

CONNECT_S = 15.0
"""How long the server may take to answer at first."""

CAPACITY_S = 60.0
"""How long an episode waits for its session: the one before it may still be closing."""


@dataclass(frozen=True)
class Server:
    """A server whose control plane can be used.

    Attributes:
        url: its base.
        control_token: what its control plane wants; None for nothing.
        name, version, description: the environment's.
        has_tasks: whether it has any, to be asked for.
        slots: sessions at a time.
        free: of which nobody has now.
    """

    url: str
    control_token: str | None = field(repr=False)
    name: str
    version: str | None
    description: str
    has_tasks: bool
    slots: int
    free: int

    def client(self) -> EnvClient:
        """A session of its own, not yet connected."""
        return EnvClient(self.url, headers=_headers(self.control_token), capacity_timeout_s=CAPACITY_S)

    async def check(self) -> None:
        """Whether it is there.

        Raises:
            ConnectionFailed: it is not.
        """
        async with _http(self.url, self.control_token) as http:
            try:
                await http.get("/health")
            except httpx.HTTPError as error:
                raise ConnectionFailed(self.shown, str(error) or type(error).__name__) from error

    @property
    def shown(self) -> str:
        """Its URL as it may stand in a message."""
        return without_password(self.url)


@asynccontextmanager
async def served(
    target: str | type[MCPEnvironment],
    *,
    settings: Sequence[str] = (),
    tasks: Path | None = None,
    control_token: str | None = None,
    log: Path,
) -> AsyncIterator[Server]:
    """A server of ``target``: the one at that URL, or one that is started for the time of the block.

    Args:
        target: a URL, what the command line takes as TARGET, or a class, which is served in a thread of this process.
        settings: ``name=value`` each, for a target's constructor.
        tasks: a file of tasks that takes the place of the target's own.
        control_token: the one of the server at a URL.
        log: what a process of its own prints is added to this file.

    Raises:
        ConnectionFailed: nobody listens at the URL.
        ConfigurationError: the target cannot be served, or the server has no control plane for us.
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
            own = OwnServer(target, settings, tasks, token, log)
            # Its end may take seconds, in which other things here end too.
            stack.push_async_callback(asyncio.to_thread, own.stop)
            url = await asyncio.to_thread(own.url)
        else:
            if settings or tasks is not None:
                raise ConfigurationError("a class has its settings and tasks; settings and tasks are for a TARGET")
            config = replace(ServerConfig(), control_token=token, require_handle=True)
            url = stack.enter_context(serving(target, config))
        yield await _described(url, token)


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
        capacity = await _object(http, shown, "/capacity")
    try:
        slots, active = int(capacity["max_sessions"]), int(capacity["active_sessions"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConnectionFailed(shown, "what it says of its capacity is not what mcpenv's servers say") from error
    version = metadata.get("version")
    return Server(
        url=url,
        control_token=control_token,
        name=str(metadata.get("name") or "environment"),
        version=None if version is None else str(version),
        description=str(metadata.get("description") or ""),
        has_tasks=bool(metadata.get("tasks")),
        slots=slots,
        free=max(slots - active, 0),
    )


async def _object(http: httpx.AsyncClient, shown: str, path: str) -> dict[str, Any]:
    try:
        reply = await http.get(path)
        body = reply.json() if reply.is_success else None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConnectionFailed(shown, str(error) or type(error).__name__) from error
    except ValueError as error:
        raise ConnectionFailed(shown, f"{path} is no JSON; is it a server of mcpenv?") from error
    if reply.status_code == httpx.codes.UNAUTHORIZED:
        raise ConfigurationError(f"{shown}: it wants its control token (--control-token-file, or MCPENV_CONTROL_TOKEN)")
    if reply.status_code == httpx.codes.NOT_FOUND:
        raise ConfigurationError(
            f"{shown}: there is no {path}: it is not in simulation mode, or its control plane has another address"
        )
    if not isinstance(body, dict):
        raise ConfigurationError(f"{shown}: it answered {path} with status {reply.status_code}")
    return body
