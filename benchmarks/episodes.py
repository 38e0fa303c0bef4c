"""``python -m benchmarks.episodes [--quick]``: the cost of episodes in pools, with their records and without.

Processor time and memory of 1,000 episodes of 20 calls, in this process, in a worker and on a server.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mcpenv_client.pool import EnvPool, Episode

from .serving import process_cpu_s, tree

ROOT = Path(__file__).resolve().parents[1]
MAZE = ROOT / "envs" / "maze_mcp"
CALLS, SIZE = 20, 16
BACKENDS: tuple[Any, ...] = ("local", "process", "remote")


def run(quick: bool) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    episodes = 100 if quick else 1000
    print(f"Episodes in pools: {episodes} episodes of {CALLS} calls of the maze, {SIZE} at once.\n")
    print(f"{'':10}{'records':>8}{'CPU s here':>12}{'CPU s elsewhere':>17}{'MiB more here':>15}")
    figures: dict[str, Any] = {}
    for backend in BACKENDS:
        for records in (True, False):
            # In a process of its own, so that one does not pay for the memory of another.
            command = [sys.executable, "-m", "benchmarks.episodes", backend, str(int(records)), str(episodes)]
            ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            own = figures[f"{backend}{'' if records else ' without records'}"] = json.loads(ended.stdout)
            print(
                f"{backend:10}{'yes' if records else 'no':>8}{own['here_s']:12.1f}{own['elsewhere_s']:17.1f}"
                f"{own['more_mib']:15.0f}"
            )
    return figures


async def look(episode: Episode) -> None:
    """Play one episode."""
    for _ in range(CALLS):
        await episode.call_tool("look")


async def _measured(target: str, backend: Any, records: bool, episodes: int) -> dict[str, float]:
    options: dict[str, Any] = {"workers": 1} if backend == "process" else {}
    async with EnvPool(target, SIZE, backend=backend, **options) as pool:
        await pool.rollout(look, n=SIZE)  # what is made once is not counted
        before, others = resource.getrusage(resource.RUSAGE_SELF), _others_s()
        played = await pool.rollout(look, n=episodes, trajectories=records)
        after, others = resource.getrusage(resource.RUSAGE_SELF), _others_s() - others
    assert len(played) == episodes and all((each.trajectory is not None) == records for each in played)
    here_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"here_s": here_s, "elsewhere_s": others, "more_mib": (after.ru_maxrss - before.ru_maxrss) / 1024}


def _others_s() -> float:
    """Return the processor time of the worker or the server so far, in seconds."""
    own = os.getpid()
    return sum(process_cpu_s(each) for each in tree(own) if each != own)


def main(backend: str, records: bool, episodes: int) -> None:
    """Measure one case, and print it as JSON."""
    with ExitStack() as stack:
        target = str(MAZE)
        if backend == "remote":
            command = [sys.executable, "-m", "mcpenv", "run", target, "--port", "0", "--log-level", "error"]
            server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(server.terminate)
            assert server.stdout is not None
            found = re.search(
                r"http://[^\s/]+:\d+", "".join(iter(server.stdout.readline, "Ctrl-C stops the server.\n"))
            )
            assert found is not None
            target = found.group()
        figures = asyncio.run(_measured(target, backend, records, episodes))
    print(json.dumps(figures))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        main(sys.argv[1], sys.argv[2] == "1", int(sys.argv[3]))
    else:
        run(quick=sys.argv[1:] == ["--quick"])
