"""The speed and memory of pools: the same episodes in this process, in worker processes, and on a server.

``python -m benchmarks pools [--quick]``

An episode has 20 calls of the maze's ``look`` by a policy that is a plain function. The digests of all episodes must be
equal wherever they are played. A way runs twice: the first rollout, which makes the environments, is not measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mcpenv.packaging.target import load_target
from mcpenv.server.serve import serving
from mcpenv.trajectories.fingerprint import digest_of
from mcpenv_client.pool import BlockingEpisode, EnvPool, Episode, Played

TARGET = str(Path(__file__).parent.parent / "envs" / "maze_mcp")
STEPS = 20


def looks(episode: BlockingEpisode) -> None:
    """Look around, again and again."""
    for _ in range(STEPS):
        episode.call_tool("look")


async def looks_async(episode: Episode) -> None:
    """Look around, again and again."""
    for _ in range(STEPS):
        await episode.call_tool("look")


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Serve the maze in this process: the client and the server share one core."""
    target = load_target(TARGET)
    with serving(target.factory) as url:
        yield url


def run(quick: bool = False) -> dict[str, Any]:
    """Print the table, and return its figures."""
    episodes = 100 if quick else 1000
    print(f"{episodes} episodes of {STEPS} steps of the maze; steps per second, MB of all worker processes\n")
    print(f"{'':34}{'steps/s':>12}{'MB':>8}")
    figures: dict[str, Any] = {"episodes": episodes}
    digests: set[tuple[str, ...]] = set()
    with server() as url:
        ways: dict[str, tuple[dict[str, Any], Any]] = {
            "local": ({"target": TARGET, "size": 8}, looks),
            "process, 1 worker": ({"target": TARGET, "size": 8, "backend": "process", "workers": 1}, looks),
            "process, 2 workers": ({"target": TARGET, "size": 8, "backend": "process", "workers": 2}, looks),
            "remote, server in this process": ({"target": url, "size": 32, "backend": "remote"}, looks_async),
        }
        for way, (arguments, policy) in ways.items():
            speed, memory_mb, played = asyncio.run(measure(arguments, policy, episodes))
            digests.add(tuple(digest_of(each.trajectory) for each in played if each.trajectory is not None))
            print(f"{way:34}{speed:12,.0f}{memory_mb:8.0f}", flush=True)
            figures |= {f"{way}, steps/s": round(speed), f"{way}, MB": round(memory_mb)}
    assert len(digests) == 1, "the episodes differ between backends"
    print(f"\nThe trajectories of all {len(ways)} ways are equal.")
    return figures


async def measure(arguments: dict[str, Any], policy: Any, episodes: int) -> tuple[float, float, list[Played]]:
    """Return the steps per second of a rollout, the memory of the workers in MB, and its episodes."""
    async with EnvPool(**arguments) as pool:
        await pool.rollout(policy, n=max(episodes // 10, 16), seed=10_000)
        began = time.perf_counter()
        played = await pool.rollout(policy, n=episodes, seed=0)
        seconds = time.perf_counter() - began
        workers = {int(each.where.removeprefix("process ")) for each in played if each.where.startswith("process ")}
        return episodes * STEPS / seconds, sum(map(memory_of, workers)), played


def memory_of(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    if pid == os.getpid():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / 1e6
