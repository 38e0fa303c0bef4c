"""The hub: the state of the whole server. It counts slots, tracks chosen session ids and routes connections."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcpenv.server.config import ServerConfig
from mcpenv.server.metrics.counters import samples_in
from mcpenv.server.metrics.exposition import Samples, added
from mcpenv.server.sessions.capacity import RETRY_AFTER_S, CapacityLimiter
from mcpenv.server.sessions.rate_limit import Rate
from mcpenv_client.errors import CapacityReached, SessionLost

from . import worker_id
from .acceptor import MAX_LOOK, Acceptor, ConnectionSender, destination_of
from .channel import Channel, Handlers
from .routing import Destination, Kind

logger = logging.getLogger("mcpenv")

EXPECTED_S = 5.0
"""Seconds for which a connection that opens a session counts as load before the session takes a slot."""

BEAT_S = 1.0
"""Seconds between two questions to a worker whether its event loop runs."""

SILENT_S = 3.0
"""Seconds without an answer after which a worker is silent: it gets no connections, and others answer for it."""

KILLED_S = 30.0
"""Seconds without an answer after which a worker is killed and replaced."""

ASK_S = 3.0
"""Seconds in which a worker must answer a question about all workers. One that does not is left out."""

STRANDED_S = 4.0
"""Seconds for which a connection waits if there is no worker for it. Then it is refused with status 503."""


_TOLD = json.dumps(CapacityReached("this server has no worker at the moment", retry_after_s=RETRY_AFTER_S).to_wire())
_REFUSAL = (
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    f"Retry-After: {RETRY_AFTER_S:g}\r\nContent-Length: {len(_TOLD)}\r\n\r\n{_TOLD}"
).encode()


def counts_of(folder: Path, tag: str) -> Path:
    """Return the path of the file in which a worker counts."""
    return folder / f"{tag}.counts"


@dataclass(slots=True, eq=False)
class WorkerState:
    """The hub's record of a worker.

    Attributes:
        number: its place among the workers, from 0.
        end: the hub's end of `channel`.
        connections: passes clients' connections to it.
        ready: True once it serves.
        draining: True once it takes no new sessions.
        leaving: True once it closes its sessions.
        slots: number of slots that it has.
        agents: number of these for sessions without an orchestrator.
        asking: number of slots that it waits for.
        quarantined: number of instances whose code cannot be stopped.
        process: the id of its process.
        silent: True while its event loop does not answer: it is blocked, or the process is stopped.
        watching: the task that finds that out.
        expected: the expiry (monotonic seconds) of each expected session that has no slot yet.
        given: number of connections and sessions routed to it so far.
    """

    number: int
    tag: str
    end: socket.socket
    channel: Channel
    connections: ConnectionSender
    ready: bool = False
    draining: bool = False
    leaving: bool = False
    slots: int = 0
    agents: int = 0
    asking: int = 0
    quarantined: int = 0
    process: int = 0
    silent: bool = False
    watching: asyncio.Task[None] | None = None
    expected: deque[float] = field(default_factory=deque)
    given: int = 0

    @property
    def load(self) -> tuple[int, int, int]:
        """The worker's load; the worker with the smallest gets the next session."""
        now = time.monotonic()
        while self.expected and self.expected[0] <= now:
            self.expected.popleft()
        return self.slots + self.asking + len(self.expected), self.given, self.number


