"""The cost of snapshots: 100 episodes of a SQLite environment held at once over the wire, and of replaying instead.

``python -m benchmarks snapshots [--quick]``
"""

from __future__ import annotations

import gc
import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from mcpenv import MCPEnvironment
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv.worlds import SQLiteWorld
from mcpenv_client import EnvClient

ROWS = 1000
STEPS = 20


class Shop(MCPEnvironment):
    """The table of a thousand products in memory, some 60 KiB, and a notebook in Python."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    THREAD_AFFINE = True

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:")
        self.world = SQLiteWorld(self.db)
        self.notes: list[str] = []
        self.tool(self.sell)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
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
        """Sell one, and return the remaining number."""
        with self.db:
            self.db.execute("UPDATE products SET stock = stock - 1 WHERE id = ?", (product,))
        self.notes.append(f"sold {product}")
        (left,) = self.db.execute("SELECT stock FROM products WHERE id = ?", (product,)).fetchone()
        return int(left)

    def close(self) -> None:
        """Close the database."""
        self.db.close()


def run(quick: bool = False) -> dict[str, Any]:
    """Print the table and return its figures: medians in milliseconds, sizes in KiB each."""
    episodes = 10 if quick else 100
    # As many slots again, for the forks.
    config = ServerConfig(max_concurrent_envs=2 * episodes + 1)
    with serving(Shop, config) as url, ExitStack() as stack:
        trunks = [stack.enter_context(EnvClient(url).sync()) for _ in range(episodes)]
        played = [timed(partial(play, env, seed)) for seed, env in enumerate(trunks)]
        gc.collect()
        before = resident_bytes()
        held = [timed(env.snapshot) for env in trunks]
        gc.collect()
        grown = resident_bytes() - before
        refs = [ref for ref, _ in held]
        restored = [timed(partial(env.restore, ref)) for env, ref in zip(trunks, refs, strict=True)]
        forked = [timed(partial(env.fork, ref)) for env, ref in zip(trunks, refs, strict=True)]
        for fork, _ in forked:
            stack.enter_context(fork)
        for env, (fork, _) in zip(trunks, forked, strict=True):
            assert fork.call_tool("sell", {"product": 0}).text == env.call_tool("sell", {"product": 0}).text == "99"
    figures = {
        "episodes held at once": episodes,
        "replay ms": median_ms(played),
        "snapshot ms": median_ms(held),
        "restore ms": median_ms(restored),
        "fork ms": median_ms(forked),
        "counted KiB": round(sum(ref.bytes for ref in refs) / episodes / 1024),
        "resident KiB": round(grown / episodes / 1024),
    }
    print(
        f"{episodes} episodes of {STEPS} steps and {ROWS} rows of SQLite, held at once; over /ws, one after the other"
    )
    print(f"{'reset and the steps again':<50} {figures['replay ms']:>8.2f} ms")
    print(f"{'snapshot':<50} {figures['snapshot ms']:>8.2f} ms")
    print(f"{'restore, in the same instance':<50} {figures['restore ms']:>8.2f} ms")
    print(f"{'fork: another instance, its reset, its socket':<50} {figures['fork ms']:>8.2f} ms")
    print(f"{'a snapshot, as it is counted':<50} {figures['counted KiB']:>8} KiB")
    print(f"{'a snapshot, in resident memory':<50} {figures['resident KiB']:>8} KiB")
    return figures


def play(env: Any, seed: int) -> None:
    env.reset(seed=seed)
    for product in range(STEPS):
        env.call_tool("sell", {"product": product + 1})


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result, and the seconds that it took."""
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def median_ms(of: list[tuple[Any, float]]) -> float:
    return round(1000 * median(seconds for _, seconds in of), 2)


def resident_bytes() -> int:
    """Return the memory of this process in bytes, the server's with the client's."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
