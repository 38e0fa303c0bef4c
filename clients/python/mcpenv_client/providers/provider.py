"""The interface of providers: start a server, provide its URL and credentials, and always end it."""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

from mcpenv_client.connection.handshake import ConnectionOptions
from mcpenv_client.connection.http import fetch
from mcpenv_client.errors import ConnectionFailed, InstanceFailed, ProviderUnavailable, WireError

POLL_S = 0.1
"""Seconds between two requests to a starting server."""

PROBE_TIMEOUT_S = 5.0
"""Seconds to wait for the answer to one request about a server's health."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The properties of a provider's instances, for choosing a provider.

    Attributes:
        isolated: the environment's code has its own file system, not this machine's.
        limits: memory and number of processes are limited.
        remote: an instance may run on another machine.
        ends_with_owner: an instance ends by itself when the process that started it is killed. Otherwise a later
            process of the same provider removes it.
    """

    isolated: bool = False
    limits: bool = False
    remote: bool = False
    ends_with_owner: bool = False


class Instance(ABC):
    """A server that a provider has started.

    Attributes:
        name: the name for messages and logs, such as ``container 1f2e3d``.
        url: the base URL, for `EnvClient`.
        control_token: the token that its control plane requires; None if it requires none.
    """

    def __init__(self, name: str, url: str, control_token: str | None = None) -> None:
        self.name = name
        self.url = url
        self.control_token = control_token

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} at {self.url}>"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a client's handshake."""
        return {} if self.control_token is None else {"Authorization": f"Bearer {self.control_token}"}

    @abstractmethod
    async def is_running(self) -> bool:
        """Return True if its process, container or pod runs, even if it does not answer."""

    @abstractmethod
    async def logs(self) -> str:
        """Return the end of the output of the server and the environment; empty if there is none."""

    async def is_alive(self) -> bool:
        """Return True if it runs and is ready for sessions."""
        return await self.is_running() and await self._is_ready()

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until the server is ready for sessions.

        Raises:
            InstanceFailed: it ended, or was not ready within ``timeout_s`` seconds. The error quotes its output.
        """
        end = time.monotonic() + timeout_s
        while not await self._is_ready():
            if not await self.is_running():
                raise InstanceFailed(self.name, "it ended while it started", await self.logs())
            if time.monotonic() >= end:
                raise InstanceFailed(self.name, f"it was not ready after {timeout_s:g} s", await self.logs())
            await asyncio.sleep(POLL_S)

    async def _is_ready(self) -> bool:
        options = ConnectionOptions(connect_timeout_s=PROBE_TIMEOUT_S)
        try:
            await fetch(self.url, options, "/ready")
        except (ConnectionFailed, WireError):
            return False
        return True


class Provider(ABC):
    """The way to start servers of one environment.

    A provider is a recipe without state: each use of `instance` starts a separate server. Several tasks may use one
    provider at once. Subclasses implement `missing` and `launch`.

    Attributes:
        capabilities: the properties of its instances.
        start_timeout_s: maximum seconds until an instance is ready.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, *, start_timeout_s: float = 60.0) -> None:
        self.start_timeout_s = start_timeout_s

    @abstractmethod
    async def missing(self) -> list[str]:
        """Return the requirements that this machine or cluster lacks, each a sentence with a remedy; empty if none.

        It starts nothing, and is quick: `instance` calls it each time.
        """

    @abstractmethod
    def launch(self) -> AbstractAsyncContextManager[Instance]:
        """Start a server and end it with the block, even after an error and if the task is cancelled.

        Yields as soon as the URL is known. `instance` waits until it is ready.
        """

    @asynccontextmanager
    async def instance(self) -> AsyncIterator[Instance]:
        """Start a server, yield it when it is ready, and end it with the block.

        Raises:
            ProviderUnavailable: a requirement is missing; nothing was started.
            InstanceFailed: the server did not start. The error quotes its output.
        """
        missing = await self.missing()
        if missing:
            raise ProviderUnavailable(type(self).__name__, missing)
        async with self.launch() as instance:
            await instance.wait_ready(self.start_timeout_s)
            yield instance


def one_line(error: BaseException) -> str:
    """Return an error as one line. An API server's error has the reason in its body, such as an exhausted quota."""
    status, reason = getattr(error, "status", None), getattr(error, "reason", None)
    if status is None or not isinstance(reason, str):
        return " ".join(str(error).split()) or type(error).__name__
    body = getattr(error, "body", None)
    try:
        message = json.loads(body)["message"] if isinstance(body, bytes | str) else ""
    except (ValueError, KeyError, TypeError):  # a proxy in between gives other answers
        message = ""
    return f"{status} {reason}" + (f": {' '.join(str(message).split())}" if message else "")
