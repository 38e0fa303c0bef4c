"""Two workers under load while one is stopped and one killed in turn: ``python tests/world/soak.py --minutes 10``.

Orchestrators step, impatient clients leave before their answer or in the middle of a call, silent sockets and
unfinished bodies stay open, and a scraper reads ``/metrics``. Prints the figures as JSON; exit status 1 if one of them
is wrong: somebody who had nothing to do with a disturbed worker waited longer than 5 s, a count is not exact, or memory
grew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cluster_bench import Server, is_over, served

from mcpenv_client import CapacityReached, EnvClient, McpenvError

LIMIT_S = 5.0
LOST_COUNTS_S = 2.0
"""A worker that is killed lacks the counts since its last report, which it makes once a second."""


@dataclass
class Figures:
    """What was seen.

    Attributes:
        disturbed: the time at which each worker was stopped or killed, by its process.
        steps: the time of each answered step, with its worker.
        unsure: steps without an answer, which may have been counted.
        longest_s: the longest wait of each kind, of clients of other workers.
        late: those waits that were longer than the limit.
        memory: bytes of each process, every 5 s.
    """

    disturbed: dict[int, float] = field(default_factory=dict)
    killed: dict[int, float] = field(default_factory=dict)
    steps: list[tuple[float, int]] = field(default_factory=list)
    unsure: int = 0
    opened: int = 0
    told: int = 0
    lost: int = 0
    scrapes: int = 0
    left: int = 0
    longest_s: dict[str, float] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    memory: dict[int, list[int]] = field(default_factory=dict)

    def waited(self, what: str, began: float, worker: int | None = None) -> None:
        """Note a wait that has ended now. One that began before a disturbance may have been of that worker."""
        now = time.monotonic()
        waited_s = now - began
        if worker is None:
            concerned = any(began <= at <= now for at in self.disturbed.values())
        else:
            concerned = self.disturbed.get(worker, now) < now
        if concerned:
            return
        self.longest_s[what] = max(self.longest_s.get(what, 0.0), waited_s)
        if waited_s > LIMIT_S:
            self.late.append(f"{what}: {waited_s:.1f} s")


async def orchestrate(url: str, seen: Figures, until: float) -> None:
    while time.monotonic() < until:
        began, worker = time.monotonic(), None
        try:
            async with EnvClient(url, capacity_timeout_s=0) as env:
                await env.reset()
                seen.opened += 1
                seen.waited("open", began)
                worker = int((await env.call_tool("process")).text)
                for _ in range(20):
                    began = time.monotonic()
                    seen.unsure += 1
                    await env.call_tool("add")
                    seen.unsure -= 1
                    seen.steps.append((time.monotonic(), worker))
                    seen.waited("step", began, worker)
                    await asyncio.sleep(0.02)
        except CapacityReached:
            seen.told += 1
            seen.waited("refusal", began, worker)
            await asyncio.sleep(0.5)
        except (McpenvError, OSError):
            seen.lost += 1
            if worker is not None and worker not in seen.disturbed:
                seen.late.append(f"lost a session of worker {worker}, which nobody disturbed")


async def scrape(url: str, seen: Figures, until: float) -> None:
    while time.monotonic() < until:
        for path in ("/metrics", "/sessions", "/health", "/ready"):
            began = time.monotonic()
            with contextlib.suppress(httpx.HTTPError):
                async with httpx.AsyncClient(base_url=url, timeout=40) as http:
                    await http.get(path)
            seen.scrapes += 1
            seen.waited(path, began)
        await asyncio.sleep(1)


async def leave(url: str, seen: Figures, until: float) -> None:
    """Ask, and go away before the answer."""
    address = urlsplit(url)
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(b"GET /sessions HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await writer.drain()
            writer.close()
            seen.left += 1
        await asyncio.sleep(0.05)


async def give_up(url: str, seen: Figures, until: float) -> None:
    """Begin an episode, and leave in the middle of a call, in turn as its orchestrator and as its agent."""
    while time.monotonic() < until:
        with contextlib.suppress(McpenvError, OSError, TimeoutError, httpx.HTTPError):
            async with EnvClient(url, capacity_timeout_s=0) as env:
                started = await env.reset()
                seen.left += 1
                if seen.left % 2:
                    await asyncio.wait_for(env.call_tool("hold", {"gate": "/no/such/file"}), 0.3)
                else:
                    call = {"name": "hold", "arguments": {"gate": "/no/such/file"}}
                    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
                    accept = {"Accept": "application/json, text/event-stream"}
                    async with httpx.AsyncClient(timeout=0.3) as http:
                        await http.post(started.info["mcp_url"], json=message, headers=accept)
        await asyncio.sleep(0.5)


async def say_little(url: str, sent: bytes, until: float) -> None:
    """Keep a connection on which the rest of a request never comes."""
    address = urlsplit(url)
    while time.monotonic() < until:
        with contextlib.suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(sent)
            async with asyncio.timeout(until - time.monotonic()):
                await reader.read()
            writer.close()
        await asyncio.sleep(0.5)


async def disturb(server: Server, seen: Figures, period_s: float, until: float) -> None:
    """Stop and kill workers in turn; of those that are stopped, every second one goes on."""
    turn = 0
    while time.monotonic() + period_s < until:
        await asyncio.sleep(period_s / 3)
        while len(server.workers()) < 2:
            await asyncio.sleep(0.2)
        victim = sorted(server.workers())[turn % 2]
        seen.disturbed[victim] = time.monotonic()
        if turn % 3 == 1:
            seen.killed[victim] = time.monotonic()
            os.kill(victim, signal.SIGKILL)
        else:
            os.kill(victim, signal.SIGSTOP)
            if turn % 3 == 0:
                await asyncio.sleep(min(8.0, period_s / 3))
                os.kill(victim, signal.SIGCONT)
                await asyncio.sleep(2)
                del seen.disturbed[victim]
            else:
                while not is_over(victim):
                    await asyncio.sleep(0.2)
                seen.killed[victim] = seen.disturbed[victim]
        turn += 1
        await asyncio.sleep(period_s * 2 / 3)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def watch(server: Server, seen: Figures, until: float) -> None:
    while time.monotonic() < until:
        for process in (server.process.pid, *server.workers()):
            with contextlib.suppress(OSError):
                seen.memory.setdefault(process, []).append(resident_bytes(process))
        await asyncio.sleep(5)


async def soak(server: Server, minutes: float, clients: int, silent: int, period_s: float) -> dict[str, Any]:
    seen, until = Figures(), time.monotonic() + minutes * 60
    unfinished = (
        b"POST /step HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
    )
    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(orchestrate(server.url, seen, until))
        for number in range(silent):
            tasks.create_task(say_little(server.url, b"" if number % 2 else unfinished, until))
        for actor in (scrape, leave, give_up):
            tasks.create_task(actor(server.url, seen, until))
        tasks.create_task(disturb(server, seen, period_s, until))
        tasks.create_task(watch(server, seen, until))
    await asyncio.sleep(2)
    async with httpx.AsyncClient(base_url=server.url, timeout=40) as http:
        text = (await http.get("/metrics")).text
        capacity = (await http.get("/capacity")).json()
    counted = sum(
        float(found) for found in re.findall(r'^mcpenv_steps_total\{.*tool="add".*\} (\S+)$', text, re.MULTILINE)
    )
    certain = sum(at < seen.killed.get(worker, float("inf")) - LOST_COUNTS_S for at, worker in seen.steps)
    hub = seen.memory.pop(server.process.pid)
    memory = {"hub": [hub[len(hub) // 3], hub[-1]]}
    # From the fourth of the measurements on, a worker has served.
    memory |= {f"worker {process}": [of[3], of[-1]] for process, of in seen.memory.items() if len(of) > 10}
    figures = {
        "minutes": minutes,
        "disturbances": len(seen.killed),
        "episodes": seen.opened,
        "steps answered": len(seen.steps),
        "steps counted": int(counted),
        "steps without an answer": seen.unsure,
        "steps whose counts a kill may have lost": len(seen.steps) - certain,
        "told to retry": seen.told,
        "sessions lost with their worker": seen.lost,
        "scrapes": seen.scrapes,
        "clients that left": seen.left,
        "longest wait, s": {what: round(longest_s, 2) for what, longest_s in seen.longest_s.items()},
        "late": seen.late,
        "memory, MB": {name: [round(each / 1e6, 1) for each in of] for name, of in memory.items()},
        "sessions at the end": capacity["active_sessions"],
    }
    figures["exact"] = certain <= counted <= len(seen.steps) + seen.unsure
    figures["flat"] = all(last - first < 20e6 for first, last in memory.values())
    figures["sound"] = bool(
        figures["exact"] and figures["flat"] and not seen.late and not figures["sessions at the end"]
    )
    return figures


def run(minutes: float, clients: int = 8, silent: int = 60, period_s: float = 60.0) -> dict[str, Any]:
    """Return the figures of one run."""
    with served("--shutdown-timeout-s", "5", "--max-sessions", "200") as server:
        return asyncio.run(soak(server, minutes, clients, silent, period_s))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--silent", type=int, default=60, help="silent connections, half of them with half a body")
    parser.add_argument("--period-s", type=float, default=60.0, help="seconds between two disturbances")
    given = parser.parse_args()
    result = run(given.minutes, given.clients, given.silent, given.period_s)
    print(json.dumps(result, indent=1))
    sys.exit(not result["sound"])