@dataclass(slots=True)
class _Holding:
    """The worker of an id that a client chose, and its number of claims, by sockets and by the session."""

    worker: WorkerState
    times: int = 0


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's ends of its connections to the hub.

    Attributes:
        tag: the worker's tag.
        channel: the socket for calls.
        connections: the socket for clients' connections.
    """

    tag: str
    channel: socket.socket
    connections: socket.socket

    def close(self) -> None:
        """Close both, in a process that has passed them on."""
        self.channel.close()
        self.connections.close()


class Hub:
    """The hub of one server.

    Args:
        folder: the folder in which the workers count.
        doors: the listening sockets.
        count: number of workers of the server.
        anonymous: True if agents need no token, so that the hub itself can route stateless MCP requests.

    Attributes:
        failure: why a worker could not start; None if none failed.
        started: set when all workers serve, or one could not start.
        kill: ends the process of a worker, by its tag.
    """

    def __init__(
        self, folder: Path, doors: Sequence[socket.socket], config: ServerConfig, count: int, *, anonymous: bool
    ) -> None:
        self._folder = folder
        self._doors = doors
        self._count = count
        self._anonymous = anonymous
        self._ends_within_s = config.shutdown_timeout_s
        self._drain_s = config.drain_s
        self._expired = False
        self._restarts = True
        self._workers: list[WorkerState] = []
        self._service: WorkerState | None = None
        self._stranded: dict[socket.socket, tuple[int, asyncio.TimerHandle]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._lives = [itertools.count(1) for _ in range(count)]
        self._chosen: dict[str, _Holding] = {}
        self._limit = 0
        self._counted: Samples = {}
        self._slots = CapacityLimiter(
            lambda: self._limit,
            queue_timeout_s=config.queue_timeout_s,
            max_quarantined=config.max_quarantined,
            reserves=config.reserves_sessions,
        )
        self._rate = None if config.max_requests_per_s is None else Rate(config.max_requests_per_s)
        self._acceptors: list[Acceptor] = []
        self.kill: Callable[[str], None] = lambda tag: None
        self.failure: str | None = None
        self.started = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve workers and accept connections while the block runs."""
        self._acceptors = [Acceptor(number, door, self._pass_on) for number, door in enumerate(self._doors)]
        try:
            yield
        finally:
            for acceptor in self._acceptors:
                acceptor.close()
            for worker in self._workers:
                worker.channel.close()
            if self._serving:
                await asyncio.wait(self._serving)
            for connection, (_, refusing) in self._stranded.items():
                refusing.cancel()
                connection.close()

    def end(self) -> None:
        """Ask all workers to shut down gracefully; called a second time, immediately."""
        for worker in self._workers:
            worker.channel.tell("end")
        self._expire()

    def replace(self, *, hurry: bool) -> None:
        """Ask all workers to begin what SIGTERM begins in them.

        Args:
            hurry: do not wait for episodes.
        """
        for worker in self._workers:
            worker.channel.tell("replace", hurry)
        self._restarts = False
        for worker in self._workers:
            self._kill_if_needless(worker)
        limit_s = self._ends_within_s + (0 if hurry else self._drain_s)
        asyncio.get_running_loop().call_later(limit_s, self._expire)

    def _expire(self) -> None:
        """From now on, kill workers that cannot end by themselves."""
        self._expired = True
        for worker in self._workers:
            if worker.silent or not worker.ready:
                self.kill(worker.tag)

    # -- workers

    async def add(self, number: int) -> Seat:
        """Return the seat of a new worker, which is to be started.

        Args:
            number: its place among the workers.
        """
        (end, channel), (sending, receiving) = socket.socketpair(), socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=end)
        tag = worker_id.tag_of(number, next(self._lives[number]))
        handlers: dict[str, Callable[..., Any]] = {}
        worker = WorkerState(
            number,
            tag,
            end,
            Channel(reader, writer, handlers),
            ConnectionSender(sending, receiving.dup(), self._pass_on_again),
        )
        handlers.update(self._handlers(worker))
        self._workers.append(worker)
        task = asyncio.ensure_future(self._serve(worker))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return Seat(tag, channel, receiving)

    def ended(self, seat: Seat) -> None:
        """Handle the end of a worker's process. Forks of user code may keep its sockets open."""
        for worker in self._workers:
            if worker.tag == seat.tag:
                with contextlib.suppress(OSError):  # the end of its channel came first
                    worker.end.shutdown(socket.SHUT_RD)

    async def _serve(self, worker: WorkerState) -> None:
        try:
            await worker.channel.serve()
        finally:
            if worker.watching is not None:
                worker.watching.cancel()
            self._gone(worker)

    async def _watch(self, worker: WorkerState) -> None:
        """Find out if the event loop of a worker is blocked, or its process stopped, and kill it at `KILLED_S`."""
        while True:
            await asyncio.sleep(BEAT_S)
            beat = asyncio.ensure_future(worker.channel.call("beat"))
            beat.add_done_callback(lambda beat: beat.cancelled() or beat.exception())
            began = time.monotonic()
            if await _is_done(beat, SILENT_S):
                continue
            self._silenced(worker)
            if not await _is_done(beat, KILLED_S - SILENT_S):
                logger.error("worker %d did not answer for %g s, and is killed", worker.number, KILLED_S)
                self.kill(worker.tag)
                return
            worker.silent = False
            logger.warning("worker %d answers again, after %.1f s", worker.number, time.monotonic() - began)
            self._available()

    def _silenced(self, worker: WorkerState) -> None:
        logger.error(
            "worker %d (process %d) does not answer: its event loop is blocked, or it is stopped. It gets no "
            "new clients; its %d sessions wait, and it is killed after %g s",
            worker.number,
            worker.process,
            worker.slots,
            KILLED_S,
        )
        worker.silent = True
        worker.connections.take_back()
        self._tell()
        self._kill_if_needless(worker)

    def _kill_if_needless(self, worker: WorkerState) -> None:
        """At the end of the server, kill a silent worker that nobody waits for: it has no sessions to close."""
        idle = not self._restarts and not worker.slots and not worker.leaving
        if worker.silent and (self._expired or idle):
            self.kill(worker.tag)

    def became_ready(self, worker: WorkerState, limit: int, process: int) -> None:
        """Handle a worker that has started to serve.

        Args:
            limit: the number of slots of the server.
            process: the id of its process.
        """
        worker.ready = True
        worker.process = process
        worker.watching = asyncio.ensure_future(self._watch(worker))
        self._limit = limit
        self._available()
        if self.failure is None and sum(each.ready for each in self._workers) == self._count:
            self.started.set()
        if self.started.is_set() and self.failure is None:
            for acceptor in self._acceptors:
                acceptor.open()

    def failed(self, worker: WorkerState, why: str) -> None:
        """Handle a worker that could not start."""
        if self.failure is not None:
            return  # all workers fail for the same reason
        if not self.started.is_set():
            self.failure = why
            self.started.set()
        else:
            logger.error("a worker could not be restarted: %s", why)

    def drains(self, worker: WorkerState) -> None:
        """Handle a worker that takes no new sessions."""
        worker.draining = True

    def left(self, worker: WorkerState) -> None:
        """Handle a worker that is shutting down."""
        worker.draining = worker.leaving = True
        self._shut_if_alone()

    def _gone(self, worker: WorkerState) -> None:
        """Handle a worker that has disconnected: free its slots and chosen ids."""
        self._workers.remove(worker)
        self._counted = added([self._counted, samples_in(counts_of(self._folder, worker.tag))])
        worker.connections.close()
        if worker.ready and not worker.leaving:
            restarted = "; it is restarted" if self._restarts else ""
            logger.error("worker %d ended unexpectedly, with %d sessions%s", worker.number, worker.slots, restarted)
        for session_id in [each for each, holding in self._chosen.items() if holding.worker is worker]:
            del self._chosen[session_id]
        for number in range(worker.slots):
            self._slots.free(orchestrated=number >= worker.agents)
        self._slots.count_quarantined(-worker.quarantined)
        if worker.ready:
            self._tell()
            self._shut_if_alone()

    def _shut_if_alone(self) -> None:
        # Agents connect to the episodes of a draining worker.
        if all(worker.leaving for worker in self._reachable()):
            for acceptor in self._acceptors:
                acceptor.shut()

    def _available(self) -> None:
        """Handle a worker that has begun to serve, or answers again."""
        self._tell()
        for connection, (door, refusing) in list(self._stranded.items()):
            refusing.cancel()
            del self._stranded[connection]
            self._pass_on_again(door, connection)

    def _tell(self) -> None:
        """Tell all workers which ones serve, and the counts of slots."""
        workers = self._ready()
        if self._service not in workers or self._service.silent:
            # It changes only now: the session that anonymous clients share is lost, or cannot be used.
            self._service = min(self._usable(), key=lambda each: each.number, default=None)
        tags, silent = [each.tag for each in workers], [each.tag for each in workers if each.silent]
        service = None if self._service is None else self._service.tag
        for worker in workers:
            if not worker.silent:
                worker.channel.tell("counts", tags, silent, service, self._slots.taken, self._slots.quarantined)

    # -- connections and sessions

    def _ready(self) -> list[WorkerState]:
        return [worker for worker in self._workers if worker.ready]

    def _usable(self) -> list[WorkerState]:
        return [worker for worker in self._reachable() if not (worker.draining or worker.leaving)]

    def _reachable(self) -> list[WorkerState]:
        return [worker for worker in self._ready() if not (worker.connections.broken or worker.silent)]

    def _pass_on_again(self, door: int, connection: socket.socket) -> None:
        self._pass_on(door, connection, destination_of(connection))

    def _pass_on(self, door: int, connection: socket.socket, belongs: Destination) -> None:
        usable = self._usable() or self._reachable()
        if not usable:
            refusing = asyncio.get_running_loop().call_later(STRANDED_S, self._refuse, connection)
            self._stranded[connection] = (door, refusing)
            return
        worker = self._owner(belongs, usable)
        if worker is None:
            worker = self.least_loaded(usable, expects=belongs.kind in (Kind.OPENS, Kind.CHOSEN))
        worker.connections.send(door, connection)

    def _refuse(self, connection: socket.socket) -> None:
        """Answer a connection for which there is no worker."""
        del self._stranded[connection]
        with connection, contextlib.suppress(OSError):
            connection.recv(MAX_LOOK)  # to close with unread data would discard the answer
            connection.send(_REFUSAL)

    def _owner(self, belongs: Destination, among: list[WorkerState]) -> WorkerState | None:
        if belongs.kind is Kind.WORKER:
            return next((worker for worker in among if worker.tag == belongs.value), None)
        if belongs.kind is Kind.CHOSEN:
            holding = self._chosen.get(belongs.value)
            return None if holding is None or holding.worker not in among else holding.worker
        if belongs.kind is Kind.SERVICE and self._anonymous:
            return self._service if self._service in among else None
        return None

    def least_loaded(self, among: list[WorkerState] | None = None, *, expects: bool) -> WorkerState:
        """Return the least loaded worker, and count a connection or session for it.

        Args:
            expects: True if a session follows.

        Raises:
            CapacityReached: there is no worker.
        """
        among = self._usable() if among is None else among
        if not among:
            raise CapacityReached("this server has no worker at the moment", retry_after_s=RETRY_AFTER_S)
        worker = min(among, key=lambda each: each.load)
        worker.given += 1
        if expects:
            worker.expected.append(time.monotonic() + EXPECTED_S)
        return worker

    def claim(self, worker: WorkerState, session_id: str) -> WorkerState:
        """Return the worker of an id that a client chose; assign a free id to the asking worker.

        If it is the asking worker's, its claims are counted up. Release each claim with `release_id`.
        """
        holding = self._chosen.get(session_id)
        if holding is None:
            holding = self._chosen[session_id] = _Holding(worker)
        if holding.worker is worker:
            holding.times += 1
        return holding.worker

    def reserve(self, worker: WorkerState, session_id: str) -> bool:
        """Assign a free id to the worker and return True; return False if the id is taken."""
        if session_id in self._chosen:
            return False
        self._chosen[session_id] = _Holding(worker, 1)
        return True

    def release_id(self, worker: WorkerState, session_id: str) -> None:
        """Release one claim of the worker on the id."""
        holding = self._chosen.get(session_id)
        if holding is not None and holding.worker is worker:
            holding.times -= 1
            if holding.times == 0:
                del self._chosen[session_id]

    async def ask_others(self, asking: WorkerState, name: str, *args: Any) -> list[Any]:
        """Return the answers of all other workers to a question, with None for each that does not answer."""
        others = [worker for worker in self._ready() if worker is not asking]
        answers = await self._ask(others, name, *args)
        return [answers.get(worker) for worker in others]

    async def metrics(self, asking: WorkerState) -> list[Samples]:
        """Return the samples of the other workers, and the counters of the workers that are gone."""
        others = [worker for worker in self._ready() if worker is not asking]
        answers = await self._ask(others, "metrics")
        # A worker that does not answer has counters in its file; one that has ended meanwhile is counted in the sum.
        silent = [worker for worker in others if worker not in answers and worker in self._workers]
        samples = [samples_in(counts_of(self._folder, worker.tag)) for worker in silent]
        closed = sum(acceptor.closed for acceptor in self._acceptors)
        of_hub = {"mcpenv_workers_silent": len(silent), "mcpenv_connections_closed_total": closed}
        return [*answers.values(), *samples, self._counted, of_hub]

    async def _ask(self, workers: list[WorkerState], name: str, *args: Any) -> dict[WorkerState, Any]:
        """Return the answers of the workers that answer in `ASK_S` seconds. Silent ones are not asked."""
        answers: dict[WorkerState, Any] = {}

        async def ask(worker: WorkerState) -> None:
            with contextlib.suppress(SessionLost, TimeoutError):
                async with asyncio.timeout(ASK_S):
                    answers[worker] = await worker.channel.call(name, *args)

        await asyncio.gather(*(ask(worker) for worker in workers if not worker.silent))
        return answers

    # -- slots

    async def take(self, worker: WorkerState, orchestrated: bool) -> None:
        """Acquire a slot for a worker.

        Raises:
            CapacityReached: no slot became free in time, or no slots are given.
        """
        if worker.expected:
            worker.expected.popleft()
        worker.asking += 1
        try:
            await self._slots.take(self._make_room, orchestrated)
        finally:
            worker.asking -= 1
        if worker not in self._workers:
            self._slots.free(orchestrated)
            return
        worker.slots += 1
        worker.agents += not orchestrated
        self._tell()

    def free(self, worker: WorkerState, orchestrated: bool) -> None:
        """Release a slot of a worker."""
        worker.slots -= 1
        worker.agents -= not orchestrated
        self._slots.free(orchestrated)
        self._tell()

    def quarantine(self, worker: WorkerState, many: int) -> None:
        """Add to a worker's count of quarantined instances; ``many`` may be negative."""
        worker.quarantined += many
        self._slots.count_quarantined(many)
        self._tell()

    async def capacity(self) -> dict[str, Any]:
        """Return the capacity of the whole server."""
        return (await self._slots.status()).model_dump(mode="json")

    def spend(self, agent: str) -> None:
        """Count a request of an agent.

        Raises:
            RateLimited: the agent exceeded its rate.
        """
        if self._rate is not None:
            self._rate.spend(agent)

    async def _make_room(self, orchestrated: bool) -> None:
        """Evict the least recently used session that may be evicted, until a slot is free or none is left."""
        while self._slots.full:
            answers = await self._ask(self._ready(), "evictable", orchestrated)
            idle = {worker: last_used for worker, last_used in answers.items() if last_used is not None}
            if not idle:
                return
            await self._ask([min(idle, key=idle.__getitem__)], "evict", orchestrated)

    # -- calls

    def _handlers(self, worker: WorkerState) -> Handlers:
        """Return the functions that one worker may call."""
        of_worker: dict[str, Callable[..., Any]] = {
            "ready": self.became_ready,
            "failed": self.failed,
            "draining": self.drains,
            "leaving": self.left,
            "claim": lambda *asked: self.claim(*asked).tag,
            "reserve": self.reserve,
            "release_id": self.release_id,
            "others": self.ask_others,
            "metrics": self.metrics,
            "take": self.take,
            "free": self.free,
            "quarantine": self.quarantine,
        }
        return {
            "place": lambda: self.least_loaded(expects=True).tag,
            "capacity": self.capacity,
            "spend": self.spend,
            **{name: functools.partial(function, worker) for name, function in of_worker.items()},
        }


async def _is_done(future: asyncio.Future[Any], timeout_s: float) -> bool:
    """Return True if a future is done in time."""
    await asyncio.wait([future], timeout=timeout_s)
    if not future.done():
        await asyncio.sleep(0.1)  # this process itself may have been stopped, and the answer be here unread
    return future.done()
