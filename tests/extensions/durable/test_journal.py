"""The journal of an episode where a write is cut short, and where it cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from durable_worlds import Walk

from mcpenv import MCPEnvironment
from mcpenv.extensions.durable import unwritten
from mcpenv.extensions.durable.journal import begin_journal
from mcpenv.extensions.durable.rerun import continue_from
from mcpenv.extensions.durable.sqlite_store import SqliteStore
from mcpenv.extensions.durable.store import SNAPSHOT, Entry, KeptSession, Settings, StoreError
from mcpenv.extensions.durable.writing import SessionWriter
from mcpenv_client import SessionLost

ID = "session-number-one"


class Ringing(MCPEnvironment):
    """Rings a bell outside."""

    def __init__(self) -> None:
        @self.tool(annotations={"openWorldHint": True})
        async def ring() -> str:
            """Ring."""
            return "rang"


class Down(SqliteStore):
    """A store that does not answer for a while."""

    down = False
    asked = 0

    async def append(self, session_id: str, fence: int, entries: Sequence[Entry], header: bytes | None) -> None:
        if self.down:
            self.asked += 1
            raise StoreError("down")
        await super().append(session_id, fence, entries, header)


def test_a_call_to_the_outside_that_was_cancelled_before_it_ran_is_a_step(tmp_path: Path) -> None:
    async def run() -> None:
        store = Down(str(tmp_path))
        with Ringing() as env:
            execution = env._execution
            await execution.reset()
            await begin_journal(store, ID, execution, execution.episode.latest())
            for _ in range(3):
                store.down, store.asked = True, 0
                ringing = asyncio.create_task(execution.call_tool("ring", {}))
                while store.asked < 2:
                    await asyncio.sleep(0.001)
                ringing.cancel()
                store.down = False
                with contextlib.suppress(asyncio.CancelledError):
                    await ringing
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others)
            assert [entry.is_step for entry in await store.entries(ID)] == [True] * 3
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize(("name", "bound"), [("MAX_BYTES", 3_000), ("MAX_WRITES", 3)])
def test_writes_that_wait_for_a_store_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, bound: int
) -> None:
    monkeypatch.setattr(unwritten, name, bound)

    async def run() -> None:
        store = Down(str(tmp_path))
        kept = KeptSession(ID, "d", "[]", "h", "", b"{}", owner="a")
        writer = SessionWriter(store, Settings("", unreachable="go_on"), kept, lambda why: None)
        for _ in range(2):  # they are counted anew once they are written
            await writer.begin(kept, [], new=True)
            store.down = True
            for number in range(1, 4):
                await writer.write([Entry(number, b"x" * 900, reply="y" * 100)])
            fourth = asyncio.create_task(writer.write([Entry(4, b"x")]))
            assert await asyncio.wait({fourth}, timeout=0.2) == (set(), {fourth})
            store.down = False
            await fourth
            assert [entry.number for entry in await store.entries(ID) if entry.is_step] == [1, 2, 3, 4]
        await store.close()

    asyncio.run(run())


@contextlib.asynccontextmanager
async def walked(folder: Path) -> AsyncIterator[tuple[SqliteStore, Walk, Walk]]:
    """Yield a store with an episode of three steps, the environment that has it, and another one."""
    store = SqliteStore(str(folder))
    with Walk() as env, Walk() as other:
        execution = env._execution
        await execution.reset(seed=1)
        await begin_journal(store, ID, execution, execution.episode.latest())
        for _ in range(3):
            await execution.call_tool("walk", {})
        yield store, env, other
    await store.close()


@pytest.mark.parametrize("number", [1, 2])
def test_a_journal_that_lacks_a_step_is_not_continued(tmp_path: Path, number: int) -> None:
    async def run() -> None:
        async with walked(tmp_path) as (store, _, other):
            intent = b'[null,{"name":"walk","arguments":{},"step":%d}]' % number
            await store.append(ID, 1, [Entry(number, intent)], None)
            with pytest.raises(SessionLost, match="lacks a step"):
                await continue_from(store, ID, other._execution)

    asyncio.run(run())


def test_a_snapshot_that_cannot_be_read_is_played_over(tmp_path: Path) -> None:
    async def run() -> None:
        async with walked(tmp_path) as (store, env, other):
            await store.append(ID, 1, [Entry(SNAPSHOT, b"no pickle")], None)
            await continue_from(store, ID, other._execution)
            assert other.at == env.at

    asyncio.run(run())
