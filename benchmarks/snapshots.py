"""What snapshots cost: 100 episodes of a SQLite environment held at once, over the wire; and what replaying would cost.

``python -m benchmarks.snapshots [--quick]``
"""

from __future__ import annotations

import gc
import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from mcpenv import MCPEnvironment
from mcpenv.config import ServerConfig
from mcpenv.serve import serving
from mcpenv.worlds import SQLiteWorld
from mcpenv_client import EnvClient

ROWS = 1000
STEPS = 20


class Shop(MCPEnvironment):
    """A table of a thousand products in memory, some 60 KiB, and a notebook in Python."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    THREAD_AFFINE = True

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:")
        self.world = SQLiteWorld(self.db)
        self.notes: list[str] = []
        self.tool(self.sell)

    def reset(self, seed: int | None = None) -> None:
        """Fill the shelves."""
        self.notes, rng = [], random.Random(seed)
        self.db.executescript(
            "DROP TABLE IF EXISTS products; CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, stock INT)"
        )
        self.db.executemany(
            "INSERT INTO products VALUES (?, ?, ?)",
            [(number, f"product {number} {rng.random():.30f}", 100) for number in range(ROWS)],
        )
        self.db.commit()

    def sell(self, product: int) -> int:
        """Sell one; gives what is left."""
        with self.db:
            self.db.execute("UPDATE products SET stock = stock - 1 WHERE id = ?", (product,))
        self.notes.append(f"sold {product}")
        (left,) = self.db.execute("SELECT stock FROM products WHERE id = ?", (product,)).fetchone()
        return int(left)

    def close(self) -> None:
        """Close the database."""
        self.db.close()


@dataclass(frozen=True)
class Measured:
    """One row of the table."""

    what: str
    figure: str


def run(quick: bool = False) -> list[Measured]:
    """Measure; a tenth of the episodes where it is to be quick."""
    episodes = 10 if quick else 100
    # As many slots again, for the forks.
    config = ServerConfig(max_concurrent_envs=2 * episodes + 1)
    with serving(Shop, config) as url, ExitStack() as stack:
        trunks = [stack.enter_context(EnvClient(url).sync()) for _ in range(episodes)]
        played = [timed(lambda env=env, seed=seed: play(env, seed)) for seed, env in enumerate(trunks)]
        gc.collect()
        before = resident_bytes()
        held = [timed(env.snapshot) for env in trunks]
        gc.collect()
        grown = resident_bytes() - before
        refs = [ref for ref, _ in held]
        restored = [timed(lambda env=env, ref=ref: env.restore(ref)) for env, ref in zip(trunks, refs, strict=True)]
        forked = [timed(lambda env=env, ref=ref: env.fork(ref)) for env, ref in zip(trunks, refs, strict=True)]
        for fork, _ in forked:
            stack.enter_context(fork)
        for env, (fork, _) in zip(trunks, forked, strict=True):
            assert fork.call_tool("sell", {"product": 0}).text == env.call_tool("sell", {"product": 0}).text == "99"
    size = sum(ref.bytes for ref in refs) / episodes
    return [
        Measured("episodes held at once", str(episodes)),
        Measured(f"to play {STEPS} steps again (reset and steps), p50", milliseconds(played)),
        Measured("snapshot, p50", milliseconds(held)),
        Measured("restore, p50", milliseconds(restored)),
        Measured("fork, with its instance and its socket, p50", milliseconds(forked)),
        Measured("size as counted, each", f"{size / 1024:.0f} KiB"),
        Measured("resident memory, each", f"{grown / episodes / 1024:.0f} KiB"),
    ]


def play(env: Any, seed: int) -> None:
    env.reset(seed=seed)
    for product in range(STEPS):
        env.call_tool("sell", {"product": product + 1})


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gave, and the seconds that it took."""
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def milliseconds(of: list[tuple[Any, float]]) -> str:
    took_s = sorted(seconds for _, seconds in of)
    return f"{1000 * took_s[len(took_s) // 2]:.2f} ms"


def resident_bytes() -> int:
    """Memory of this process, the server's with the client's."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(arguments: list[str]) -> None:
    for row in run(quick="--quick" in arguments):
        print(f"{row.what:<60} {row.figure:>12}")


if __name__ == "__main__":
    main(sys.argv[1:])
