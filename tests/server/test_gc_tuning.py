"""The collector of a server's process looks once at what is made, and all the same finds garbage that is older."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcpenv.server.http.gc_tuning import MIDDLE, THRESHOLDS, YOUNG, tuned_gc
from mcpenv_client import EnvClient


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
        self.more: list[Any] = []
        self.data = b"x" * size


def make_objects(count: int) -> list[Any]:
    """So many that the collector counts."""
    return [[] for _ in range(count)]


@pytest.fixture
def imported() -> int:
    """Objects that the collector knows, none of them put aside."""
    gc.unfreeze()
    return len(gc.get_objects())


def test_it_is_left_as_it_was(imported: int) -> None:
    before = gc.get_threshold()
    with tuned_gc():
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > imported / 2
    with pytest.raises(KeyError), tuned_gc():
        raise KeyError
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_what_the_program_has_frozen_stays_frozen(imported: int) -> None:
    gc.freeze()
    with tuned_gc(), tuned_gc():
        pass
    assert gc.get_freeze_count() > imported / 2


def test_a_forked_server_freezes_what_it_has_made_since(imported: int) -> None:
    gc.freeze()
    before, made = gc.get_freeze_count(), make_objects(5000)
    with tuned_gc(forked=True):
        assert gc.get_freeze_count() > before + len(made) / 2  # others may end meanwhile
    assert gc.get_freeze_count() > before - len(made) / 2


@pytest.mark.parametrize("own", [(0, 10, 10), (0, 0, 0)])
def test_a_collector_that_is_off_stays_off(own: tuple[int, int, int]) -> None:
    before = gc.get_threshold()
    gc.set_threshold(*own)
    try:
        with tuned_gc():
            assert gc.get_threshold() == own
        assert gc.get_threshold() == own
    finally:
        gc.set_threshold(*before)


def test_what_is_set_meanwhile_stays() -> None:
    before = gc.get_threshold()
    try:
        with tuned_gc():
            gc.set_threshold(777, 5, 5)
        assert gc.get_threshold() == (777, 5, 5)
    finally:
        gc.set_threshold(*before)


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


def test_what_is_young_is_looked_at_early_and_what_is_older_seldom() -> None:
    with tuned_gc(), looks() as seen:
        kept = make_objects(30 * YOUNG)
    assert len(kept) == 30 * YOUNG
    assert len(seen) >= 27
    assert {generation for generation, _ in seen} == {0}
    assert max(count for _, count in seen) < 2 * YOUNG


def test_young_cycles_are_freed_by_the_next_look() -> None:
    with tuned_gc():
        gone = weakref.ref(Knot())
        kept = make_objects(2 * YOUNG)
        assert gone() is None and kept


def late_garbage() -> weakref.ref[Knot]:
    """A cycle that had been looked at before it became garbage."""
    knot = Knot()
    gone = weakref.ref(knot)
    assert len(make_objects(2 * YOUNG)) > 0
    assert all(each is not knot for each in gc.get_objects(0))
    del knot
    assert len(make_objects(2 * YOUNG)) > 0
    assert gone() is not None
    return gone


def test_late_garbage_is_freed_in_one_call_that_never_waits() -> None:
    with tuned_gc():
        gone = late_garbage()
        kept = make_objects((MIDDLE + 5) * YOUNG)
        assert gone() is None and kept


def test_who_asks_for_it_has_late_garbage_freed_and_imports_passed_over(imported: int) -> None:
    with tuned_gc():
        gone = late_garbage()
        with looks() as seen:
            gc.collect()
        assert gone() is None
        assert gc.get_freeze_count() > imported / 2
        assert seen[0][1] < imported / 2


GAMES = """
import collections
import gc

from mcpenv import MCPEnvironment

HELD = collections.deque(maxlen=30)

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
            assert gc.get_threshold()[:2] == (2_000, 40)  # as a server has it
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4096 >> 20

    def reset(self, seed=None, episode_id=None):
        self.game = Game()
        HELD.append(self.game)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.slow
def test_authors_who_leave_a_megabyte_in_cycles_at_each_reset_have_it_freed(tmp_path: Path) -> None:
    """2,000 of them, of which 30 are held at a time: two gigabytes, of which a server that looks at no
    older ones would keep most."""
    program = tmp_path / "games.py"
    program.write_text(GAMES)
    command = [sys.executable, "-m", "mcpenv", "run", str(program), "--port", "0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = next(word for line in process.stdout for word in line.split() if word.endswith("/mcp"))
            base = url.removesuffix("/mcp")
            most = 0
            with EnvClient(base).sync() as one, EnvClient(base).sync() as other:
                for _ in range(1_000):
                    one.reset()
                    other.reset()
                    most = max(most, int(one.call_tool("memory").text))
        finally:
            process.terminate()
    assert most < 1_500, most
