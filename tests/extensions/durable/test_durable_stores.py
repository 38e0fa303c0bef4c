"""The stores of durable sessions: one owner at a time, by a lease and a fencing number."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.durable import sql_store
from mcpenv.extensions.durable.bounds import Bounds
from mcpenv.extensions.durable.sql_store import MAX_REPLIES
from mcpenv.extensions.durable.sqlite_store import FILE, SqliteStore
from mcpenv.extensions.durable.store import (
    RECORDED,
    SNAPSHOT,
    Claimant,
    Entry,
    Fenced,
    KeptSession,
    OtherEnvironment,
    Owned,
    Settings,
    Store,
    StoreError,
    open_store,
    shown,
)
from mcpenv_client import CapacityReached

ID = "session-number-one"
LONG_S = 1000.0
B = Claimant("b", "http://b", "[]")


def kept(owner: str = "a", **changes: object) -> KeptSession:
    session = KeptSession(ID, "d", "[]", "h", "", b"{}", owner=owner)
    return replace(session, **changes)  # type: ignore[arg-type]


Check = Callable[[Store], Coroutine[Any, Any, None]]


def with_store(check: Check) -> Callable[[str], None]:
    """Run a check in an event loop, with a new store."""

    async def run(place: str) -> None:
        store = open_store(place)
        try:
            await check(store)
        finally:
            await store.close()

    def test(place: str) -> None:
        asyncio.run(run(place))

    return test


async def begun(store: Store, owner: str = "a", lease_s: float = LONG_S) -> KeptSession:
    session = kept(owner)
    await store.beat(owner, lease_s)
    await store.begin(session, [Entry(0, None, "reset-1", b"r", "began")], new=True)
    return session


@with_store
async def test_a_session_is_written_and_read(store: Store) -> None:
    await begun(store)
    await store.append(ID, 1, [Entry(1, b"one", "step-1", b"1", "first"), Entry(2, b"two")], None)
    found = await store.entries(ID)
    assert found == [
        Entry(0, None, "reset-1", b"r", "began"), Entry(1, b"one", "step-1", b"1", "first"), Entry(2, b"two")
    ]  # fmt: skip
    (session,) = await store.sessions()
    assert (session.id, session.steps, session.over, session.alive, session.owner) == (ID, 2, False, True, "a")
    found_by_handle = await store.of_handle("h")
    assert found_by_handle is not None
    assert (found_by_handle.id, found_by_handle.alive) == (ID, True)
    assert await store.of_handle("another") is None


@with_store
async def test_the_end_is_kept_with_the_last_step(store: Store) -> None:
    await begun(store)
    await store.append(ID, 1, [Entry(1, b"one")], b"ended")
    (session,) = await store.sessions()
    assert session.over
    assert session.header == b"ended"


@with_store
async def test_a_second_owner_waits_for_the_first_and_asks_it(store: Store) -> None:
    await begun(store)
    await store.beat("b", LONG_S)
    with pytest.raises(Owned):
        await store.claim(ID, B, "d")
    assert await store.beat("a", LONG_S) == [ID]
    await store.release(ID, 1)
    claimed = await store.claim(ID, B, "d")
    assert claimed is not None
    assert (claimed.owner, claimed.address, claimed.fence) == ("b", "http://b", 2)
    assert (await store.sessions())[0].address == "http://b"
    assert await store.beat("a", LONG_S) == []


@with_store
async def test_an_owner_whose_lease_ran_out_is_refused_at_its_next_write(store: Store) -> None:
    await begun(store, lease_s=0.01)
    while (await store.sessions())[0].alive:
        await asyncio.sleep(0.001)
    claimed = await store.claim(ID, B, None)
    assert claimed is not None
    assert claimed.fence == 2
    for write in (
        store.append(ID, 1, [Entry(1, b"one")], None),
        store.begin(kept(), [], new=False),
    ):
        with pytest.raises(Fenced):
            await write
    await store.release(ID, 1)
    assert not await store.discard(ID, 1)
    (session,) = await store.sessions()
    assert session.owner == "b"
    assert await store.entries(ID) == [Entry(0, None, "reset-1", b"r", "began")]
    await store.append(ID, 2, [Entry(1, b"one")], None)


@with_store
async def test_a_secret_is_checked_before_a_session_changes_hands(store: Store) -> None:
    await begun(store)
    await store.release(ID, 1)
    with pytest.raises(PermissionError):
        await store.claim(ID, B, "another")
    (session,) = await store.sessions()
    assert (session.owner, session.fence) == (None, 1)
    assert await store.claim("unknown", B, None) is None


@with_store
async def test_a_server_of_another_version_takes_no_session_and_asks_for_none(store: Store) -> None:
    session = await begun(store)
    newer = B._replace(environment="[2]")
    with pytest.raises(OtherEnvironment) as alive:
        await store.claim(ID, newer, "d")
    assert (alive.value.kept.alive, await store.beat("a", LONG_S)) == (True, [])
    await store.release(ID, 1)
    with pytest.raises(OtherEnvironment) as left:
        await store.claim(ID, newer, "d")
    assert (left.value.kept.alive, left.value.kept.environment) == (False, session.environment)
    (found,) = await store.sessions()
    assert (found.owner, found.fence) == (None, 1)


@with_store
async def test_the_next_episode_takes_the_place_of_the_last_and_leaves_its_replies(store: Store) -> None:
    await begun(store)
    await store.append(ID, 1, [Entry(1, b"one", "step-1", b"1", "first"), Entry(2, b"two")], b"over")
    for episode in ("reset-2", "reset-3"):
        await store.begin(kept(header=episode.encode(), handle=episode), [Entry(0, None, episode, b"r", "")], new=False)
    entries = await store.entries(ID)
    assert [(entry.number < 0, entry.body, entry.request_id) for entry in entries] == [
        (True, None, "reset-2"), (False, None, "reset-3")
    ]  # fmt: skip
    (session,) = await store.sessions()
    assert (session.over, session.handle, session.steps) == (False, "reset-3", 0)


@with_store
async def test_what_nobody_continues_is_deleted(store: Store) -> None:
    await begun(store)
    assert await store.sweep(1e12) == []  # its owner lives
    await store.release(ID, 1)
    assert await store.sweep(0.0) == []
    assert await store.sweep(1e12) == [ID]
    assert await store.sessions() == []
    assert await store.entries(ID) == []


@with_store
async def test_what_has_ended_without_a_record_is_found_once_its_owner_is_gone(store: Store) -> None:
    session = await begun(store)
    assert await store.unrecorded(session.environment, 0) == []
    await store.append(ID, 1, [Entry(1, b"one")], b"ended")
    assert await store.unrecorded(session.environment, 0) == []  # its owner records it
    await store.release(ID, 1)
    assert await store.unrecorded("another", 1e12) == []
    assert await store.unrecorded(session.environment, 0) == [ID]
    await store.append(ID, 1, [Entry(RECORDED, b"1")], None)
    assert await store.unrecorded(session.environment, 0) == []
    await store.begin(session, [], new=False)
    await store.append(ID, 1, [], b"ended")
    assert await store.unrecorded(session.environment, 0) == [ID]  # which is the next episode
    await store.begin(session, [], new=False)
    assert await store.unrecorded(session.environment, 0) == []
    assert await store.unrecorded(session.environment, 1e12) == [ID]  # its client is lost
    await store.discard(ID, None)
    assert await store.unrecorded(session.environment, 0) == []


@with_store
async def test_a_session_is_discarded_whoever_owns_it(store: Store) -> None:
    await begun(store)
    assert await store.discard(ID, None)
    with pytest.raises(Fenced):
        await store.append(ID, 1, [Entry(1, b"one")], None)


@with_store
async def test_a_try_whose_answer_was_lost_is_made_again(store: Store) -> None:
    session = await begun(store)
    await store.begin(session, [Entry(0, None, "reset-1", b"r", "began")], new=True)
    for _ in range(2):
        await store.append(ID, 1, [Entry(1, b"one", "step-1", b"1", "first")], None)
    first = [entry for entry in await store.entries(ID) if entry.number >= 0]
    assert first == [Entry(0, None, "reset-1", b"r", "began"), Entry(1, b"one", "step-1", b"1", "first")]
    for _ in range(2):
        await store.begin(session, [Entry(0, None, "reset-2", b"r", "began")], new=False)
    entries = await store.entries(ID)
    assert {entry.request_id for entry in entries} == {"reset-1", "step-1", "reset-2"}
    await store.release(ID, 1)
    assert await store.claim(ID, B, None) is not None
    with pytest.raises(Fenced):
        await store.begin(session, [], new=True)


@with_store
async def test_the_replies_of_the_last_entries_are_kept(store: Store) -> None:
    await begun(store)
    for number in range(1, MAX_REPLIES + 3):
        await store.append(ID, 1, [Entry(number, b"body", f"step-{number}", b"d", "")], None)
    entries = await store.entries(ID)
    assert [entry.number for entry in entries if entry.body is not None] == [*range(1, MAX_REPLIES + 3)]
    assert [entry.request_id for entry in entries if entry.number in (1, 2, 3)] == [None, None, "step-3"]


async def check_sums(store: Store) -> None:
    """Compare the sums with what is there. A reply may be kept with its request."""
    entries = await store.entries(ID)
    bodies = sum(len(entry.body or b"") for entry in entries)
    texts = sum(len(entry.reply or "") for entry in entries)
    lists = [[e.reply, e.request_id, e.digest.hex()] for e in entries if e.digest is not None]
    totals = await store.totals()
    assert totals.sessions == 1
    assert totals.bytes - bodies in (texts, sum(len(json.dumps(each)) for each in lists))


@with_store
async def test_the_sums_are_those_of_the_entries(store: Store) -> None:
    session = await begun(store)
    await check_sums(store)
    steps = [Entry(number, b"body" * number, f"step-{number}", b"d", "reply") for number in range(1, MAX_REPLIES + 9)]
    await store.append(ID, 1, steps[:5], None)
    for size in (1000, 1000, 10):
        await store.append(ID, 1, [*steps[4:6], Entry(SNAPSHOT, b"s" * size)], None)
        await check_sums(store)
    for entry in steps[6:]:
        await store.append(ID, 1, [entry], None)
    await check_sums(store)
    for _ in range(2):
        await store.begin(session, [Entry(0, None, "reset-2", b"r", "began")], new=False)
        await check_sums(store)
    assert await store.discard(ID, 1)
    assert await store.totals() == (0, 0)


def test_two_processes_share_a_store(place: str) -> None:
    async def run() -> None:
        one, two = (open_store(place) for _ in range(2))
        await begun(one)
        assert [session.id for session in await two.sessions()] == [ID]
        await one.close()  # ends its lease
        assert (await two.sessions())[0].alive is False
        assert await two.claim(ID, B, "d") is not None
        await two.close()

    asyncio.run(run())


def test_settings_are_read_from_the_address() -> None:
    assert Settings.parse("runs/store") == Settings("runs/store")
    assert Settings.parse("s?writes=behind&lease_s=3") == Settings("s", "behind", 3.0)
    assert Settings.parse("s?address=http://pod-1:80").address == "http://pod-1:80"
    for wrong in (
        "s?lease_s=0",
        "s?lease_s=x",
        "s?writes=never",
        "s?unknown=1",
        "",
        "?lease_s=1",
        "s?snapshot_steps=0",
        "s?max_bytes=1e3",
        "s?snapshots=x",
        "redis://h/0?lease=1",
        "postgres://h/d?write=behind",
    ):
        with pytest.raises(ConfigurationError):
            Settings.parse(wrong)
    with pytest.raises(ConfigurationError, match="no store for nothing://"):
        open_store("nothing://host")
    with pytest.raises(ConfigurationError, match="writes=behnd: it is strict or behind"):
        Settings.parse("s?writes=behnd")
    assert Settings.parse("s?snapshots=s3%3A%2F%2Fa%2Fb").snapshots == "s3://a/b"
    url = "postgres://u:p@h/d?sslmode=require&writes=behind&target=a%20b"
    assert Settings.parse(url) == Settings("postgres://u:p@h/d?sslmode=require&target=a%20b", "behind")


@pytest.mark.parametrize(
    "place",
    [
        "postgresql://u:secret@host/d?nothing=1", "postgres://u:secret/secret@host/d",
        "redis://u:secret@host:x", "redis://u:secret@host?nothing=1",
        "redis://u:secret@h/0?socket_timeout=secret", "redis://u:secret/secret@host", "redis://u:secret?secret@host",
    ],
)  # fmt: skip
def test_a_password_is_never_shown(place: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_store(place)
    assert "secret" not in str(refused.value)
    assert "secret" not in shown(place)


@pytest.mark.parametrize("place", ["postgres://u:secret@127.0.0.1:1/d", "redis://u:secret@127.0.0.1:1/0"])
def test_a_server_that_does_not_answer_is_a_store_error(place: str) -> None:
    async def run() -> None:
        store = open_store(place)
        with pytest.raises(StoreError) as failed:
            await store.sessions()
        assert "secret" not in str(failed.value)
        await store.close()

    asyncio.run(run())
    assert "127.0.0.1:1/" in shown(place)


@pytest.mark.parametrize(("scheme", "package"), [("postgres", "psycopg"), ("redis", "redis.asyncio")])
def test_a_missing_package_is_named(scheme: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"mcpenv.extensions.durable.{scheme}_store", raising=False)
    with pytest.raises(ConfigurationError, match=rf"pip install 'mcpenv\[{scheme}\]'"):
        open_store(f"{scheme}://host")


def test_a_folder_of_an_earlier_version_gets_its_sizes(tmp_path: Path) -> None:
    async def run() -> None:
        store = open_store(str(tmp_path))
        await store.begin(kept(), [Entry(1, b"12345")], new=True)
        await store.close()
        with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as database:
            database.execute("ALTER TABLE sessions DROP COLUMN bytes")
        with ThreadPoolExecutor(4) as threads:  # as servers that start at once
            stores = list(threads.map(lambda _: open_store(str(tmp_path)), range(4)))
        for store in stores:
            assert await store.totals() == (1, 5)
            await store.close()

    asyncio.run(run())


def test_a_change_that_was_given_up_before_it_began_is_never_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    answers.set()

    def clock() -> float:
        assert answers.wait(30)
        return 1000.0

    async def run() -> None:
        store = SqliteStore(str(tmp_path), clock=clock)
        await begun(store)
        answers.clear()
        monkeypatch.setattr(sql_store, "ANSWER_S", 0.1)
        hangs = asyncio.create_task(store.append(ID, 1, [Entry(1, b"one")], None))
        waits = asyncio.create_task(store.discard(ID, 1))
        for each in (hangs, waits):
            with pytest.raises(StoreError, match="not answered"):
                await each
        answers.set()
        monkeypatch.undo()
        assert [entry.number for entry in await store.entries(ID)] == [0, 1]
        await store.close()

    asyncio.run(run())


@with_store
async def test_sessions_that_begin_at_once_do_not_exceed_a_bound(store: Store) -> None:
    bounds, go, refused = Bounds(Settings("", max_sessions=3), store), asyncio.Event(), 0

    async def begin(number: int) -> None:
        nonlocal refused
        try:
            async with bounds.room(is_kept=True):
                await go.wait()
                await store.begin(kept(id=f"session-{number}"), [], new=True)
        except CapacityReached:
            refused += 1
            go.set()

    await asyncio.gather(*map(begin, range(8)))
    assert (refused, (await store.totals()).sessions) == (5, 3)


@pytest.mark.world
def test_connections_to_a_redis_that_was_started_again_are_made_again(redis: Any, redis_url: str) -> None:
    async def run() -> None:
        store = open_store(redis_url)
        await asyncio.gather(*(store.beat(f"server-{number}", LONG_S) for number in range(4)))  # a connection each
        redis.stop()
        redis.start()
        await asyncio.gather(*(store.beat(f"server-{number}", LONG_S) for number in range(4)))
        await store.close()

    asyncio.run(run())
