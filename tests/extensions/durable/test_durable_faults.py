"""A store that is full, read-only, locked, or gone and back: what clients see. Nothing that was promised is lost."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from durable_worlds import Walk

from mcpenv.extensions.durable import sqlite_store
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
