"""The worker: one event loop with an environment's source, its sessions, and the connections from the hub."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpenv.server.app import EnvServer
from mcpenv.server.config import ServerConfig
from mcpenv.server.control.session_routes import info_of
from mcpenv.server.serve import Served
from mcpenv.server.uvicorn_server import Ending, HTTPServer, serve_doors, settings_of
from mcpenv_client.errors import McpenvError

from .acceptor import receive_connection
from .channel import Channel, Handlers
from .forwarding import Forwarding, Peers
from .hub import Seat, counts_of
from .membership import Member
from .tunnel import TunnelServer

logger = logging.getLogger("mcpenv")


@dataclass(frozen=True)
class Job:
    """The settings of the workers.

    Attributes:
        folder: the folder of the server's sockets, private to its user.
        count: number of workers of the server.
        split: True if the control plane has its own listening socket.
        load: returns what to serve.
    """

    folder: Path
    count: int
    config: ServerConfig
    split: bool
    load: Callable[[], Served]


class Worker:
    """The worker of a server that has several.

    Args:
        seat: its connections to the hub.
        on_beat: called each time the hub asks if the event loop runs.
        on_lost: called once the hub asks no more.
    """

    def __init__(
        self,
        job: Job,
        seat: Seat,
        on_beat: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_beat = on_beat
        self._on_lost = on_lost
        self._job = job
        self._seat = seat
        self._ending: Ending | None = None
        self._begun: dict[str, bool] | None = None
        """The arguments of an end that began before there was an `Ending`."""
        self._hurried = False

    async def run(self, loaded: contextlib.AbstractContextManager[None] | None = None) -> None:
        """Serve until the end is asked for, by a signal or by the hub, or until the hub disconnects.

        Args:
            loaded: entered once the environment's code is loaded.

        Raises:
            StartupError: the environment does not start. The hub is told first.
        """
        reader, writer = await asyncio.open_unix_connection(sock=self._seat.channel)
        handlers: dict[str, Callable[..., Any]] = {"beat": self._on_beat, "end": self.end, "replace": self.replace}
        channel = Channel(reader, writer, handlers)
        serving = asyncio.ensure_future(channel.serve())
        try:
            peers = Peers(self._job.folder, self._seat.tag, self._job.count)
            served = self._job.load()
            member = Member(channel, peers.own, counts_of(self._job.folder, peers.own))
            server = EnvServer(
                served.env_factory,
                config=self._job.config,
                readme=served.readme,
                auth=served.auth,
                membership=member,
            )
            handlers.update(_handlers(server, member, peers))
            serving.add_done_callback(lambda _: self._on_lost())
            serving.add_done_callback(lambda _: self.end())
            with loaded or contextlib.nullcontext():
                await self._serve(server, peers, channel)
        except Exception as error:
            channel.tell("failed", str(error) if isinstance(error, McpenvError) else repr(error))
            await channel.drain()
            raise
        finally:
            channel.close()
            await asyncio.wait({serving})
            self._on_lost()

    def replace(self, hurry: bool = False) -> None:
        """Begin what SIGTERM begins, unless an end has begun.

        Args:
            hurry: do not wait for episodes, now or later.
        """
        if hurry:
            self._hurried = True
            if self._ending is not None:
                self._ending.hurry()
        if self._begun is None:
            self._begin(episodes=True)

    def end(self) -> None:
        """Refuse new sessions, let running steps finish, and end; called a second time, end immediately."""
        self._begin(episodes=False)

    def _begin(self, *, episodes: bool) -> None:
        self._begun = {"episodes": episodes}
        if self._ending is not None:
            self._ending.signalled(episodes=episodes)

    async def _serve(self, server: EnvServer, peers: Peers, channel: Channel) -> None:
        async with server.running(), contextlib.AsyncExitStack() as stack:
            doors = [
                Forwarding(number, app, peers, channel, self._job.config, server.agent_server.auth)
                for number, app in enumerate(server.applications(split=self._job.split))
            ]
            tunnels = TunnelServer([door.local for door in doors])
            await stack.enter_async_context(tunnels.running(peers.socket_of(peers.own)))
            servers = [HTTPServer(settings_of(door, self._job.config)) for door in doors]

            async def others() -> None:
                channel.tell("leaving")
                for door in doors:
                    await door.idle()
                await tunnels.idle()

            def started() -> None:
                stack.enter_context(_receiving(self._seat.connections, servers))
                channel.tell("ready", server.pool.slots.limit, os.getpid())
                self._ending = ending
                if self._hurried:
                    ending.hurry()
                if self._begun is not None:
                    ending.signalled(**self._begun)

            ending = Ending(server, servers, others, lambda: channel.tell("draining"))
            await serve_doors(server, [(each, None) for each in servers], started)


def _handlers(server: EnvServer, member: Member, peers: Peers) -> Handlers:
    """Return the functions that the hub may call."""
    pool, slots = server.pool, member.shared_slots
    assert slots is not None

    def evictable(orchestrated: bool) -> float | None:
        session = pool.who_gives_way(orchestrated)
        return None if session is None else session.last_used

    async def evict(orchestrated: bool) -> None:
        session = pool.who_gives_way(orchestrated)
        if session is not None:
            await pool.close(session)

    def counts(tags: list[str], silent: list[str], service: str | None, taken: int, quarantined: int) -> None:
        peers.learn(tags, silent, service)
        slots.learn(taken, quarantined)

    return {
        "counts": counts,
        "sessions": lambda: [info_of(session).to_plain() for session in pool.sessions()],
        "episodes": server.description.recording,
        "metrics": server.collection.of_process,
        "tag_of": lambda session_id: None if pool.peek(session_id) is None else peers.own,
        "evictable": evictable,
        "evict": evict,
    }


@contextlib.contextmanager
def _receiving(connections: socket.socket, servers: list[HTTPServer]) -> Iterator[None]:
    """Serve the hub's connections while the block runs."""
    loop = asyncio.get_running_loop()
    taking: set[asyncio.Task[None]] = set()

    def receive() -> None:
        while True:
            try:
                received = receive_connection(connections)
            except (EOFError, OSError):
                loop.remove_reader(connections.fileno())
                return
            if received is None:
                return
            door, connection = received
            task = asyncio.ensure_future(servers[door].take(connection))
            taking.add(task)
            task.add_done_callback(taking.discard)

    connections.setblocking(False)
    loop.add_reader(connections.fileno(), receive)
    try:
        yield
    finally:
        loop.remove_reader(connections.fileno())
        connections.close()
