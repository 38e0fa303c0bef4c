"""What is in use is told as Python and the C library know it, and nothing is told where they do not."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcpenv.memory_in_use import MemoryInUse, memory_in_use

NOW = memory_in_use()
KNOWN = pytest.mark.skipif(NOW is None, reason="not glibc")
TELL = "from mcpenv.memory_in_use import memory_in_use; print(memory_in_use())"


def now() -> MemoryInUse:
    found = memory_in_use()
    assert found is not None
    return found


@KNOWN
@pytest.mark.parametrize("size", [100_000, 100_000_000])
def test_what_is_held_is_in_use_until_it_is_let_go(size: int) -> None:
    """Within an arena of the C library, and as a mapping of its own."""
    before = now()
    held = [bytearray(size) for _ in range(300_000_000 // size)]
    between = now()
    assert 0.99 * size * len(held) < between.bytes - before.bytes < 1.1 * size * len(held)
    del held
    assert now().bytes - before.bytes < 30_000_000


@KNOWN
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
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return got.stdout.strip()


@KNOWN
def test_nothing_is_told_where_pythons_allocator_is_turned_off() -> None:
    assert told().startswith("MemoryInUse")
    assert told(PYTHONMALLOC="malloc") == "None"


@pytest.mark.skipif(sys.platform.startswith("linux"), reason="where it cannot be told")
def test_elsewhere_nothing_is_told() -> None:
    assert memory_in_use() is None
