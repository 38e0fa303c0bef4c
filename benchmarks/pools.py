"""The speed and memory of pools: the same episodes in this process, in worker processes, in Ray actors, and on servers.

``python -m benchmarks pools [--quick]``

An episode has 20 calls of the maze's ``look`` by a policy that is a plain function. The digests of all episodes must be
equal wherever they are played, also where a place is killed in the middle. A way runs twice: the first rollout, which
makes the environments, is not measured.

The processor time of the busiest place says how the work is spread, also on a machine that has other work.

Ray is measured if it is installed. Its agents bind the host's address, so give it a network of its own:
``unshare -rn sh -c 'ip link set lo up && exec python -m benchmarks pools'``
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mcpenv.trajectories.fingerprint import digest_of
from mcpenv_client.pool import BlockingEpisode, EnvPool, Episode, Played

TARGET = str(Path(__file__).parent.parent / "envs" / "maze_mcp")
STEPS = 20

Servers = dict[str, int]
"""The process ids of servers, by their URLs."""


def looks(episode: BlockingEpisode) -> None:
    """Look around, again and again."""
    for _ in range(STEPS):
        episode.call_tool("look")


async def looks_async(episode: Episode) -> None:
    """Look around, again and again."""
    for _ in range(STEPS):
        await episode.call_tool("look")


@contextlib.contextmanager
def server() -> Iterator[tuple[str, int]]:
    """Serve the maze in a process of its own, and yield its URL and process id."""
    with tempfile.TemporaryDirectory() as place:
        ready = Path(place, "ready.json")
        command = [sys.executable, "-m", "mcpenv", "run", TARGET, "--port", "0", "--ready-file", str(ready)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                end = time.monotonic() + 60.0
                while not ready.exists():
                    assert process.poll() is None and time.monotonic() < end, "the server did not start"
                    time.sleep(0.05)
                yield json.loads(ready.read_text(encoding="utf-8"))["url"], process.pid
            finally:
                process.kill()


def run(quick: bool = False) -> dict[str, Any]:
    """Print the table, and return its figures."""
    return asyncio.run(_run(100 if quick else 1000))


async def _run(episodes: int) -> dict[str, Any]:
    print(f"{episodes} episodes of {STEPS} steps of the maze; MB of all places beside this process")
    print(f"load average before: {os.getloadavg()[0]:.1f}\n")
    print(f"{'':22}{'steps/s':>10}{'of local':>10}{'busiest':>10}{'MB':>8}{'killed':>9}{'begun again':>13}")
    figures: dict[str, Any] = {"episodes": episodes}
    digests: set[tuple[str, ...]] = set()
    with contextlib.ExitStack() as stack:
        servers = dict(stack.enter_context(server()) for _ in range(2))
        for way, (arguments, policy) in ways(servers).items():
            async with EnvPool(**arguments) as pool:
                speed, busiest_s, memory_mb, played = await measured(pool, policy, episodes, servers)
                digests.add(digests_of(played))
                kills = "local" not in way and way != "remote, 1 server"
                again = 0
                if kills:
                    played = await killed(pool, policy, episodes, servers)
                    digests.add(digests_of(played))
                    again = sum(each.attempts > 1 for each in played)
            figures |= {f"{way}, steps/s": round(speed), f"{way}, MB": round(memory_mb)}
            figures[f"{way}, CPU seconds of the busiest place"] = round(busiest_s, 2)
            share = speed / figures["local, steps/s"]
            line = f"{way:22}{speed:10,.0f}{share:10.2f}{busiest_s:8.2f} s{memory_mb:8.0f}"
            print(line + (f"{1:9}{again:13}" if kills else ""), flush=True)
    assert len(digests) == 1, "the episodes differ between backends"
    print("\nThe trajectories of all ways are equal, also of those with a kill.")
    return figures


def ways(servers: Servers) -> dict[str, tuple[dict[str, Any], Any]]:
    """Return the arguments of a pool and the policy, by name. The last has its server killed."""
    urls = list(servers)
    found: dict[str, tuple[dict[str, Any], Any]] = {"local": ({"target": TARGET, "size": 8}, looks)}
    for backend in ("process", "ray") if find_spec("ray") else ("process",):
        for workers in (1, 2):
            arguments = {"target": TARGET, "size": 8, "backend": backend, "workers": workers}
            found[f"{backend}, {workers} worker{'s'[: workers - 1]}"] = (arguments, looks)
    found["remote, 1 server"] = ({"target": urls[0], "size": 32, "backend": "remote"}, looks_async)
    found["remote, 2 servers"] = ({"target": urls, "size": 32, "backend": "remote"}, looks_async)
    return found


async def measured(
    pool: EnvPool, policy: Any, episodes: int, servers: Servers
) -> tuple[float, float, float, list[Played]]:
    """Return the steps per second of a rollout, the CPU seconds of its busiest place, the MB of all, its episodes."""
    played = await pool.rollout(policy, n=max(episodes // 10, 64), seed=10_000)
    before = {pid: cpu_of(pid) for pid in {place_of(each, servers) for each in played}}
    began = time.perf_counter()
    played = await pool.rollout(policy, n=episodes, seed=0)
    seconds = time.perf_counter() - began
    busiest_s = max(cpu_of(pid) - spent_s for pid, spent_s in before.items())
    memory_mb = sum(memory_of(pid) for pid in before if pid != os.getpid())
    return episodes * STEPS / seconds, busiest_s, memory_mb, played


async def killed(pool: EnvPool, policy: Any, episodes: int, servers: Servers) -> list[Played]:
    """Return the episodes of a rollout in which the place that answers the tenth part is killed."""
    played: list[Played] = []
    async for each in pool.play(policy, n=episodes, seed=0, retries=5):
        played.append(each)
        if len(played) == episodes // 10:
            place = place_of(each, servers)
            os.kill(place, signal.SIGKILL)
    return sorted(played, key=lambda each: each.assignment.number)


def place_of(played: Played, servers: Servers) -> int:
    """Return the id of the process that played an episode."""
    named = re.match(r"(?:process|actor) (\d+)", played.where)
    if named:
        return int(named[1])
    return servers.get(played.where, os.getpid())


def digests_of(played: list[Played]) -> tuple[str, ...]:
    """Return the digests of the episodes, each of which must be there."""
    return tuple(digest_of(each.trajectory) for each in played if each.trajectory is not None)


def memory_of(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / 1e6


def cpu_of(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
