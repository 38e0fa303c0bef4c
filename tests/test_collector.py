"""The collector of a server's process looks once at what is made, and all the same finds garbage that is older."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mcpenv import collector
from mcpenv.collector import tuned_collector
from mcpenv_client import EnvClient

LIMIT_S = 30


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Tests have put aside what was imported, and go on with that."""
    yield
    gc.collect()
    gc.freeze()


class Knot:
    """Holds itself."""

    def __init__(self, size: int = 0) -> None:
        self.itself = self
        self.data = b"x" * size


def make_objects(count: int) -> list[Any]:
    """So many that the collector counts."""
    return [[] for _ in range(count)]


def test_it_is_left_as_it_was() -> None:
    async def main() -> None:
        with tuned_collector():
            assert gc.get_threshold()[0] == collector.YOUNG_OBJECTS
            assert gc.get_freeze_count() > 10_000
        with pytest.raises(KeyError), tuned_collector():
            raise KeyError

    before = gc.get_threshold()
    asyncio.run(main())
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


@contextmanager
def looks() -> Iterator[list[tuple[int, int]]]:
    """Of each look of the collector: the generation, and how many objects it goes through."""
    seen: list[tuple[int, int]] = []

    def look(phase: str, about: dict[str, Any]) -> None:
        if phase == "start":
            of = range(about["generation"] + 1)
            seen.append((about["generation"], sum(len(gc.get_objects(generation)) for generation in of)))

    gc.callbacks.append(look)
    try:
        yield seen
    finally:
        gc.callbacks.remove(look)


def test_what_lives_is_looked_at_once() -> None:
    async def main() -> None:
        with tuned_collector(), looks() as seen:
            kept = make_objects(50 * collector.YOUNG_OBJECTS)
        assert len(kept) == 50 * collector.YOUNG_OBJECTS
        assert len(seen) >= 45
        assert {generation for generation, _ in seen} == {0}
        assert max(count for _, count in seen) < 2 * collector.YOUNG_OBJECTS

    asyncio.run(main())


def test_young_cycles_are_freed_by_the_next_look() -> None:
    async def main() -> None:
        with tuned_collector():
            gone = weakref.ref(Knot())
            kept = make_objects(2 * collector.YOUNG_OBJECTS)
            assert gone() is None and kept

    asyncio.run(main())


def late_garbage(size: int = 0) -> weakref.ref[Knot]:
    """A cycle that had been looked at before it became garbage."""
    knot = Knot(size)
    gone = weakref.ref(knot)
    assert len(make_objects(2 * collector.YOUNG_OBJECTS)) > 0
    assert all(each is not knot for each in gc.get_objects(0))
    del knot
    assert len(make_objects(2 * collector.YOUNG_OBJECTS)) > 0
    assert gone() is not None
    return gone


def test_who_asks_for_it_has_cycles_freed_that_became_garbage_late_and_imports_passed_over() -> None:
    async def main() -> None:
        with tuned_collector():
            gone, imported = late_garbage(), gc.get_freeze_count()
            with looks() as seen:
                gc.collect()
            assert gone() is None
            assert gc.get_freeze_count() > 10_000
            assert seen[0][1] < imported / 2

    asyncio.run(main())


async def freed(gone: weakref.ref[Knot]) -> None:
    """Until it is."""
    async with asyncio.timeout(LIMIT_S):
        while gone() is not None:
            await asyncio.sleep(0.01)


def test_late_garbage_is_freed_when_the_process_has_grown() -> None:
    async def main() -> None:
        with tuned_collector():
            await freed(late_garbage(max(collector.MUCH_BYTES, collector.resident_bytes() // 3)))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sizes", "looked"),
    [
        # MiB: after the start, then before and after each look, or what it is found to be when there is none.
        ([100, 163, 163], 0),
        ([100, 170, 100, 130, 165, 110], 2),  # much was freed: when it has grown again, again
        ([100, 170, 169, 300, 330], 1),  # little was: not before it is twice as large, for a while
        ([100, 170, 169, 340, 340], 2),
        ([1000, 1240, 1249], 0),  # less than a quarter
        ([1000, 1250, 1000, 1100], 1),
    ],
)
def test_when_it_looks_at_everything(sizes: list[int], looked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        told, all_told = iter(sizes), asyncio.Event()

        def resident() -> int:
            size = next(told, None)
            if size is None:
                all_told.set()
                size = sizes[-1]
            return size << 20

        monkeypatch.setattr(collector, "ASK_EVERY_S", 0.001)
        monkeypatch.setattr(collector, "AT_MOST", 1e-9)  # rests for ever
        monkeypatch.setattr(collector, "resident_bytes", resident)
        with tuned_collector(), looks() as seen:
            async with asyncio.timeout(LIMIT_S):
                await all_told.wait()
        assert [generation for generation, _ in seen].count(2) == looked

    asyncio.run(main())


GAMES = """
from mcpenv import MCPEnvironment

class Game:
    def __init__(self):
        self.board = [[self] for _ in range(100)]  # a cycle
        self.picture = bytearray(1_000_000)
        self.picture[::4096] = b"x" * len(self.picture[::4096])

class Games(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        @self.tool
        async def memory() -> int:
            "How many MiB the process has."
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4096 >> 20

    def reset(self, seed=None, episode_id=None):
        self.game = Game()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_authors_who_leave_a_megabyte_in_cycles_at_each_reset_have_it_freed(tmp_path: Any) -> None:
    """2,000 of them: two gigabytes, of which a server without a collector would keep all."""
    program = tmp_path / "games.py"
    program.write_text(GAMES)
    command = [sys.executable, "-m", "mcpenv", "run", str(program), "--port", "0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = next(word for line in process.stdout for word in line.split() if word.startswith("http://"))
            base = url.removesuffix("/mcp")
            most = 0
            with EnvClient(base).sync() as one, EnvClient(base).sync() as other:
                for _ in range(1_000):
                    one.reset()
                    other.reset()
                    most = max(most, int(one.call_tool("memory").text))
        finally:
            process.terminate()
    assert most < 1_200, most
