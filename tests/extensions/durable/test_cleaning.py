"""The cleaning of a store: what no server has recorded is recorded once, and nothing else is deleted."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from durable_worlds import Walk

from mcpenv.extensions.durable.cleaning import Cleaner
from mcpenv.extensions.durable.journal import begin_journal, environment_of
from mcpenv.extensions.durable.sqlite_store import SqliteStore
from mcpenv.extensions.durable.store import RECORDED, Claimant, KeptSession, Settings
from mcpenv.trajectories import Recorder, read_episodes

KEEP_S = 1000.0


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Stored:
    """A store, in which episodes of clients that are lost can be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.now = time.time()
        self.store = SqliteStore(str(self.folder), clock=lambda: self.now)

    async def write(self, *names: str, ends: bool = False, age_s: float = 2 * KEEP_S / 1.5) -> None:
        self.now -= age_s
        for name in names:
            with Walk() as env:
                execution = env._execution
                await execution.reset(seed=1)
                await begin_journal(self.store, name, execution, execution.episode.latest())
                await execution.call_tool("arrive" if ends else "walk", {})
        self.now += age_s

    async def kept(self) -> list[str]:
        return [session.id for session in await self.store.sessions()]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with Recorder(tmp_path / "record") as recorder:
        yield recorder


def cleaner(stored: Stored, recorder: Recorder | None, owner: str = "a", here: tuple[str, ...] = ()) -> Cleaner:
    source: Any = SimpleNamespace(recorder=recorder, name="Walk", version=None, tasks=None)
    claimant = Claimant(owner, "", environment_of(Walk))
    store = SqliteStore(str(stored.folder), clock=lambda: stored.now)
    server: Any = SimpleNamespace(source=source)
    return Cleaner(store, Settings("", keep_s=KEEP_S), server, lambda: claimant, here.__contains__)


def recorded(recorder: Recorder) -> list[str]:
    return sorted(episode.ending for episode in read_episodes(recorder.directory))


@in_a_loop
async def test_two_servers_that_clean_at_once_record_each_episode_once(stored: Stored, recorder: Recorder) -> None:
    await stored.write(*(f"session-{number}" for number in range(12)))
    cleaners = [cleaner(stored, recorder, owner) for owner in "ab"]
    for each, owner in zip(cleaners, "ab", strict=True):
        await each._store.beat(owner, 60)
    await asyncio.gather(*(each.clean() for each in cleaners))
    await asyncio.gather(*(each.clean() for each in cleaners))
    assert recorded(recorder) == ["disconnected"] * 12
    assert await stored.kept() == []


@in_a_loop
async def test_a_session_that_is_here_is_left_alone(stored: Stored, recorder: Recorder) -> None:
    await stored.write("session-here", "session-lost")
    await cleaner(stored, recorder, here=("session-here",)).clean()
    assert await stored.kept() == ["session-here"]
    assert recorded(recorder) == ["disconnected"]


@in_a_loop
async def test_what_cannot_be_recorded_stays(
    stored: Stored, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stored.write("session-over", ends=True)
    await stored.write("session-lost")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(recorder.writer._segments, "append", full)
        await cleaner(stored, recorder).clean()
    assert sorted(await stored.kept()) == ["session-lost", "session-over"]
    await cleaner(stored, recorder).clean()
    assert recorded(recorder) == ["disconnected", "terminated"]
    assert [entry.number for entry in await stored.store.entries("session-over")][-1] == RECORDED


@in_a_loop
async def test_servers_that_do_not_record_leave_episodes_to_those_that_do(stored: Stored) -> None:
    await stored.write("session-lost")
    await cleaner(stored, None).clean()
    assert await stored.kept() == ["session-lost"]
    stored.now -= 2 * KEEP_S
    await stored.write("session-old", age_s=0)
    stored.now += 2 * KEEP_S
    later = cleaner(stored, None)
    await later.clean()
    assert await stored.kept() == ["session-lost"]


@in_a_loop
async def test_a_session_that_cannot_be_read_is_given_back_and_stops_no_other(
    stored: Stored, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    broken = KeptSession("session-broken", "", environment_of(Walk), "", "", b"no JSON")
    stored.now -= 1.5 * KEEP_S
    await stored.store.begin(broken, [], new=True)
    stored.now += 1.5 * KEEP_S
    await stored.write("session-lost")
    await cleaner(stored, recorder).clean()
    (session,) = await stored.store.sessions()
    assert (session.id, session.owner) == ("session-broken", None)
    assert "cannot be recorded" in caplog.text
