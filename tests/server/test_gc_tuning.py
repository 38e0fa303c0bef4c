"""The collector of a server's process looks once at what is made, and all the same finds garbage that is older."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from mcpenv.server.http.gc_tuning import MIDDLE, NEVER, OLD, YOUNG, MemoryInUse, memory_in_use, tuned_gc
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
    before, callbacks = gc.get_threshold(), [*gc.callbacks]
    with tuned_gc():
        assert gc.get_threshold() == (YOUNG, MIDDLE, OLD)
        assert gc.get_freeze_count() > imported / 2
    with pytest.raises(KeyError), tuned_gc():
        raise KeyError
    assert gc.get_threshold() == before
    assert gc.callbacks == callbacks
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("own", [(0, 10, 10), (0, 0, 0)])
def test_a_collector_that_is_off_stays_off(own: tuple[int, int, int]) -> None:
    before, callbacks = gc.get_threshold(), [*gc.callbacks]
    gc.set_threshold(*own)
    try:
        with tuned_gc():
            assert gc.get_threshold() == own
            assert gc.callbacks == callbacks
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


@pytest.fixture(scope="module")
def crowd() -> Iterator[list[Any]]:
    """Many objects, whose look is taken for a long one."""
    held = [make_objects(500_000) for _ in range(3)]
    yield held
    held.clear()
    gc.collect()  # or Python would wait for a quarter more than there was
    gc.freeze()


LINUX = pytest.mark.skipif(memory_in_use() is None, reason="what is in use cannot be told without glibc")


@contextmanager
def guarded(crowd: list[Any], rarely: int = 0) -> Iterator[None]:
    """A server's collector that has had a long look at everything, with nothing put aside."""
    assert crowd
    with pytest.MonkeyPatch.context() as patch, tuned_gc():
        patch.setattr("mcpenv.server.http.gc_tuning.SLOW_S", 0.0)
        patch.setattr("mcpenv.server.http.gc_tuning.POLL_SHARE", rarely)
        gc.unfreeze()
        gc.collect()
        yield


@LINUX
def test_after_a_long_look_at_everything_there_is_none_while_no_more_is_in_use(crowd: list[Any]) -> None:
    with guarded(crowd):
        assert gc.get_threshold() == (YOUNG, MIDDLE, NEVER)
        with looks() as seen:
            for _ in range(3 * OLD * MIDDLE):
                assert len(make_objects(2 * YOUNG)) > 0  # which is freed
        assert {generation for generation, _ in seen} == {0, 1}


@LINUX
@pytest.mark.parametrize("size", [0, 50_000])
def test_when_more_is_in_use_everything_is_looked_at(crowd: list[Any], size: int) -> None:
    """Garbage that is old when it becomes some: it is many objects, or large ones."""
    gone: list[weakref.ref[Knot]] = []
    held: list[Knot] = []
    with guarded(crowd), looks() as seen:
        seen.clear()
        for _ in range(100_000):
            knot = Knot(size)
            knot.more = make_objects(100)
            held.append(knot)
            if (2, ANY) in seen:
                break
            if len(held) * 100 > 4 * MIDDLE * YOUNG:
                gone.append(weakref.ref(held[0]))
                held.clear()
        assert (2, ANY) in seen
        assert gone and all(each() is None for each in gone)
        assert sum(len(gc.get_objects(generation)) for generation in range(3)) < 2 * sum(map(len, crowd))


