"""A model of leases, journals and clients: servers stop, die and write late, stores fail, clients repeat requests.

What must hold after each step:

- the steps of the journal are contiguous, and a step that was answered never changes;
- a request of this episode or the last one that was answered has that answer in the store, and gets no other one,
  whichever server it is sent to;
- fencing numbers only grow, and one of them has one server: nobody else writes with it, nor with an older one.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from mcpenv.extensions.durable.sqlite_store import SqliteStore
from mcpenv.extensions.durable.store import (
    Claimant,
    Entry,
    Fenced,
    KeptSession,
    Owned,
    Settings,
    Store,
    StoreError,
    open_store,
)
from mcpenv.extensions.durable.writing import SessionWriter
from mcpenv_client import SessionLost

ID = "session"
LEASE_S = 10.0
SERVERS = 3

Faults = st.lists(st.sampled_from(["before", "after", "none"]), max_size=4)
"""Of a server's next calls of the store: a failure before the change, after it, or none."""


class FailingStore:
    """A store that fails as it is told to, and tells the model of each write that it took."""

    def __init__(self, store: Store, written: Callable[[int], None]) -> None:
        self.store = store
        self.faults: list[str] = []
        self._written = written

    def __getattr__(self, name: str) -> Any:
        called = getattr(self.store, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            fault = self.faults.pop(0) if self.faults else "none"
            if fault == "before":
                raise StoreError("refused")
            result = await called(*arguments, **named)
            if name == "append":
                self._written(arguments[1])
            elif name == "begin":
                self._written(arguments[0].fence)
            if fault == "after":
                raise StoreError("the answer was lost")
            return result

        return call


class ServerModel:
    """What a server has in memory.

    Attributes:
        owner: its id in the store, another one after each start.
        stopped: by SIGSTOP.
        writer: of the session; None if it has none.
        steps: how many steps the session has here.
        replies: of the session here, by request id.
    """

    def __init__(self, number: int, store: FailingStore) -> None:
        self.number = number
        self.store = store
        self.starts = 0
        self.stopped = False
        self.leave()

    @property
    def claimant(self) -> Claimant:
        return Claimant(self.owner, "", "[]")

    @property
    def owner(self) -> str:
        return f"server-{self.number}-{self.starts}"

    def leave(self) -> None:
        self.writer: SessionWriter | None = None
        self.steps = 0
        self.replies: dict[str, str] = {}

    def has(self, kept: KeptSession, settings: Settings) -> SessionWriter:
        self.writer = SessionWriter(self.store, settings, kept, lambda why: None)
        return self.writer


class Fleet(RuleBasedStateMachine):
    """Servers, one session, and its client."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.settings = Settings("", patience_s=0.03)
        self.open()
        self.current = 0  # the server whose write the store sees
        self.servers = [ServerModel(number, FailingStore(self.opened(), self.wrote)) for number in range(SERVERS)]
        self.request, self.episode, self.fence = 0, 0, 0
        self.reset = True
        self.writers: dict[int, str] = {}
        self.answered: dict[str, str] = {}
        self.last_episode: set[str] = set()  # the requests that were answered in it
        self.current_episode = {"reset-0"}

    # -- the store, and its time

    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.now = 1_000_000.0

    def opened(self) -> Store:
        return SqliteStore(str(Path(self.folder.name)), clock=lambda: self.now)

    def lease_ends(self, server: ServerModel) -> None:
        """Let time pass, in which all servers renew their leases, but this one."""
        self.now += LEASE_S + 1
        for other in self.servers:
            if other is not server and not other.stopped:
                self.did(other.store.store.beat(other.owner, LEASE_S))

    def teardown(self) -> None:
        for server in self.servers:
            self.did(server.store.store.close())
        self.loop.close()
        self.folder.cleanup()

    def did(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def wrote(self, fence: int) -> None:
        writer = self.servers[self.current].owner
        assert self.writers.setdefault(fence, writer) == writer, "two servers wrote with one fencing number"
        assert fence == max(self.writers), "a fenced server wrote"

    # -- what happens

    @initialize()
    def begin(self) -> None:
        for server in self.servers:
            self.did(server.store.beat(server.owner, LEASE_S))
        self.current, first = 0, self.servers[0]
        writer = first.has(KeptSession(ID, "secret", "[]", "h", "", b"{}", owner=first.owner), self.settings)
        self.did(first.store.begin(writer.kept, [Entry(0, None, "reset-0", b"d", "began-0")], new=True))
        first.replies["reset-0"] = self.answered["reset-0"] = "began-0"

    @rule(number=st.integers(0, SERVERS - 1), faults=Faults, arrives=st.booleans())
    def ask(self, number: int, faults: list[str], arrives: bool) -> None:
        """Send the client's request, or the last one again. Whether the answer arrives decides on the next request."""
        server = self.servers[number]
        if server.stopped:
            return
        server.store.faults = list(faults)
        self.current = number
        request = f"reset-{self.episode}" if self.reset else f"step-{self.request}"
        try:
            self.did(self.answer(server, request))
        except (Owned, StoreError):
            return
        except SessionLost:
            server.leave()
            return
        finally:
            server.store.faults = []
        reply = server.replies[request]
        assert self.answered.setdefault(request, reply) == reply, "a request was answered twice, differently"
        if self.reset and request not in self.current_episode:
            self.last_episode, self.current_episode = self.current_episode, set()
        self.current_episode.add(request)
        if arrives:
            self.request, self.reset = self.request + 1, False

    async def answer(self, server: ServerModel, request: str) -> None:
        if server.writer is None:
            kept = await server.store.claim(ID, server.claimant, "secret")
            assert kept is not None
            assert kept.fence > self.fence
            entries = await server.store.entries(ID)
            server.has(kept, self.settings)
            server.steps = sum(entry.is_step for entry in entries)
            server.replies = {entry.request_id: entry.reply for entry in entries if entry.request_id and entry.reply}
        writer = server.writer
        assert writer is not None
        if request in server.replies:
            return
        writer.check()
        reply = f"{request} by {writer.kept.fence}"
        if request.startswith("reset"):
            first = [Entry(0, None, request, b"d", reply)]
            await writer.begin(replace(writer.kept, steps=0), first, new=False)
            server.steps = 0
        else:
            body = f"[{server.steps + 1},{writer.kept.fence}]".encode()
            await writer.write([Entry(server.steps + 1, body, request, b"d", reply)])
            server.steps += 1
        server.replies[request] = reply

    @rule()
    def next_episode(self) -> None:
        """The client's next request is for another episode."""
        if not self.reset:
            self.episode, self.reset = self.episode + 1, True

    @rule(number=st.integers(0, SERVERS - 1), faults=Faults)
    def beat(self, number: int, faults: list[str]) -> None:
        """Renew a lease, and put away what another server asks for."""
        server = self.servers[number]
        if server.stopped:
            return
        server.store.faults = list(faults)
        try:
            for _ in self.did(server.store.beat(server.owner, LEASE_S)):
                if server.writer is None:  # it was not released when it left
                    kept = self.did(server.store.claim(ID, server.claimant, None))
                    if kept is not None:
                        self.did(server.store.release(ID, kept.fence))
                else:
                    self.put_away(number)
        except (StoreError, Owned):
            pass
        finally:
            server.store.faults = []

    @rule(number=st.integers(0, SERVERS - 1))
    def put_away(self, number: int) -> None:
        server = self.servers[number]
        if server.writer is None or server.stopped:
            return
        fence = server.writer.kept.fence
        server.leave()
        with contextlib.suppress(StoreError):
            self.did(server.store.release(ID, fence))

    @rule(number=st.integers(0, SERVERS - 1))
    def stop(self, number: int) -> None:
        """Stop a server past its lease. What it wants to write, it writes when it goes on."""
        self.servers[number].stopped = True
        self.lease_ends(self.servers[number])

    @rule(number=st.integers(0, SERVERS - 1))
    def go_on(self, number: int) -> None:
        self.servers[number].stopped = False

    @rule(number=st.integers(0, SERVERS - 1), at_once=st.booleans())
    def kill(self, number: int, at_once: bool) -> None:
        """Kill a server, and start it again: before or after its lease has ended."""
        server = self.servers[number]
        if not at_once:
            server.stopped = True
            self.lease_ends(server)
        server.leave()
        server.stopped = False
        server.starts += 1
        self.did(server.store.store.beat(server.owner, LEASE_S))

    @rule(number=st.integers(0, SERVERS - 1), back=st.integers(1, 3))
    def write_late(self, number: int, back: int) -> None:
        """A write of an earlier owner comes at last: the store refuses it."""
        kept = self.kept()
        if kept.fence - back < 1:
            return
        late = [Entry(1, b'["late",null]', "late", b"d", "late")]
        store = self.servers[number].store.store
        stale = KeptSession(ID, "secret", "[]", "h", "", b"{}", owner="late", fence=kept.fence - back)
        for write in (store.append(ID, stale.fence, late, b"{}"), store.begin(stale, late, new=False)):
            with pytest.raises(Fenced):
                self.did(write)
        self.did(store.release(ID, stale.fence))
        assert not self.did(store.discard(ID, stale.fence))
        assert self.kept() == kept

    @rule(number=st.integers(0, SERVERS - 1))
    def steal(self, number: int) -> None:
        kept = self.kept()
        with pytest.raises(PermissionError):
            self.did(self.servers[number].store.store.claim(ID, Claimant("thief", "", "[]"), "another secret"))
        assert self.kept() == kept

    @rule()
    def sweep(self) -> None:
        """What was used since is kept."""
        assert self.did(self.servers[0].store.store.sweep(1.0)) == []

    # -- what must hold

    def kept(self) -> KeptSession:
        (kept,) = self.did(self.servers[0].store.store.sessions())
        assert isinstance(kept, KeptSession)
        return kept

    @invariant()
    def nothing_is_lost(self) -> None:
        if not self.answered:
            return
        kept = self.kept()
        entries = self.did(self.servers[0].store.store.entries(ID))
        assert kept.fence >= self.fence
        self.fence = kept.fence
        steps = [entry for entry in entries if entry.is_step]
        assert [entry.number for entry in steps] == [*range(1, kept.steps + 1)]
        replies = {entry.request_id: entry.reply for entry in entries if entry.request_id}
        begun = self.reset and f"reset-{self.episode}" in replies  # and not answered yet
        for request in self.current_episode if begun else {*self.last_episode, *self.current_episode}:
            assert replies.get(request) == self.answered[request], f"the answer to {request} was lost"


class FleetOfServers(Fleet):
    """The same with the store of a server, whose clock nobody sets: a lease is ended by renewing it for a moment."""

    place = ""

    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        store = open_store(self.place)
        try:
            for kept in self.did(store.sessions()):
                self.did(store.discard(kept.id, None))
        finally:
            self.did(store.close())

    def opened(self) -> Store:
        return open_store(self.place)

    def lease_ends(self, server: ServerModel) -> None:
        self.did(server.store.store.beat(server.owner, 1e-6))
        for other in self.servers:
            if other is not server and not other.stopped:
                self.did(other.store.store.beat(other.owner, 1000.0))


@pytest.mark.timeout(600)
def test_every_history_of_a_session_keeps_its_promises() -> None:
    run_state_machine_as_test(Fleet, settings=settings(max_examples=40, stateful_step_count=30, deadline=None))


@pytest.mark.world
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_every_history_keeps_its_promises_in(name: str, request: pytest.FixtureRequest) -> None:
    class Here(FleetOfServers):
        place = request.getfixturevalue(f"{name}_url")

    run_state_machine_as_test(Here, settings=settings(max_examples=15, stateful_step_count=30, deadline=None))
