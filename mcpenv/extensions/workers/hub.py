"""The hub: the state of the whole server. It counts slots, tracks chosen session ids and routes connections."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcpenv.errors import StartupError
from mcpenv.server.config import ServerConfig
from mcpenv.server.metrics.counters import samples_in
from mcpenv.server.metrics.exposition import Samples, added
from mcpenv.server.sessions.capacity import RETRY_AFTER_S, CapacityLimiter
from mcpenv.server.sessions.rate_limit import Rate
from mcpenv_client.errors import CapacityReached, SessionLost

from . import worker_id
from .acceptor import Entrance, Passage
from .messages import (
    Capacity,
    Claim,
    CollectMetrics,
    CountEpisodes,
    Done,
    Draining,
    End,
    EpisodeCounts,
    Evict,
    Failed,
    FindEvictable,
    FindSession,
    FreeSlot,
    GetCapacity,
    HasSession,
    Hello,
    HoldId,
    Hurry,
    LastUsed,
    Leaving,
    ListSessions,
    Location,
    Message,
    Metrics,
    Place,
    Quarantined,
    Ready,
    ReleaseId,
    Request,
    Reserve,
    Running,
    Sessions,
    SlotCounts,
    SpendRequest,
    TakeSlot,
    Verdict,
    WorkerTag,
)
from .routing import Belonging, Kind
from .rpc import Channel, ReplyT

logger = logging.getLogger("mcpenv")

HUB = "hub.sock"
"""The name of the hub's socket in the server's folder."""

EXPECTED_S = 5.0
"""Seconds for which a connection that opens a session counts as load before the session takes a slot."""


def counts_of(folder: Path, tag: str) -> Path:
    """Return the path of the file in which a worker counts."""
    return folder / f"{tag}.counts"


@dataclass(slots=True, eq=False)
class Worker:
    """The hub's record of a worker.

    Attributes:
        number: its place among the workers, from 0.
        passage: the socket for connections to it; None before it is ready.
        ready: True once it serves.
        draining: True once it takes no new sessions.
        leaving: True once it closes its sessions.
        slots: number of slots that it has.
        asking: number of slots that it waits for.
        quarantined: number of instances whose code cannot be stopped.
        expected: the expiry (monotonic seconds) of each expected session that has no slot yet.
        given: number of connections and sessions routed to it so far.
    """

    number: int
    tag: str
    channel: Channel
    passage: Passage | None = None
    ready: bool = False
    draining: bool = False
    leaving: bool = False
    slots: int = 0
    asking: int = 0
    quarantined: int = 0
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

    worker: Worker
    times: int = 0


class Hub:
    """The hub of one server.

    Args:
        folder: a folder for the server's sockets, private to its user.
        doors: the listening sockets.
        count: number of workers of the server.
        anonymous: True if agents need no token, so that the hub itself can route stateless MCP requests.

    Attributes:
        failure: why a worker could not start; None if none failed.
        started: set when all workers serve, or one could not start.
    """

    def __init__(
        self, folder: Path, doors: Sequence[socket.socket], config: ServerConfig, count: int, *, anonymous: bool
    ) -> None:
        self._folder = folder
        self._doors = doors
        self._count = count
        self._anonymous = anonymous
        self._workers: list[Worker] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._lives = [itertools.count(1) for _ in range(count)]
        self._chosen: dict[str, _Holding] = {}
        self._limit = 0
        self._counted: Samples = {}
        self._slots = CapacityLimiter(
            lambda: self._limit, queue_timeout_s=config.queue_timeout_s, max_quarantined=config.max_quarantined
        )
        self._rate = None if config.max_requests_per_s is None else Rate(config.max_requests_per_s)
        self._entrances: list[Entrance] = []
        self.failure: str | None = None
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve workers while the block runs."""
        server = await asyncio.start_unix_server(self._met, self._folder / HUB)
        self._entrances = [Entrance(number, door, self._pass_on) for number, door in enumerate(self._doors)]
        try:
            yield
        finally:
            for entrance in self._entrances:
                entrance.close()
            server.close()
            for task in self._serving:
                task.cancel()
            if self._serving:
                await asyncio.wait(self._serving)

    async def wait_started(self) -> None:
        """Wait until all workers serve.

        Raises:
            StartupError: a worker could not start.
        """
        await self.started.wait()
        if self.failure is not None:
            raise StartupError(self.failure)

    def end(self) -> None:
        """Ask all workers to shut down gracefully; called a second time, immediately."""
        for worker in self._workers:
            worker.channel.tell(End())

    def hurry(self) -> None:
        """Ask all workers not to wait for episodes when they shut down."""
        for worker in self._workers:
            worker.channel.tell(Hurry())

    # -- workers

    def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = min(set(range(self._count + len(self._workers))) - {worker.number for worker in self._workers})
        if number >= self._count:
            writer.close()  # all places are taken
            return
        handlers: dict[type[Message], Callable[[Any], Any]] = {}
        worker = Worker(number, worker_id.tag_of(number, next(self._lives[number])), Channel(reader, writer, handlers))
        handlers.update(self._handlers(worker))
        self._workers.append(worker)
        try:
            await worker.channel.serve()
        finally:
            self._gone(worker)

    def became_ready(self, worker: Worker, limit: int) -> None:
        """Handle a worker that has started to serve."""
        worker.passage = Passage(str(self._folder / f"{worker.tag}.connections"), self._pass_on)
        worker.ready = True
        self._limit = limit
        self._tell_tags()
        self._tell_slots()
        if self.failure is None and sum(each.ready for each in self._workers) == self._count:
            self.started.set()
        if self.started.is_set() and self.failure is None:
            for entrance in self._entrances:
                entrance.open()

    def failed(self, why: str) -> None:
        """Handle a worker that could not start."""
        if self.failure is not None:
            return  # all workers fail for the same reason
        if not self.started.is_set():
            self.failure = why
            self.started.set()
        else:
            logger.error("a worker could not be restarted: %s", why)

    def drains(self, worker: Worker) -> None:
        """Handle a worker that takes no new sessions."""
        worker.draining = True

    def left(self, worker: Worker) -> None:
        """Handle a worker that is shutting down."""
        worker.draining = worker.leaving = True
        self._shut_if_alone()

    def _gone(self, worker: Worker) -> None:
        """Handle a worker that has disconnected: free its slots and chosen ids."""
        self._workers.remove(worker)
        self._counted = added([self._counted, samples_in(counts_of(self._folder, worker.tag))])
        if worker.passage is not None:
            worker.passage.close()
        if worker.ready and not worker.leaving:
            logger.error(
                "worker %d ended unexpectedly; its %d sessions are lost, and the worker is restarted",
                worker.number,
                worker.slots,
            )
        for session_id in [each for each, holding in self._chosen.items() if holding.worker is worker]:
            del self._chosen[session_id]
        for _ in range(worker.slots):
            self._slots.free()
        self._slots.count_quarantined(-worker.quarantined)
        if worker.ready:
            self._tell_tags()
            self._tell_slots()
            self._shut_if_alone()

    def _shut_if_alone(self) -> None:
        # Agents connect to the episodes of a draining worker.
        if all(worker.leaving for worker in self._reachable()):
            for entrance in self._entrances:
                entrance.shut()

    def _tell_tags(self) -> None:
        tags = [worker.tag for worker in self._workers if worker.ready]
        for worker in self._workers:
            if worker.ready:
                worker.channel.tell(Running(tags=tags))

    def _tell_slots(self) -> None:
        counts = SlotCounts(taken=self._slots.taken, quarantined=self._slots.quarantined)
        for worker in self._workers:
            if worker.ready:
                worker.channel.tell(counts)

    # -- connections and sessions

    def _usable(self) -> list[Worker]:
        return [worker for worker in self._reachable() if not (worker.draining or worker.leaving)]

    def _reachable(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.passage is not None and not worker.passage.broken]

    def _pass_on(self, door: int, connection: socket.socket, belongs: Belonging) -> None:
        usable = self._usable() or self._reachable()
        if not usable:
            connection.close()
            return
        worker = self._owner(belongs, usable)
        if worker is None:
            worker = self.least_loaded(usable, expects=belongs.kind in (Kind.OPENS, Kind.CHOSEN))
        assert worker.passage is not None
        worker.passage.send(door, connection, belongs)

    def _owner(self, belongs: Belonging, among: list[Worker]) -> Worker | None:
        if belongs.kind is Kind.WORKER:
            return next((worker for worker in among if worker.tag == belongs.value), None)
        if belongs.kind is Kind.CHOSEN:
            holding = self._chosen.get(belongs.value)
            return None if holding is None or holding.worker not in among else holding.worker
        if belongs.kind is Kind.SERVICE and self._anonymous:
            return next((worker for worker in among if worker.number == 0), None)
        return None

    def least_loaded(self, among: list[Worker] | None = None, *, expects: bool) -> Worker:
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

    def claim(self, worker: Worker, session_id: str) -> Worker:
        """Return the worker of an id that a client chose; assign a free id to the asking worker.

        If it is the asking worker's, its claims are counted up. Release each claim with `release_id`.
        """
        holding = self._chosen.get(session_id)
        if holding is None:
            holding = self._chosen[session_id] = _Holding(worker)
        if holding.worker is worker:
            holding.times += 1
        return holding.worker

    def reserve(self, worker: Worker, session_id: str) -> bool:
        """Assign a free id to the worker and return True; return False if the id is taken."""
        if session_id in self._chosen:
            return False
        self._chosen[session_id] = _Holding(worker, 1)
        return True

    def release_id(self, worker: Worker, session_id: str) -> None:
        """Release one claim of the worker on the id."""
        holding = self._chosen.get(session_id)
        if holding is not None and holding.worker is worker:
            holding.times -= 1
            if holding.times == 0:
                del self._chosen[session_id]

    async def sessions(self, asking: Worker) -> Sessions:
        """Return the descriptions of all other workers' sessions."""
        answers = await self._ask(self._others(asking), ListSessions(), Sessions)
        return Sessions(sessions=[each for answer in answers if answer is not None for each in answer.sessions])

    async def recorded(self, asking: Worker) -> EpisodeCounts:
        """Return the other workers' counts of recorded episodes."""
        answers = await self._ask(self._others(asking), CountEpisodes(), EpisodeCounts)
        return EpisodeCounts(counts=[each for answer in answers if answer is not None for each in answer.counts])

    async def metrics(self, asking: Worker) -> Metrics:
        """Return the samples of the other workers, and the counters of the workers that are gone."""
        others = self._others(asking)
        answers = await self._ask(others, CollectMetrics(), Metrics)
        samples = [each for answer in answers if answer is not None for each in answer.samples]
        for worker, answer in zip(others, answers, strict=True):
            if answer is None and worker in self._workers:
                samples.append(samples_in(counts_of(self._folder, worker.tag)))  # it has just died
        return Metrics(samples=[*samples, self._counted])

    async def find(self, asking: Worker, session_id: str) -> Location:
        """Return the tag of the other worker that has a session with this id; None if there is none."""
        others = self._others(asking)
        answers = await self._ask(others, HasSession(session_id=session_id), Verdict)
        found = (each.tag for each, answer in zip(others, answers, strict=True) if answer is not None and answer.yes)
        return Location(tag=next(found, None))

    def _others(self, asking: Worker) -> list[Worker]:
        return [worker for worker in self._workers if worker.ready and worker is not asking]

    async def _ask(self, workers: list[Worker], request: Request, reply: type[ReplyT]) -> list[ReplyT | None]:
        """Return the answers of workers; None for those that disconnect meanwhile."""
        return await asyncio.gather(*(_or_none(worker, request, reply) for worker in workers))

    # -- slots

    async def take(self, worker: Worker, orchestrated: bool) -> None:
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
            self._slots.free()
            return
        worker.slots += 1
        self._tell_slots()

    def free(self, worker: Worker) -> None:
        """Release a slot of a worker."""
        worker.slots -= 1
        self._slots.free()
        self._tell_slots()

    def quarantine(self, worker: Worker, many: int) -> None:
        """Add to a worker's count of quarantined instances; ``many`` may be negative."""
        worker.quarantined += many
        self._slots.count_quarantined(many)
        self._tell_slots()

    async def capacity(self) -> Capacity:
        """Return the capacity of the whole server."""
        return Capacity(status=await self._slots.status())

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
            workers = [worker for worker in self._workers if worker.ready]
            answers = await self._ask(workers, FindEvictable(orchestrated=orchestrated), LastUsed)
            idle = [
                (answer.at, worker)
                for answer, worker in zip(answers, workers, strict=True)
                if answer is not None and answer.at is not None
            ]
            if not idle:
                return
            _, worker = min(idle, key=lambda each: each[0])
            await self._ask([worker], Evict(orchestrated=orchestrated), Done)

    # -- messages

    def _handlers(self, worker: Worker) -> dict[type[Message], Callable[[Any], Any]]:
        """Return the handlers of one worker's messages."""

        async def take(asked: TakeSlot) -> Done:
            await self.take(worker, asked.orchestrated)
            return Done()

        def spend(asked: SpendRequest) -> Done:
            self.spend(asked.agent)
            return Done()

        return {
            Hello: lambda _: WorkerTag(tag=worker.tag),
            Ready: lambda ready: self.became_ready(worker, ready.limit),
            Failed: lambda failed: self.failed(failed.reason),
            Draining: lambda _: self.drains(worker),
            Leaving: lambda _: self.left(worker),
            Claim: lambda asked: WorkerTag(tag=self.claim(worker, asked.session_id).tag),
            Reserve: lambda asked: Verdict(yes=self.reserve(worker, asked.session_id)),
            HoldId: lambda notice: self.claim(worker, notice.session_id),
            ReleaseId: lambda notice: self.release_id(worker, notice.session_id),
            Place: lambda _: WorkerTag(tag=self.least_loaded(expects=True).tag),
            ListSessions: lambda _: self.sessions(worker),
            CountEpisodes: lambda _: self.recorded(worker),
            CollectMetrics: lambda _: self.metrics(worker),
            FindSession: lambda asked: self.find(worker, asked.session_id),
            TakeSlot: take,
            FreeSlot: lambda _: self.free(worker),
            Quarantined: lambda notice: self.quarantine(worker, notice.change),
            GetCapacity: lambda _: self.capacity(),
            SpendRequest: spend,
        }


async def _or_none(worker: Worker, request: Request, reply: type[ReplyT]) -> ReplyT | None:
    try:
        return await worker.channel.call(request, reply)
    except SessionLost:
        return None
