"""A store that is full, read-only, locked, or gone and back: what clients see. Nothing that was promised is lost."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from durable_worlds import Submitted, Walk

from mcpenv.extensions.durable import sqlite_store
from mcpenv.extensions.durable.store import open_store
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.trajectories import read_episodes
from mcpenv_client import EnvClient

Mend = Callable[[], object]


def full(database: sqlite3.Connection, folder: Path) -> Mend:
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    return lambda: database.execute("PRAGMA max_page_count = 100000")


def read_only(database: sqlite3.Connection, folder: Path) -> Mend:
    database.execute("PRAGMA query_only = ON")
    return lambda: database.execute("PRAGMA query_only = OFF")


def locked(database: sqlite3.Connection, folder: Path) -> Mend:
    other = sqlite3.connect(folder / sqlite_store.FILE, isolation_level=None, check_same_thread=False, timeout=60)
    other.execute("BEGIN IMMEDIATE")
    return other.close


faults = pytest.mark.parametrize("fail", [full, read_only, locked])


@pytest.fixture
def databases(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The databases of the stores that servers of this process open."""
    opened: list[sqlite3.Connection] = []

    class Seen(sqlite_store.SqliteStore):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            opened.append(self._database)

    monkeypatch.setattr(sqlite_store, "SqliteStore", Seen)
    monkeypatch.setattr(sqlite_store, "BUSY_S", 0.05)
    return opened


def until_it_is_told(caplog: pytest.LogCaptureFixture, what: str = "steps wait for it") -> None:
    while what not in caplog.text:
        time.sleep(0.01)


