"""The collector of a server's process looks once at what is made, and all the same finds garbage that is older."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
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

    before = gc.get_threshold(), list(gc.callbacks)
    asyncio.run(main())
    assert (gc.get_threshold(), gc.callbacks) == before
    assert gc.get_freeze_count() == 0


def test_what_lives_is_looked_at_once() -> None:
    seen: list[int] = []

    def look(phase: str, about: dict[str, Any]) -> None:
        if phase == "start":
            seen.append(len(gc.get_objects()))

    async def main() -> None:
        with tuned_collector():
            gc.callbacks.insert(0, look)
            try:
                kept = make_objects(50 * collector.YOUNG_OBJECTS)
            finally:
                gc.callbacks.remove(look)
            assert len(kept) == 50 * collector.YOUNG_OBJECTS

    asyncio.run(main())
    assert len(seen) >= 45
    assert max(seen) < 2 * collector.YOUNG_OBJECTS


def test_young_cycles_are_freed_by_the_next_look() -> None:
    async def main() -> None:
        with tuned_collector():
            gone = weakref.ref(Knot())
            kept = make_objects(2 * collector.YOUNG_OBJECTS)
            assert gone() is None and kept

    asyncio.run(main())


def test_who_asks_for_it_has_cycles_freed_that_became_garbage_late() -> None:
    async def main() -> None:
        with tuned_collector():
            knot = Knot()
            kept = make_objects(2 * collector.YOUNG_OBJECTS)
            gone = weakref.ref(knot)
            assert all(each is not knot for each in gc.get_objects())  # put aside
            del knot
            kept += make_objects(2 * collector.YOUNG_OBJECTS)
            assert gone() is not None
            gc.collect()
            assert gone() is None and kept

    asyncio.run(main())


def late_garbage(size: int) -> weakref.ref[Knot]:
    """A cycle that was put aside before it became garbage."""
    knot = Knot(size)
    assert len(make_objects(2 * collector.YOUNG_OBJECTS)) > 0
    assert all(each is not knot for each in gc.get_objects())
    return weakref.ref(knot)


async def freed(gone: weakref.ref[Knot]) -> None:
    """Until it is."""
    async with asyncio.timeout(LIMIT_S):
        while gone() is not None:
            await asyncio.sleep(0.01)


def test_late_garbage_is_freed_when_many_objects_have_been_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with tuned_collector():
            gone = late_garbage(0)
            assert gone() is not None
            monkeypatch.setattr(collector, "MANY_OBJECTS", 0)
            kept = make_objects(gc.get_freeze_count() + 2 * collector.YOUNG_OBJECTS)
            await freed(gone)
            assert kept

    asyncio.run(main())


def test_late_garbage_is_freed_when_the_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with tuned_collector():
            monkeypatch.setattr(collector, "AT_MOST", 1.0)
            await freed(late_garbage(max(collector.MUCH_BYTES, collector.resident_bytes() // 2)))

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
