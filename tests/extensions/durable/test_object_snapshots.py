"""Snapshots in another storage than the store: their objects are written, named, read and deleted."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from durable_worlds import Noted, Saved

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.durable.store import (
    SNAPSHOT,
    Claimant,
    Entry,
    Fenced,
    KeptSession,
    Settings,
    Store,
    open_store,
    open_with_snapshots,
)
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

ID = "session-number-one"
FIRST = KeptSession(ID, "d", "[]", "h", "", b"{}", owner="a")


def objects_in(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def with_objects(tmp_path: Path) -> Callable[[Callable[[Store], Awaitable[None]]], list[bytes]]:
    """Run with a store that has a session and its first snapshot; return the objects that are left."""

    def run(work: Callable[[Store], Awaitable[None]]) -> list[bytes]:
        async def inside() -> None:
            store = open_with_snapshots(Settings.parse(f"{tmp_path}/store?snapshots=file://{tmp_path}/objects"))
            try:
                await store.beat("a", 60)
                await store.begin(FIRST, [Entry(SNAPSHOT, b"zero")], new=True)
                await work(store)
            finally:
                await store.close()

        asyncio.run(inside())
        return objects_in(tmp_path / "objects")

    return run


WithObjects = Callable[[Callable[[Store], Awaitable[None]]], list[bytes]]


def test_the_store_has_the_name_of_the_last_snapshot_only(with_objects: WithObjects, tmp_path: Path) -> None:
    async def write(store: Store) -> None:
        for _ in range(2):  # the second time, because the answer was lost
            await store.append(ID, 1, [Entry(1, b"one"), Entry(SNAPSHOT, b"a" * 1000)], None)
        assert await store.entries(ID) == [Entry(1, b"one"), Entry(SNAPSHOT, b"a" * 1000)]
        inside = open_store(str(tmp_path / "store"))
        _, named = await inside.entries(ID)
        await inside.close()
        assert (named.body or b"").startswith(b"object:session-number-one/000001-")

    assert with_objects(write) == [b"a" * 1000]


def test_a_fenced_server_leaves_the_object_of_the_next_owner(with_objects: WithObjects) -> None:
    async def fence(store: Store) -> None:
        await store.release(ID, 1)
        assert await store.claim(ID, Claimant("b", "", "[]"), "d") is not None
        assert [entry.body for entry in await store.entries(ID)] == [b"zero"]
        await store.append(ID, 2, [Entry(SNAPSHOT, b"same")], None)
        with pytest.raises(Fenced):
            await store.append(ID, 1, [Entry(SNAPSHOT, b"same")], None)
        assert [entry.body for entry in await store.entries(ID)] == [b"same"]

    assert with_objects(fence) == [b"same"]


def test_the_next_episode_leaves_no_object_of_the_last(with_objects: WithObjects) -> None:
    async def begin(store: Store) -> None:
        await store.begin(FIRST, [], new=False)
        assert await store.entries(ID) == []

    assert with_objects(begin) == []


@pytest.mark.parametrize("how", ["discard", "sweep"])
def test_objects_are_deleted_with_their_session(with_objects: WithObjects, tmp_path: Path, how: str) -> None:
    async def delete(store: Store) -> None:
        left = tmp_path / "objects" / ID / "000001-of-a-server-that-was-killed"
        left.write_bytes(b"it is not named")
        if how == "discard":
            assert await store.discard(ID, 1)
        else:
            await store.release(ID, 1)
            assert await store.sweep(1e12) == [ID]

    assert with_objects(delete) == []


@pytest.mark.parametrize("world", [Saved, Noted])
def test_an_episode_whose_snapshot_is_gone_is_played_again_as_a_whole(
    world: type[Noted], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = type("World", (Noted,), {"DURABILITY": world.DURABILITY})
    config = ServerConfig(durable=f"{tmp_path}/store?snapshot_steps=1&snapshots=file://{tmp_path}/objects")
    with ExitStack() as stack:
        first = serving(world, config)
        url = first.__enter__()
        client = stack.enter_context(EnvClient([url, stack.enter_context(serving(world, config))]).sync())
        client.reset(seed=1)
        Noted.noted.clear()
        walked = [int(client.call_tool("walk").text) for _ in range(3)]
        first.__exit__(None, None, None)
        (left,) = (path for path in (tmp_path / "objects").rglob("*") if path.is_file())
        left.unlink()
        assert client.state().step_count == 3
        assert Noted.noted == walked * 2
        assert "there is no snapshot" in caplog.text


def test_a_step_waits_for_a_storage_that_is_gone_and_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    objects = tmp_path / "objects"
    config = ServerConfig(durable=f"{tmp_path}/store?patience_s=60&lease_s=60&snapshots=file://{objects}")
    with (
        serving(Saved, config) as url,
        EnvClient(url, resume=True).sync() as client,
        ThreadPoolExecutor(1) as thread,
    ):
        client.reset(seed=1)
        objects.rename(tmp_path / "away")
        objects.write_text("no folder")
        drawing = thread.submit(client.call_tool, "draw")
        while "steps wait for it" not in caplog.text:
            time.sleep(0.01)
        assert not drawing.done()
        objects.unlink()
        (tmp_path / "away").rename(objects)
        drawing.result()
        assert client.state().step_count == 1
    assert objects_in(objects) == []


def test_a_storage_that_fsspec_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="snapshots=nothing://a: Protocol not known"):
        open_with_snapshots(Settings.parse(f"{tmp_path}/store?snapshots=nothing://a"))


def test_a_missing_fsspec_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    monkeypatch.delitem(sys.modules, "mcpenv.extensions.durable.object_snapshots", raising=False)
    with pytest.raises(ConfigurationError, match=r"pip install 'mcpenv\[fsspec\]'"):
        open_with_snapshots(Settings.parse(f"{tmp_path}/store?snapshots=file://{tmp_path}/objects"))


def test_an_object_whose_write_had_no_answer_stays_for_the_next_owner(with_objects: WithObjects) -> None:
    async def fence(store: Store) -> None:
        await store.append(ID, 1, [Entry(SNAPSHOT, b"same")], None)  # the server took it for refused
        await store.release(ID, 1)
        assert await store.claim(ID, Claimant("b", "", "[]"), "d") is not None
        with pytest.raises(Fenced):
            await store.append(ID, 1, [Entry(SNAPSHOT, b"same")], None)
        assert [entry.body for entry in await store.entries(ID)] == [b"same"]

    assert with_objects(fence) == [b"same"]