@faults
def test_a_step_waits_for_a_store_that_fails_for_a_while(
    fail: Callable[..., Mend],
    databases: list[sqlite3.Connection],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = tmp_path / "store"
    with (
        serving(Walk, ServerConfig(durable=f"{store}?patience_s=60&lease_s=60")) as url,
        EnvClient(url, resume=True).sync() as client,
        ThreadPoolExecutor(1) as thread,
    ):
        client.reset(seed=1)
        client.call_tool("walk")
        mend = fail(databases[0], store)
        walking = thread.submit(client.call_tool, "nothing", {"text": "x" * 100_000})
        until_it_is_told(caplog)
        assert not walking.done()
        mend()
        walking.result()
        assert client.state().step_count == 2
        client.call_tool("arrive")
        assert len(client.trajectory().steps) == 3


def test_an_end_that_the_store_did_not_take_is_recorded_where_it_is_asked_for_again(
    databases: list[sqlite3.Connection], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    config = ServerConfig(durable=f"{store}?patience_s=0.2&lease_s=60", record=tmp_path / "record")
    with serving(Walk, config) as url, EnvClient(url, resume=True, max_resumes=60).sync() as client:
        with ThreadPoolExecutor(1) as thread:
            client.reset(seed=1)
            client.call_tool("walk")
            mend = locked(databases[0], store)
            ending = thread.submit(client.end, reason="enough")
            until_it_is_told(caplog, "did not take a step")
            mend()
            assert ending.result().info["reason"] == "enough"
        assert client.trajectory().reason == "enough"
    assert [episode.trajectory.reason for episode in read_episodes(tmp_path / "record")] == ["enough"]


def listed(url: str) -> list[dict[str, Any]]:
    sessions: list[dict[str, Any]] = httpx.get(f"{url}/sessions", timeout=60).json()["sessions"]
    return sessions


def unwritten(url: str) -> list[int]:
    """The writes that wait, of each session of a server."""
    return [session["unwritten"] for session in listed(url)]


def until_all_is_written(url: str) -> None:
    while any(unwritten(url)):
        time.sleep(0.01)


@faults
def test_episodes_go_on_without_a_store_if_the_operator_chose_that_and_are_kept_again(
    fail: Callable[..., Mend], databases: list[sqlite3.Connection], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    config = ServerConfig(durable=f"{store}?unreachable=go_on&lease_s=60")
    first = serving(Walk, config, max_concurrent_envs=2)
    url = first.__enter__()
    with (
        serving(Walk, config, max_concurrent_envs=2) as second,
        EnvClient([url, second]).sync() as client,
        EnvClient([url, second]).sync() as other,
    ):
        client.reset(seed=1)
        client.call_tool("walk")
        mend = fail(databases[0], store)
        client.call_tool("nothing", {"text": "x" * 100_000})
        client.call_tool("walk")
        assert client.state().step_count == 3
        other.reset(seed=2, at=1000, episode_id="the-next")
        other.call_tool("walk")
        other.reset(seed=3, at=7)
        walked = int(other.call_tool("walk").text)
        assert sorted(unwritten(url)) == [0 if fail is full else 2, 2]  # its pages have room for small steps
        assert "goes on without its journal" in caplog.text
        mend()
        until_all_is_written(url)
        first.__exit__(None, None, None)
        assert (client.state().step_count, client.base_url) == (3, second)
        assert (other.state().step_count, other.base_url) == (1, second)
        assert int(other.call_tool("walk").text) > walked


@pytest.mark.parametrize("unreachable", ["wait", "go_on"])
@pytest.mark.parametrize("fail", [read_only, locked])
def test_a_session_that_is_closed_without_its_store_leaves_that_later_and_is_recorded_once(
    fail: Callable[..., Mend],
    unreachable: str,
    databases: list[sqlite3.Connection],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = tmp_path / "store"
    durable = f"{store}?unreachable={unreachable}&patience_s=0.2&lease_s=60"
    with serving(Walk, ServerConfig(durable=durable, record=tmp_path / "record"), max_concurrent_envs=3) as url:
        with EnvClient(url, resume=True).sync() as ended, EnvClient(url, resume=True).sync() as left:
            ended.reset(seed=1)
            ended.call_tool("walk")
            left.reset(seed=2)
            left.call_tool("walk")
            ended.end(reason="enough")
            mend = fail(databases[0], store)
            if unreachable == "go_on":
                left.call_tool("walk")
                ended.reset(seed=3)
        assert listed(url) == []
        until_it_is_told(caplog, "is still in the store")
        mend()
        seen = sqlite3.connect(store / sqlite_store.FILE)
        while seen.execute("SELECT COUNT(*) FROM sessions").fetchone() != (0,):
            time.sleep(0.01)
        seen.close()
    reasons = sorted(str(episode.trajectory.reason) for episode in read_episodes(tmp_path / "record"))
    assert reasons == ["closed"] * (1 + (unreachable == "go_on")) + ["enough"]


def test_a_server_that_went_on_without_a_store_is_fenced_by_the_next_owner(
    databases: list[sqlite3.Connection], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with serving(Walk, ServerConfig(durable=f"{store}?unreachable=go_on&lease_s=60")) as url:
        client = EnvClient(url, resume=True).sync()
        client.__enter__()
        client.reset(seed=1)
        other = sqlite3.connect(store / sqlite_store.FILE, isolation_level=None, timeout=60)
        other.execute("BEGIN IMMEDIATE")
        client.call_tool("walk")
        client.call_tool("walk")
        other.execute("UPDATE sessions SET owner = 'another', fence = fence + 1")
        other.execute("COMMIT")
        while unwritten(url):
            time.sleep(0.01)
        assert other.execute("SELECT owner, steps FROM sessions").fetchall() == [("another", 0)]
        other.close()
        client.close()


def test_a_call_to_the_outside_waits_for_a_store_also_if_others_go_on(
    databases: list[sqlite3.Connection], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    Submitted.submitted.clear()
    with (
        serving(Submitted, ServerConfig(durable=f"{store}?unreachable=go_on&patience_s=0.1&lease_s=60")) as url,
        EnvClient(url, resume=True).sync() as client,
        ThreadPoolExecutor(1) as thread,
    ):
        client.reset(seed=1)
        mend = locked(databases[0], store)
        client.call_tool("look")
        submitting = thread.submit(client.call_tool, "submit", {"answer": "42"})
        while not listed(url)[0]["busy"]:
            time.sleep(0.01)
        early = [*Submitted.submitted]
        mend()
        submitting.result()
        assert early == []
        assert Submitted.submitted == ["42"]


@pytest.mark.world
@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_an_episode_goes_on_without_a_server_that_is_gone_and_back(name: str, request: pytest.FixtureRequest) -> None:
    database, place = request.getfixturevalue(name), request.getfixturevalue(f"{name}_url")
    durable = f"{place}{'&' if '?' in place else '?'}unreachable=go_on&lease_s=60"
    with serving(Walk, ServerConfig(durable=durable)) as url, EnvClient(url, resume=True).sync() as client:
        client.reset(seed=1)
        database.stop()
        for _ in range(3):
            client.call_tool("walk")
        assert unwritten(url) == [3]
        database.start()
        until_all_is_written(url)
        assert asyncio.run(steps_in(place)) == [3]


async def steps_in(place: str) -> list[int]:
    store = open_store(place)
    try:
        return [session.steps for session in await store.sessions()]
    finally:
        await store.close()


@pytest.mark.world
@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_a_step_waits_for_a_server_that_is_gone_and_back(
    name: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    database, place = request.getfixturevalue(name), request.getfixturevalue(f"{name}_url")
    durable = f"{place}{'&' if '?' in place else '?'}patience_s=60&lease_s=60"
    with (
        serving(Walk, ServerConfig(durable=durable)) as url,
        EnvClient(url, resume=True).sync() as client,
        ThreadPoolExecutor(1) as thread,
    ):
        client.reset(seed=1)
        client.call_tool("walk")
        database.stop()
        walking = thread.submit(client.call_tool, "walk")
        until_it_is_told(caplog)
        assert not walking.done()
        database.start()
        walking.result()
        assert client.state().step_count == 2
        client.call_tool("arrive")
        assert len(client.trajectory().steps) == 3


@pytest.mark.world
def test_a_step_waits_for_a_redis_that_is_full(redis: Any, redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with (
        serving(Walk, ServerConfig(durable=f"{redis_url}?patience_s=60&lease_s=60")) as url,
        EnvClient(url, resume=True).sync() as client,
        ThreadPoolExecutor(1) as thread,
    ):
        client.reset(seed=1)
        assert redis.ask("CONFIG SET maxmemory 1") == "+OK"
        walking = thread.submit(client.call_tool, "walk")
        until_it_is_told(caplog)
        assert redis.ask("CONFIG SET maxmemory 0") == "+OK"
        walking.result()
        assert client.state().step_count == 1
