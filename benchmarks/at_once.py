"""``python -m benchmarks.at_once ENVIRONMENT [NUMBER ...]``: live episodes of one process that are played in turn.

All begin, then each does the first call of its solution, then each the others: a solution is right only if no episode
sees another one. Memory is what the process grew by when all had done one call; a start is the processor time of a new
instance and its reset.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from mcpenv import load
from mcpenv.server.http.file_limits import allow_many

from .serving import status_of

ROOT = Path(__file__).resolve().parents[1]


def run(target: str, numbers: list[int]) -> None:
    """Measure each number of episodes in a process of its own, and print a table of Markdown."""
    print("| episodes | start, median (99 %) | memory | each | open files |\n|---|---|---|---|---|")
    for number in numbers:
        command = [sys.executable, "-m", "benchmarks.at_once", "--measure", target, str(number)]
        ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        one = json.loads(ended.stdout)
        print(
            f"| {number:,} | {one['median_ms']:.1f} ms ({one['p99_ms']:.1f}) | {one['mib']:.0f} MiB "
            f"| {1024 * one['mib'] / number:.0f} KiB | {one['files']:,} |",
            flush=True,
        )


def measure(target: str, number: int) -> dict[str, float]:
    """Play so many episodes in turn.

    Raises:
        AssertionError: one of them was not solved.
    """
    allow_many(number)
    with load(target) as first:
        new, tasks = type(first), first.get_tasks("train", 0, min(number, first.num_tasks("train")))
        first.reset(task=tasks[0])  # what is made once is not counted
        before, starts, every = status_of(os.getpid(), "VmRSS"), [], []
        for at in range(number):
            began = time.thread_time()
            env = new()
            env.reset(task=tasks[at % len(tasks)])
            starts.append(1000 * (time.thread_time() - began))
            every.append((env, list(tasks[at % len(tasks)].oracle or [])))
        for env, calls in every:
            env.call_tool(calls[0].tool_name, calls[0].arguments)
        grown, files = status_of(os.getpid(), "VmRSS") - before, len(os.listdir("/proc/self/fd"))
        for env, calls in every:
            for call in calls[1:]:
                env.call_tool(call.tool_name, call.arguments)
        for env, _ in every:
            assert env.end().info["return"] == 1.0
            env.close()
    starts.sort()
    return {
        "median_ms": statistics.median(starts),
        "p99_ms": starts[int(0.99 * len(starts))],
        "mib": grown / 1024,
        "files": files,
    }


if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
    else:
        run(sys.argv[1], [int(each) for each in sys.argv[2:]] or [200])