@LINUX
def test_large_garbage_is_looked_for_before_it_is_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpenv.server.http.gc_tuning.POLL_SHARE", 0)
    gone: list[weakref.ref[Knot]] = []
    held: list[Knot] = []
    with tuned_gc(), looks() as seen:
        seen.clear()
        for _ in range(OLD * MIDDLE * YOUNG // 2 // 100):  # half of what would be a reason
            knot = Knot(150_000)
            knot.more = make_objects(100)
            held.append(knot)
            if gone and (2, ANY) in seen:
                break
            if not gone and len(held) * 100 > 2 * MIDDLE * YOUNG:
                gone.append(weakref.ref(held[0]))
                held.clear()
                seen.clear()
        assert (2, ANY) in seen
        assert gone[0]() is None
        assert gc.get_threshold() in ((YOUNG, MIDDLE, OLD), (YOUNG, MIDDLE, NEVER))


@LINUX
def test_what_is_in_use_is_asked_rarely_where_that_takes_long(
    crowd: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def slow() -> Any:
        asked.append(1)
        end = time.perf_counter() + 0.2
        while time.perf_counter() < end:
            pass
        return memory_in_use()

    monkeypatch.setattr("mcpenv.server.http.gc_tuning.memory_in_use", slow)
    with guarded(crowd, rarely=100), looks() as seen:
        before = len(asked)
        for _ in range(5 * MIDDLE):
            assert len(make_objects(2 * YOUNG)) > 0
    assert sum(generation == 1 for generation, _ in seen) > 1
    assert len(asked) == before > 0


def test_a_program_that_clears_the_callbacks_is_left_as_it_was() -> None:
    before, callbacks = gc.get_threshold(), [*gc.callbacks]
    try:
        with tuned_gc():
            gc.callbacks.clear()
    finally:
        gc.callbacks[:] = callbacks
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_without_knowing_what_is_in_use_it_is_as_python_has_it(
    crowd: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcpenv.server.http.gc_tuning.memory_in_use", lambda: None)
    with guarded(crowd):
        assert gc.get_threshold() == (YOUNG, MIDDLE, OLD)


def test_after_a_short_look_it_is_as_python_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpenv.server.http.gc_tuning.SLOW_S", 1_000.0)
    with tuned_gc():
        gc.collect()
        assert gc.get_threshold() == (YOUNG, MIDDLE, OLD)


@LINUX
def test_thresholds_of_somebody_elses_stay_after_a_long_look(crowd: list[Any]) -> None:
    before = gc.get_threshold()
    try:
        with guarded(crowd):
            gc.set_threshold(777, 5, 5)
            gc.collect()
            assert gc.get_threshold() == (777, 5, 5)
        assert gc.get_threshold() == (777, 5, 5)
    finally:
        gc.set_threshold(*before)


@LINUX
def test_it_is_left_as_it_was_after_a_long_look_too(crowd: list[Any]) -> None:
    before, callbacks = gc.get_threshold(), [*gc.callbacks]
    with guarded(crowd):
        assert gc.get_threshold() != before
    assert gc.get_threshold() == before
    assert gc.callbacks == callbacks


GAMES = """
import collections
import gc
import os

from mcpenv import MCPEnvironment

HELD = collections.deque(maxlen=30)
MANY = int(os.environ["MANY"])
CROWD = []

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
        if len(CROWD) < MANY:
            CROWD.extend([] for _ in range(MANY))  # a look at all of them is long
        self.game = Game()
        HELD.append(self.game)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize("many", [0, 3_000_000])
def test_authors_who_leave_a_megabyte_in_cycles_at_each_reset_have_it_freed(tmp_path: Any, many: int) -> None:
    """2,000 of them, of which 30 are held at a time: two gigabytes, of which a server that looks at no
    older ones would keep most."""
    program = tmp_path / "games.py"
    program.write_text(GAMES)
    command = [sys.executable, "-m", "mcpenv", "run", str(program), "--port", "0", "--log-level", "error"]
    environ = {**os.environ, "MANY": str(many)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
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


TELL = "from mcpenv.server.http.gc_tuning import memory_in_use; print(memory_in_use())"


def now() -> MemoryInUse:
    found = memory_in_use()
    assert found is not None
    return found


@LINUX
@pytest.mark.parametrize("size", [100_000, 100_000_000])
def test_what_is_held_is_in_use_until_it_is_let_go(size: int) -> None:
    """Within an arena of the C library, and as a mapping of its own."""
    before = now()
    held = [bytearray(size) for _ in range(300_000_000 // size)]
    between = now()
    assert 0.99 * size * len(held) < between.bytes - before.bytes < 1.1 * size * len(held)
    del held
    assert now().bytes - before.bytes < 30_000_000


@LINUX
def test_small_objects_are_counted_as_blocks() -> None:
    gc.collect()
    gc.disable()  # what is garbage already is no part of this
    try:
        before = now()
        held: list[list[int]] = [[] for _ in range(100_000)]
        assert now().blocks - before.blocks > 0.99 * len(held)
        del held
        assert now().blocks - before.blocks < 0.01 * 100_000
    finally:
        gc.enable()


def test_either_can_be_what_exceeds() -> None:
    before = MemoryInUse(100, 1_000)
    assert not MemoryInUse(125, 1_250).exceeds(before, 1.25)
    assert MemoryInUse(126, 10).exceeds(before, 1.25)
    assert MemoryInUse(1, 1_251).exceeds(before, 1.25)


def told(**environ: str) -> str:
    got = subprocess.run(
        [sys.executable, "-c", TELL],
        env={**os.environ, **environ},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return got.stdout.strip()


@LINUX
def test_nothing_is_told_where_pythons_allocator_is_turned_off() -> None:
    assert told().startswith("MemoryInUse")
    assert told(PYTHONMALLOC="malloc") == "None"


@pytest.mark.skipif(sys.platform.startswith("linux"), reason="where it cannot be told")
def test_elsewhere_nothing_is_told() -> None:
    assert memory_in_use() is None
