"""The servers of a remote pool: reading their list, checking them, and choosing by weight."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from mcpenv_client.client import EnvClient
from mcpenv_client.connection.addresses import without_password
from mcpenv_client.connection.resume import Journal
from mcpenv_client.errors import ConnectionFailed, McpenvError
from mcpenv_client.portal import in_daemon_thread

from .backend import PoolError
from .window import Window

logger = logging.getLogger("mcpenv")

MANY = ("@", "dns+http://")
"""The prefix of a text that refers to a changing list of servers."""

CHECK_S = 5.0
"""Seconds between two checks of an unhealthy server, and of a file of servers."""

LAST_CHECK_S = 30.0
"""The seconds to wait for an answer when a pool starts and none of its servers has answered in `CHECK_S`."""

Listed = str | Sequence[str] | Mapping[str, float]
"""Servers: a URL, a list, a mapping of URLs to weights, a file (``@PATH``) or a name (``dns+http://``)."""


@dataclass(frozen=True)
class Client:
    """A client, and True if its blocking form is used: a client belongs to one event loop.

    ``url`` is the address of its server. Its session may go on at another one.
    """

    client: EnvClient
    url: str
    blocking: bool = False

    async def close(self) -> None:
        """End its session."""
        if self.blocking:
            await in_daemon_thread(self.client.sync().close)
        else:
            await self.client.close()


@dataclass
class Server:
    """A server of the pool.

    Attributes:
        url: its address.
        weight: its share of the episodes, relative to the other servers.
        sessions: the clients of the pool that play on it now.
        idle: its clients without an episode. Each client has a session.
        limit: the maximum of the pool's clients there at the last check; None: the server does not report it.
        window: the maximum of the pool's clients there according to refusals.
        ill: the reason why it does not answer; None if it does.
        error: the error of the last check that has ended; None if it was answered.
        answered: True if that check was answered.
        looked_at: the time of the last check, by `time.monotonic`.
        name: the name of its environment; None if it does not say it.
        durable: its sessions go on at the other servers of its store.
    """

    url: str
    window: Window
    weight: float = 1.0
    sessions: int = 0
    idle: list[Client] = field(default_factory=list)
    limit: int | None = None
    ill: str | None = None
    error: Exception | None = None
    answered: bool = False
    looked_at: float = float("-inf")
    name: str | None = None
    durable: bool = False

    @property
    def room(self) -> int:
        """The maximum of the pool's clients there; 0 if it does not answer."""
        limit = self.window.limit if self.limit is None else min(self.window.limit, self.limit)
        return limit if self.ill is None else 0

    @property
    def free(self) -> bool:
        """True if another session may be requested from it."""
        return self.ill is None and (bool(self.idle) or self.sessions < self.room)

    @property
    def described(self) -> bool:
        """True if it has said what it is, or will not: a server of mcpenv reports its limit."""
        return self.name is not None or (self.answered and self.limit is None)

    def take_idle(self) -> list[Client]:
        """Return its clients without an episode, and remove them here."""
        taken, self.idle = self.idle, []
        return taken


def read_servers(given: Listed) -> list[tuple[str, float]]:
    """Return the servers of a URL, a list, a mapping of URLs to weights, or a file (``@PATH``).

    Each line of a file has a URL, and a weight after a space if it is not 1. Empty lines and lines with ``#`` are
    ignored. A URL that begins with ``dns+http://`` stands for a server at each address of its host.

    Raises:
        PoolError: the file cannot be read, a host has no address, or there is no server.
    """
    if isinstance(given, str) and given.startswith("@"):
        try:
            lines = Path(given[1:]).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise PoolError(f"the file of servers cannot be read: {error}") from error
        found = [
            _line(given[1:], number, line) for number, line in enumerate(lines, 1) if line.partition("#")[0].strip()
        ]
    elif isinstance(given, str):
        found = [(given, 1.0)]
    elif isinstance(given, Mapping):
        found = [(url, float(weight)) for url, weight in given.items()]
    else:
        found = [(url, 1.0) for url in given]
    found = [(url, weight) for name, weight in found for url in _addresses(name)]
    if not found:
        raise PoolError("a remote pool needs at least one server")
    for url, weight in found:
        if not url.startswith(("http://", "https://", "ws://", "wss://")) or not weight > 0:
            raise PoolError(
                f"{without_password(url)!r} with weight {weight:g} is no server: give a URL and a positive weight"
            )
    return found


def _addresses(url: str) -> list[str]:
    """Return the URLs of a URL: one for each address of its host, if it begins with ``dns+http://``."""
    if not url.startswith("dns+http://"):
        return [url]
    parts = urlsplit(url.removeprefix("dns+"))
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise PoolError(f"{url!r} names no servers: {error}") from error
    hosts = sorted(
        {f"[{where[0]}]" if family == socket.AF_INET6 else str(where[0]) for family, _, _, _, where in found}
    )
    return [urlunsplit(parts._replace(netloc=f"{host}:{parts.port or 80}")) for host in hosts]


def _line(path: str, number: int, line: str) -> tuple[str, float]:
    words = line.partition("#")[0].split()
    try:
        url, weight = words[0], float(words[1]) if len(words) > 1 else 1.0
    except ValueError as error:
        raise PoolError(f"{path}, line {number}: {words[1]!r} is no weight") from error
    return url, weight


class Servers:
    """The servers that provide sessions: each time the one with the fewest sessions for its weight.

    A server that does not answer is skipped for some seconds; a full server is limited to its present number of
    sessions, and to one more some seconds later. Use it in one event loop only.

    Args:
        given: as `read_servers` takes them. A file or a name is read again while sessions are in use.
        most: the maximum total number of sessions.
        connect: makes a client of a URL, with credentials and timeouts; None: `EnvClient`.
        wait_s: maximum seconds to wait for a healthy server with free capacity.
    """

    def __init__(
        self,
        given: Listed,
        most: int,
        *,
        connect: Callable[[str], EnvClient] | None = None,
        wait_s: float = 60.0,
    ) -> None:
        self.wait_s = wait_s
        self._given, self._most = given, most
        self._connect = EnvClient if connect is None else connect
        self._servers: dict[str, Server] = {}
        self._read_at = float("-inf")
        self._changed = asyncio.Event()
        self._closed = self._said_room = False

    @property
    def all(self) -> list[Server]:
        """The servers, as they are now."""
        return list(self._servers.values())

    @property
    def urls(self) -> list[str]:
        """The addresses of the servers, those first that have answered lately."""
        return [server.url for server in sorted(self.all, key=lambda server: server.ill is not None)]

    async def start(self) -> None:
        """Read the list of servers, and check each.

        Raises:
            PoolError: as `read_servers` does; or no server answers, unless a file or a name lists them, because it may
                list others later.
        """
        self._closed = False
        await in_daemon_thread(self._read)
        await asyncio.gather(*(self.look(server) for server in self.all))
        fixed = not isinstance(self._given, str) or not self._given.startswith(MANY)
        if fixed and all(server.ill is not None for server in self.all):
            await asyncio.gather(*(self.look(server, LAST_CHECK_S) for server in self.all))
        if fixed and all(server.ill is not None for server in self.all):
            raise PoolError(f"no server answers: {self._described()}") from self._cause()

    async def close(self) -> None:
        """Close the clients without an episode. A `take` that waits fails."""
        self._closed = True
        await asyncio.gather(*(client.close() for server in self.all for client in server.take_idle()))

    async def take(
        self,
        left_s: Callable[[], float],
        *,
        blocking: bool = False,
        journal: Journal | None = None,
        url: str | None = None,
    ) -> tuple[Server, Client]:
        """Return a session of the server with the most free capacity.

        Args:
            left_s: returns the seconds for which it may still wait, of `wait_s`.
            blocking: True for a client whose blocking form is used.
            journal: keeps the messages of a new session; None for a session of any client.
            url: the server to take if it answers, though it may be full: it has the session to go on with.

        Raises:
            PoolError: no server has had free capacity in that time, or the pool is closed.
        """
        while True:
            if self._closed:
                raise PoolError("the pool is closed")
            now = time.monotonic()
            if now - self._read_at > CHECK_S:
                await self._read_again()
            old = [server for server in self.all if now - server.looked_at > CHECK_S]
            await asyncio.gather(*(self.look(server) for server in old))
            free = [each for each in self.all if each.free or (each.url == url and each.error is None)]
            if journal is not None and not all(each.described for each in free):
                # One that was lost or slow before it had described itself may be durable.
                await asyncio.gather(*(self.look(each) for each in free if not each.described))
                free = [each for each in free if each.described and (each.free or each.url == url)]
            if free:
                server = min(free, key=lambda each: (each.url != url, each.sessions / each.weight, random.random()))
                server.sessions += 1
                return server, await self._client_of(server, blocking, journal)
            if left_s() <= 0:
                why = f"no server has had room for {self.wait_s:g} s: {self._described()}"
                raise PoolError(why) from self._cause()
            room = sum(server.room for server in self.all)
            if 0 < room < self._most and not self._said_room:
                self._said_room = True
                logger.warning("pool: the servers have room for %d of %d sessions; others wait", room, self._most)
            await self._change(min(left_s(), 0.2))  # an unhealthy server may have recovered by then

    async def _client_of(self, server: Server, blocking: bool, journal: Journal | None) -> Client:
        """Return a client without an episode, or a new one. A new one takes the place of one of the other form."""
        own = next((client for client in reversed(server.idle) if client.blocking is blocking), None)
        if own is not None and journal is None:
            server.idle.remove(own)
            return own
        try:
            if server.idle:
                await server.idle.pop().close()
        except BaseException:
            server.sessions -= 1
            raise
        client = self._connect(server.url)
        at = client.base_url
        if server.durable:
            client.go_on_at(lambda: [at, *self._durable_but(server)], journal)
        return Client(client, at, blocking)

    def _durable_but(self, server: Server) -> list[str]:
        """Return the addresses at which the sessions of a server may go on."""
        return [url for url in self.urls if url != server.url and self._servers[url].durable]

    async def give_back(
        self, server: Server, client: Client, *, finished: int | None, lost: bool = False, reuse: bool = True
    ) -> None:
        """Return a session to the pool.

        Args:
            server: its server.
            client: its client.
            finished: the number of completed episodes; None: the session cannot be used again.
            lost: True to check the server, because it may be lost.
            reuse: False to close the session, because its journal is that of one share.
        """
        server.sessions -= 1
        if finished is None or not reuse or client.client.base_url != client.url:
            await client.close()
        else:
            server.idle.append(client)
        for _ in range(finished or 0):
            server.window.finished()
        if lost:
            await self.look(server)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, timeout_s: float) -> None:
        """Wait until a session is returned, or some time has passed.

        A cancellation is never lost, unlike with `wait_for`.
        """
        change = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait([change], timeout=timeout_s)
        finally:
            change.cancel()

    async def look(self, server: Server, timeout_s: float | None = None) -> None:
        """Ask a server for its health, and for the number of further sessions that it accepts."""
        timeout_s = CHECK_S if timeout_s is None else timeout_s
        server.looked_at = time.monotonic()  # of what another look finds, nothing changes before this one ends
        try:
            client = self._connect(server.url)
            capacity = await asyncio.wait_for(client.capacity(), timeout_s)
        except (McpenvError, asyncio.TimeoutError) as error:
            if isinstance(error, ConnectionFailed) and error.http_status is not None:
                server.ill = server.limit = server.error = None  # it answers without that number
                server.answered = True
                return
            server.error, server.answered = error, False
            why = str(error) or f"no answer within {timeout_s:g} s"
            if server.ill is None:
                logger.warning("pool: %s is left out: %s", without_password(server.url), why)
            server.ill = why
            await asyncio.gather(*(client.close() for client in server.take_idle()))
        else:
            server.error, server.answered = None, True
            # A server that accepts no new sessions may still serve those that this pool has there.
            server.limit = server.sessions + len(server.idle) + capacity.available_slots
            server.ill = None if capacity.ready or server.limit else capacity.reason or "it accepts no new sessions"
            if server.name is None:
                with contextlib.suppress(McpenvError, asyncio.TimeoutError):
                    about = await asyncio.wait_for(client.metadata(), timeout_s)
                    server.name, server.durable = about.get("name"), about.get("durable") is True

    def full(self, server: Server) -> None:
        """Record that a server refused a session."""
        server.limit, server.looked_at = server.sessions - 1, time.monotonic()
        server.window.refused(server.sessions - 1)

    def _read(self) -> None:
        found = dict(read_servers(self._given))
        for url, weight in found.items():
            if url not in self._servers:
                self._servers[url] = Server(url, Window(self._most))
            self._servers[url].weight = weight
        for url in [url for url in self._servers if url not in found]:
            if not self._servers[url].sessions:
                del self._servers[url]
            else:
                self._servers[url].ill = "it is not listed any more"  # its running episodes continue
        self._read_at = time.monotonic()

    async def _read_again(self) -> None:
        """Read the list of servers, if a file or a name may have changed.

        Entries that cannot be read now stay unchanged.
        """
        self._read_at = time.monotonic()
        try:
            await in_daemon_thread(self._read)
        except PoolError as error:
            logger.warning("pool: the servers stay as they were: %s", error)

    def _cause(self) -> Exception | None:
        return next((each.error for each in self.all if each.error is not None), None)

    def _described(self) -> str:
        return ", ".join(
            f"{without_password(each.url)}: {each.ill or f'full with {each.sessions} sessions of this pool'}"
            for each in self.all
        )
