"""The hub: what is one for the whole server. The slots, who has which session, and where connections go."""

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

from mcpenv_client.errors import CapacityReached, SessionLost

from ..config import ServerConfig
from ..errors import StartupError
from ..rate import Rate
from ..slots import RETRY_AFTER_S, Slots
from . import tag
from .belonging import Belonging, Kind
from .channel import Channel
from .entrance import Entrance, Passage

logger = logging.getLogger("mcpenv")

HUB = "hub.sock"
"""The name of the hub's socket in the server's folder."""

EXPECTED_S = 5.0
"""Seconds for which a session is expected of a connection that begins like one."""


@dataclass(slots=True, eq=False)
class Worker:
    """What the hub knows of a worker.

    Attributes:
        number: its place.
        ready: it serves.
        slots: how many it has.
        asking: how many it waits for.
        quarantined: instances left in code that cannot be stopped.
        expected: until when each session is expected that has been begun there and has no slot yet.
        given: connections and sessions so far.
    """

    number: int
    tag: str
    channel: Channel
    passage: Passage | None = None
    ready: bool = False
    leaving: bool = False
    slots: int = 0
    asking: int = 0
    quarantined: int = 0
    expected: deque[float] = field(default_factory=deque)
    given: int = 0

    @property
    def load(self) -> tuple[int, int, int]:
        """The smaller, the sooner it gets the next session."""
        now = time.monotonic()
        while self.expected and self.expected[0] <= now:
            self.expected.popleft()
        return self.slots + self.asking + len(self.expected), self.given, self.number


@dataclass(slots=True)
class _Holding:
    """Whose an id is that a client chose, and how many say so: sockets, and the session."""

    worker: Worker
    times: int = 0


