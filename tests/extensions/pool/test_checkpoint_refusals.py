"""Checkpoints that cannot be taken or restored: the error names the cause, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from durable_worlds import Walk

from mcpenv.extensions.durable.store import open_store
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client.fingerprint import digest_of
from mcpenv_client.pool import EnvPool, Episode, MixedPool, Played, PoolError

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    def at(store: str | None = "store") -> Any:
        durable = None if store is None else str(tmp_path / store)
        return serving(Walk, ServerConfig(durable=durable), max_concurrent_envs=8)

    return at


@pytest.fixture
def url(serve: Serve) -> Iterator[str]:
    with serve() as url:
        yield url


class Walking:
    """Walks six times. It stops before the fourth until it may go on, and tells when all episodes are there."""

    def __init__(self, episodes: int = 2, by: int = 2) -> None:
        self.left, self.by = episodes, by
        self.there, self.go = asyncio.Event(), asyncio.Event()
        self.calls = 0

    async def __call__(self, episode: Episode) -> str:
        for step in range(6):
            if step == 3:
                self.left -= 1
                if not self.left:
                    self.there.set()
                await self.go.wait()
            await episode.call_tool("walk", {"by": self.by})
        return episode.last.text


def pool_at(url: str) -> EnvPool:
    return EnvPool([url], 2, backend="remote")


async def left_halfway(url: str, path: Path) -> None:
    """Play two episodes to their third step, and leave them."""
    policy = Walking()
    pool = pool_at(url)
    assert pool.restore(path) is None
    async with pool, pool.play(policy, n=2) as stream:
        first = asyncio.ensure_future(anext(stream))
        await policy.there.wait()
        pool.checkpoint(path, {"step": 3})
        first.cancel()
        await asyncio.wait([first])


async def gone_on(url: str, path: Path, *, by: int = 2, missing: Any = "raise", n: int = 2) -> list[Played]:
    """Play on to the end."""
    policy = Walking(by=by)
    policy.go.set()
    pool = pool_at(url)
    assert pool.restore(path, missing=missing) == {"step": 3}
    async with pool:
        return await pool.rollout(policy, n=n)


async def undisturbed(url: str) -> list[str]:
    policy = Walking()
    policy.go.set()
    async with pool_at(url) as pool:
        return [digest_of(each.trajectory) for each in await pool.rollout(policy, n=2) if each.trajectory]


def run(body: Any) -> Any:
    return asyncio.run(asyncio.wait_for(body, 120))


def is_whole(played: list[Played], url: str) -> bool:
    expected: list[str] = run(undisturbed(url))
    return [digest_of(each.trajectory) for each in played if each.trajectory] == expected


def test_episodes_go_on_from_a_file_whose_last_record_is_torn(url: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    run(left_halfway(url, path))
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as file:
        file.write(b"\x80\x05\x95\xff\x00\x00")
    played = run(gone_on(url, path))
    assert is_whole(played, url)
    assert [len(each.trajectory.steps) for each in played] == [6, 6]
    assert is_whole(run(gone_on(url, path)), url), "the results of the file are handed out until another checkpoint"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is no checkpoint of a pool"),
        (b"\x80\x04K\x01.", "it is no checkpoint of a pool"),
        (b"mcpenv pool checkpoint 7\n", "it is of version 7, and this package reads 1"),
        (b"mcpenv pool checkpoint 1\n\x80\x05\x95", "cannot be read: UnpicklingError"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_and_kept(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    with pytest.raises(PoolError, match=why):
        pool_at("http://127.0.0.1:9").restore(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("another", r"episode [01] cannot go on at these servers.*missing=\"again\""),
        (None, "needs servers with --durable"),
    ],
)
def test_other_servers_are_refused_and_nothing_is_lost(
    serve: Serve, url: str, tmp_path: Path, other: str | None, why: str
) -> None:
    path = tmp_path / "checkpoint"
    run(left_halfway(url, path))
    with serve(other) as elsewhere, pytest.raises(PoolError, match=why):
        run(gone_on(elsewhere, path))
    assert is_whole(run(gone_on(url, path)), url)


def test_an_episode_that_was_discarded_is_named_and_begins_again_if_asked_for(url: str, tmp_path: Path) -> None:
    async def discard() -> None:
        store = open_store(str(tmp_path / "store"))
        await store.discard((await store.sessions())[0].id, None)
        await store.close()

    path = tmp_path / "checkpoint"
    run(left_halfway(url, path))
    run(discard())
    with pytest.raises(PoolError, match=r"episode [01] cannot go on at these servers"):
        run(gone_on(url, path))
    assert is_whole(run(gone_on(url, path, missing="again")), url)


def test_another_script_is_refused_and_nothing_is_lost(url: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    run(left_halfway(url, path))
    with pytest.raises(PoolError, match="another one than that in the checkpoint: n is 3, and was 2"):
        run(gone_on(url, path, n=3))
    with pytest.raises(PoolError, match="its policy made another call than before the restart"):
        run(gone_on(url, path, by=5))
    assert is_whole(run(gone_on(url, path)), url)


class Curriculum:
    def __iter__(self) -> Iterator[None]:
        yield None

    def record(self, played: Played) -> None: ...


def test_what_has_no_checkpoint_says_so(url: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"

    async def beside_a_play() -> None:
        policy = Walking()
        async with pool_at(url) as pool, pool.play(policy, n=2) as stream:
            playing = asyncio.ensure_future(anext(stream))
            await policy.there.wait()
            with pytest.raises(PoolError, match="began without a checkpoint"):
                pool.checkpoint(path)
            playing.cancel()
            await asyncio.wait([playing])

    for pool in (EnvPool(Walk), EnvPool(Walk, backend="process"), MixedPool({"walk": Walk})):
        with pytest.raises(PoolError, match="has no checkpoints"):
            pool.checkpoint(path)
        with pytest.raises(PoolError, match="has no checkpoints"):
            pool.restore(path)
    run(beside_a_play())
    with pytest.raises(ValueError, match="missing is"):
        pool_at(url).restore(path, missing="skip")  # type: ignore[arg-type]
    assert not path.exists()
    pool = pool_at(url)
    pool.restore(path)
    with pytest.raises(PoolError, match=r"Curriculum has record\(\), but not state\(\) and resume\(\)"):
        pool.play(Walking(), Curriculum())
