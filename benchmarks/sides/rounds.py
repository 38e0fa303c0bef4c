"""The loop of a side's program: a line ``NAME SECONDS`` on stdin plays a round, a line of JSON on stdout reports it.

It has no other imports than Python's own: every side's virtual environment runs it.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor


def play(works: dict[str, Callable[[], object]], in_thread: Collection[str] = ()) -> None:
    """Play the requested works until stdin ends. A work is one call.

    Args:
        works: by name.
        in_thread: names of those that are not played in the main thread.
    """
    print("ready", flush=True)
    with ThreadPoolExecutor(1) as pool:
        for line in sys.stdin:
            name, seconds = line.split()
            if name in in_thread:
                played = pool.submit(one_round, works[name], float(seconds)).result()
            else:
                played = one_round(works[name], float(seconds))
            print(json.dumps(played), flush=True)


def one_round(work: Callable[[], object], seconds: float) -> dict[str, object]:
    """Call it for so long: seconds on the clock, of processor time, and of each call."""
    clock = time.perf_counter
    latencies: list[float] = []
    gc.collect()
    began, cpu_began = clock(), time.process_time()
    until, before = began + seconds, began
    while before < until:
        work()
        now = clock()
        latencies.append(now - before)
        before = now
    return {"wall_s": before - began, "cpu_s": time.process_time() - cpu_began, "latencies": latencies}
