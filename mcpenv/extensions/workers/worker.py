"""The worker: one event loop with an environment's source, its sessions, and the connections from the hub."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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
from .forwarding import Forwarding, Peers
from .hub import HUB, counts_of
from .membership import Member
from .messages import (
    CollectMetrics,
    CountEpisodes,
    Done,
    Draining,
    End,
    EpisodeCounts,
    Evict,
    Failed,
    FindEvictable,
    HasSession,
    Hello,
    Hurry,
    LastUsed,
    Leaving,
    ListSessions,
    Message,
    Metrics,
    Ready,
    Running,
    Sessions,
    SlotCounts,
    Verdict,
    WorkerTag,
)
from .rpc import Channel
from .tunnel import TunnelServer

logger = logging.getLogger("mcpenv")


@dataclass(frozen=True)
class Job:
    """The settings of a worker.

    Attributes:
        folder: the folder of the server's sockets, with the hub's.
        count: number of workers of the server.
        split: True if the control plane has its own listening socket.
    """

    folder: Path
    count: int
    config: ServerConfig
    split: bool


class Worker:
    """The worker of a server that has several.

    Args:
        load: returns what to serve.
    """

    def __init__(self, job: Job, load: Callable[[], Served]) -> None:
        self._job = job
        self._load = load
        self._ending: Ending | None = None
        self._ended_early = False

    async def run(self, on_started: Callable[[], None]) -> None:
        """Serve until `end` is called, by this process or by the hub, or until the hub disconnects.

        Raises:
            StartupError: the environment does not start. The hub is notified first.
        """
        reader, writer = await asyncio.open_unix_connection(self._job.folder / HUB)
        handlers: dict[type[Message], Callable[[Any], Any]] = {End: lambda _: self.end(), Hurry: lambda _: self.hurry()}
        channel = Channel(reader, writer, handlers)
        hearing = asyncio.ensure_future(channel.serve())
        try:
            peers = Peers(self._job.folder, (await channel.call(Hello(), WorkerTag)).tag, self._job.count)
            try:
                served = self._load()
                member = Member(channel, peers.own, counts_of(self._job.folder, peers.own))
                server = EnvServer(
                    served.env_factory,
                    config=self._job.config,
                    readme=served.readme,
                    auth=served.auth,
                    membership=member,
                )
                handlers.update(self._handlers(server, member, peers))
                hearing.add_done_callback(lambda _: self.end())
                await self._serve(server, peers, channel, on_started)
            except Exception as error:
                channel.tell(Failed(reason=str(error) if isinstance(error, McpenvError) else repr(error)))
                await writer.drain()
                raise
        finally:
            channel.close()
            await asyncio.wait({hearing})

    def end(self, *, episodes: bool = False) -> None:
        """Refuse new sessions, let running steps finish, and end; called a second time, end immediately.

        Args:
            episodes: let running episodes finish first.
        """
        if self._ending is None:
            self._ended_early = True
        else:
            self._ending.signalled(episodes=episodes)

    def hurry(self) -> None:
        """Do not wait for episodes at the end."""
        if self._ending is not None:
            self._ending.hurry()

    async def _serve(
        self,
        server: EnvServer,
        peers: Peers,
        channel: Channel,
        on_started: Callable[[], None],
    ) -> None:
        async with server.running(), contextlib.AsyncExitStack() as stack:
            doors = [
                Forwarding(number, app, peers, channel, self._job.config, server.agent_server.auth)
                for number, app in enumerate(server.applications(split=self._job.split))
            ]
            tunnels = TunnelServer([door.local for door in doors])
            await stack.enter_async_context(tunnels.running(self._job.folder / f"{peers.own}.sock"))
            servers = [HTTPServer(settings_of(door, self._job.config)) for door in doors]
            passage = self._job.folder / f"{peers.own}.connections"
            receiving = await stack.enter_async_context(_receiving(passage, servers))

            async def others() -> None:
                channel.tell(Leaving())
                for door in doors:
                    await door.idle()
                await tunnels.idle()

            self._ending = Ending(server, servers, others, lambda: channel.tell(Draining()))

            def started() -> None:
                receiving()
                channel.tell(Ready(limit=server.pool.slots.limit))
                on_started()
                if self._ended_early:
                    self.end()

            stack.callback(peers.close)
            await serve_doors(server, [(each, None) for each in servers], started)

    def _handlers(self, server: EnvServer, member: Member, peers: Peers) -> dict[type[Message], Callable[[Any], Any]]:
        pool = server.pool

        def sessions(_: ListSessions) -> Sessions:
            return Sessions(sessions=[info_of(session) for session in pool.sessions()])

        def episodes(_: CountEpisodes) -> EpisodeCounts:
            counts = server.description.recording()
            return EpisodeCounts(counts=[] if counts is None else [counts])

        def evictable(asked: FindEvictable) -> LastUsed:
            session = pool.who_gives_way(asked.orchestrated)
            return LastUsed(at=None if session is None else session.last_used)

        async def evict(asked: Evict) -> Done:
            session = pool.who_gives_way(asked.orchestrated)
            if session is not None:
                await pool.close(session)
            return Done()

        def count(counts: SlotCounts) -> None:
            assert member.shared_slots is not None
            member.shared_slots.learn(counts.taken, counts.quarantined)

        return {
            Running: lambda running: peers.learn(running.tags),
            SlotCounts: count,
            ListSessions: sessions,
            CountEpisodes: episodes,
            CollectMetrics: lambda _: Metrics(samples=[server.collection.of_process()]),
            HasSession: lambda asked: Verdict(yes=pool.peek(asked.session_id) is not None),
            FindEvictable: evictable,
            Evict: evict,
        }


@asynccontextmanager
async def _receiving(path: Path, servers: list[HTTPServer]) -> AsyncIterator[Callable[[], None]]:
    """Listen for the hub's connections; yield the function that starts to accept them."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    passages: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    taking: set[asyncio.Task[None]] = set()

    def receive(passage: socket.socket) -> None:
        while True:
            try:
                received = receive_connection(passage)
            except (EOFError, OSError):
                loop.remove_reader(passage.fileno())
                return
            if received is None:
                return
            door, connection = received
            task = asyncio.ensure_future(servers[door].take(connection))
            taking.add(task)
            task.add_done_callback(taking.discard)

    def meet() -> None:
        try:
            passage, _ = listening.accept()
        except BlockingIOError:
            return
        passage.setblocking(False)
        passages.append(passage)
        loop.add_reader(passage.fileno(), receive, passage)

    listening.bind(str(path))
    listening.listen(1)
    listening.setblocking(False)
    try:
        yield lambda: loop.add_reader(listening.fileno(), meet)
    finally:
        loop.remove_reader(listening.fileno())
        listening.close()
        for passage in passages:
            loop.remove_reader(passage.fileno())
            passage.close()


__all__ = ["Job", "Worker"]