class Hub:
    """The hub of one server.

    Args:
        folder: the server's own, for its sockets; nobody else's.
        doors: sockets that listen.
        count: how many workers there are when all run.
        anonymous: agents need no token, so that who they are is not for a worker to find out.

    Attributes:
        failure: why a worker could not start.
        started: all workers serve, or one could not start.
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
        self._slots = Slots(
            lambda: self._limit, queue_timeout_s=config.queue_timeout_s, max_quarantined=config.max_quarantined
        )
        self._rate = None if config.max_requests_per_s is None else Rate(config.max_requests_per_s)
        self._entrances: list[Entrance] = []
        self.failure: str | None = None
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve workers as they come and go."""
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
        """Return when all workers serve.

        Raises:
            StartupError: one could not start.
        """
        await self.started.wait()
        if self.failure is not None:
            raise StartupError(self.failure)

    def end(self) -> None:
        """Have all workers end in order; a second time, at once."""
        for worker in self._workers:
            worker.channel.tell("end")

    # -- workers

    def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = min(set(range(self._count + len(self._workers))) - {worker.number for worker in self._workers})
        if number >= self._count:
            writer.close()  # there are enough
            return
        handlers: dict[str, Callable[..., Any]] = {}
        worker = Worker(number, tag.tag_of(number, next(self._lives[number])), Channel(reader, writer, handlers))
        handlers.update(_Desk(self, worker).handlers)
        self._workers.append(worker)
        try:
            await worker.channel.serve()
        finally:
            self._gone(worker)

    def became_ready(self, worker: Worker, limit: int) -> None:
        """A worker serves."""
        worker.passage = Passage(str(self._folder / f"{worker.tag}.connections"), self._pass_on)
        worker.ready = True
        self._limit = limit
        self._tell_tags()
        worker.channel.tell("slots", self._slots.taken, self._slots.quarantined)
        if self.failure is None and sum(each.ready for each in self._workers) == self._count:
            self.started.set()
        if self.started.is_set() and self.failure is None:
            for entrance in self._entrances:
                entrance.open()

    def failed(self, why: str) -> None:
        """A worker could not start."""
        if self.failure is not None:
            return  # it is the same for all
        if not self.started.is_set():
            self.failure = why
            self.started.set()
        else:
            logger.error("a worker could not be started anew: %s", why)

    def left(self, worker: Worker) -> None:
        """A worker is about to end."""
        worker.leaving = True
        self._shut_if_alone()

    def _gone(self, worker: Worker) -> None:
        """A worker has ended, in order or not: what it had is free."""
        self._workers.remove(worker)
        if worker.passage is not None:
            worker.passage.close()
        if worker.ready and not worker.leaving:
            logger.error(
                "worker %d ended unexpectedly; its %d sessions are lost, and another one is started",
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
        if not self._usable():
            for entrance in self._entrances:
                entrance.shut()

    def _tell_tags(self) -> None:
        tags = [worker.tag for worker in self._workers if worker.ready]
        for worker in self._workers:
            if worker.ready:
                worker.channel.tell("tags", tags)

    def _tell_slots(self) -> None:
        for worker in self._workers:
            if worker.ready:
                worker.channel.tell("slots", self._slots.taken, self._slots.quarantined)

    # -- connections and sessions

    def _usable(self) -> list[Worker]:
        return [worker for worker in self._reachable() if not worker.leaving]

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
        """The worker for what comes next.

        Args:
            expects: it is a session.

        Raises:
            CapacityReached: there is none.
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
        """Whose that id is, which a client chose: if nobody's, the worker's that asks. One more says so if it is."""
        holding = self._chosen.get(session_id)
        if holding is None:
            holding = self._chosen[session_id] = _Holding(worker)
        if holding.worker is worker:
            holding.times += 1
        return holding.worker

    def reserve(self, worker: Worker, session_id: str) -> bool:
        """Whether that id was nobody's; now it is the worker's."""
        if session_id in self._chosen:
            return False
        self._chosen[session_id] = _Holding(worker, 1)
        return True

    def let_go(self, worker: Worker, session_id: str) -> None:
        """One less says that the id is that worker's."""
        holding = self._chosen.get(session_id)
        if holding is not None and holding.worker is worker:
            holding.times -= 1
            if holding.times == 0:
                del self._chosen[session_id]

    async def sessions(self, asking: Worker) -> list[dict[str, Any]]:
        """What there is to know of the sessions of all others."""
        return [each for sessions in await self._ask(asking, "sessions") for each in sessions]

    async def recorded(self, asking: Worker) -> list[dict[str, int]]:
        """What became of the episodes of each of the others."""
        return [counts for counts in await self._ask(asking, "recorded") if counts is not None]

    async def whose(self, asking: Worker, session_id: str) -> str | None:
        """The tag of the other worker that has a session of that id."""
        others = [worker for worker in self._workers if worker.ready and worker is not asking]
        has = await self._ask(asking, "has", session_id)
        return next((worker.tag for worker, it_has in zip(others, has, strict=True) if it_has), None)

    async def _ask(self, asking: Worker, name: str, *arguments: Any) -> list[Any]:
        """What all others answer; those that end meanwhile have nothing."""
        others = [worker for worker in self._workers if worker.ready and worker is not asking]
        return await asyncio.gather(*(_or_nothing(worker, name, arguments) for worker in others))

    # -- slots

    async def take(self, worker: Worker, orchestrated: bool) -> None:
        """Take a slot for a worker.

        Raises:
            CapacityReached: there is none.
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
        """A worker gives a slot back."""
        worker.slots -= 1
        self._slots.free()
        self._tell_slots()

    def quarantine(self, worker: Worker, many: int) -> None:
        """A worker has so many more instances, or fewer, in code that cannot be stopped."""
        worker.quarantined += many
        self._slots.count_quarantined(many)
        self._tell_slots()

    async def occupancy(self) -> tuple[int, int, int, int, bool]:
        """The fields of `mcpenv.slots.Occupancy`."""
        slots = self._slots
        return slots.taken, slots.limit, slots.waiting, slots.quarantined, slots.open

    def spend(self, agent: str) -> None:
        """Count a request of an agent.

        Raises:
            RateLimited: it sent too many.
        """
        if self._rate is not None:
            self._rate.spend(agent)

    async def _make_room(self, orchestrated: bool) -> None:
        """Have the session end that nobody misses, the one not used for longest, if there is one."""
        while self._slots.full:
            workers = [worker for worker in self._workers if worker.ready]
            used = await asyncio.gather(*(_or_nothing(worker, "gives_way", (orchestrated,)) for worker in workers))
            idle = [(when, worker) for when, worker in zip(used, workers, strict=True) if isinstance(when, float)]
            if not idle:
                return
            await _or_nothing(min(idle, key=lambda each: each[0])[1], "give_way", (orchestrated,))


class _Desk:
    """What one worker may ask of the hub."""

    def __init__(self, hub: Hub, worker: Worker) -> None:
        def of_worker(method: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *arguments: method(worker, *arguments)

        self.handlers: dict[str, Callable[..., Any]] = {
            "hello": lambda: worker.tag,
            "ready": of_worker(hub.became_ready),
            "failed": hub.failed,
            "left": of_worker(hub.left),
            "claim": lambda session_id: hub.claim(worker, session_id).tag,
            "reserve": of_worker(hub.reserve),
            "hold": lambda session_id: hub.claim(worker, session_id) and None,
            "let_go": of_worker(hub.let_go),
            "place": lambda: hub.least_loaded(expects=True).tag,
            "sessions": of_worker(hub.sessions),
            "recorded": of_worker(hub.recorded),
            "whose": of_worker(hub.whose),
            "take": of_worker(hub.take),
            "free": of_worker(hub.free),
            "quarantined": of_worker(hub.quarantine),
            "occupancy": hub.occupancy,
            "spend": hub.spend,
        }


async def _or_nothing(worker: Worker, name: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return await worker.channel.call(name, *arguments)
    except SessionLost:
        return [] if name == "sessions" else None
