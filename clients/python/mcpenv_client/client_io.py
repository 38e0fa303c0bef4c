"""The ways in which a client waits: in an event loop, or in the thread that called it."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol
from urllib.parse import urlsplit

from websockets.exceptions import InvalidStatus

from . import forks, porters
from .connection import Connection
from .described import fetch
from .errors import McpenvError
from .handshake import ConnectionOptions, Handshake
from .shared_loop import SHARED_LOOP
from .wire import Reply

_ELSEWHERE = (300, 301, 302, 303, 307, 308)


class AnyConnection(Protocol):
    """One socket to a session; see `Connection`."""

    @property
    def ended(self) -> bool:
        """Whether nothing more can be asked here."""

    @property
    def interrupted(self) -> bool:
        """Whether it ended by accident."""

    async def exchange(
        self, text: str, answer: str, timeout_s: float | None = None, *, request_id: str | None = None
    ) -> Reply:
        """Send one frame and wait for its reply."""

    async def close(self, farewell: str) -> None:
        """Say ``farewell`` and close the socket."""

    def abandon(self) -> None:
        """Drop the socket without a word."""


class ClientIO(Protocol):
    """What a client waits for."""

    def lock(self) -> AbstractAsyncContextManager[Any]:
        """A lock that is held for the time of a connection's opening."""

    async def sleep(self, seconds: float) -> None:
        """A pause."""

    async def open(self, handshake: Handshake) -> AnyConnection:
        """A connection; see `Handshake.explained`."""

    async def fetch(self, base_url: str, options: ConnectionOptions, path: str, data: Any = None) -> Any:
        """What a server answers over HTTP; see `described.fetch`."""


class InLoop:
    """In the event loop that runs."""

    def lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def open(self, handshake: Handshake) -> Connection:
        return await Connection.open(handshake)

    async def fetch(self, base_url: str, options: ConnectionOptions, path: str, data: Any = None) -> Any:
        return await fetch(base_url, options, path, data)


class InThread:
    """In the thread that calls: its coroutines never wait for an event loop; all they await is a porter.

    What is not a plain connection to a server (by way of a proxy, or after a redirection) and what is seldom asked
    for (over HTTP) is left to the shared loop.
    """

    def lock(self) -> _BlockingLock:
        return _BlockingLock()

    async def sleep(self, seconds: float) -> None:
        over = threading.Event()
        job = await porters.in_a_porter()
        if job is not None:
            job.on_cancel(over.set)
        over.wait(seconds)
        if job is not None:
            job.on_cancel(None)

    async def open(self, handshake: Handshake) -> AnyConnection:
        job = await porters.in_a_porter()
        connection = (_is_direct(handshake) and await _direct(handshake)) or _Elsewhere(
            SHARED_LOOP.run(Connection.open(handshake))
        )
        try:
            if job is not None:
                job.on_cancel(None)
        except porters.Abandoned:
            connection.abandon()
            raise
        return connection

    async def fetch(self, base_url: str, options: ConnectionOptions, path: str, data: Any = None) -> Any:
        await porters.in_a_porter()
        return SHARED_LOOP.run(fetch(base_url, options, path, data))


async def _direct(handshake: Handshake) -> AnyConnection | None:
    """A connection; None if the server is elsewhere."""
    from .blocking_connection import BlockingConnection  # loaded on first use: most clients are async

    try:
        return await BlockingConnection.open(handshake)
    except McpenvError as error:
        if isinstance(error.__cause__, InvalidStatus) and error.__cause__.response.status_code in _ELSEWHERE:
            return None
        raise


class _Elsewhere:
    """A connection in the shared loop, for a thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def ended(self) -> bool:
        return SHARED_LOOP.run(self._ended())

    @property
    def interrupted(self) -> bool:
        return self._connection.interrupted

    async def exchange(
        self, text: str, answer: str, timeout_s: float | None = None, *, request_id: str | None = None
    ) -> Reply:
        await porters.in_a_porter()
        return SHARED_LOOP.run(self._connection.exchange(text, answer, timeout_s, request_id=request_id))

    async def close(self, farewell: str) -> None:
        await porters.in_a_porter()
        SHARED_LOOP.run(self._connection.close(farewell))

    def abandon(self) -> None:
        self._connection.abandon()

    async def _ended(self) -> bool:
        return self._connection.ended


class _BlockingLock:
    """A `threading.Lock` for coroutines of which each has its thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = forks.number()

    async def __aenter__(self) -> None:
        await porters.in_a_porter()
        if self._process != forks.number():  # who had it when the process was forked is not here
            self._lock, self._process = threading.Lock(), forks.number()
        self._lock.acquire()

    async def __aexit__(self, *exc: object) -> None:
        self._lock.release()


def _is_direct(handshake: Handshake) -> bool:
    """Whether nothing but the network is between here and the server, and no credential is in its address."""
    return (handshake.is_local or not urllib.request.getproxies()) and urlsplit(handshake.url).username is None


IN_LOOP = InLoop()
IN_THREAD = InThread()

__all__ = ["IN_LOOP", "IN_THREAD", "AnyConnection", "ClientIO"]
