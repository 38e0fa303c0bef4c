"""``python -m benchmarks.put_away``: idle durable episodes.

The memory of a server before and after they are put away, and the time of waking one. All episodes are awake at once,
each with a WebSocket. Both processes need a limit of open files above that number.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from mcpenv_client import EnvClient

from .mcp_calls import MODERN
from .serving import Server, mcpenv

TARGETS: dict[str, tuple[str, str]] = {
    "played again (echo_mcp)": (str(Path(__file__).parents[1] / "envs/echo_mcp"), "echo_message"),
    "saved state (Notes)": (f"{Path(__file__).with_name('put_away_world.py')}:Notes", "note"),
}
"""For each way of continuing an episode: what is served, and the tool that is called."""

MESSAGE = {"message": "hello"}
STEPS = 10
"""The steps of the episodes that are woken, before. Of the others, which only take memory: one."""
AT_ONCE = 16
"""Requests in flight while episodes begin."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 episodes, not 10,000")
    episodes, woken, idle_s = (2_000, 100, 100) if parser.parse_args().quick else (10_000, 400, 400)
    print(f"{episodes} episodes at one server, put away after {idle_s} s without a call.")
    print(
        f"MiB: resident memory of the server. Waking: {woken} by their clients, {woken} by an agent, one at a time.\n"
    )
    heads = (
        "", "MiB empty", "awake", "put away", "as many more", "KiB in store", "client p50", "p95 ms", "agent p50",
        "p95 ms",
    )  # fmt: skip
    print(f"{heads[0]:26}" + "".join(f"{head:>14}" for head in heads[1:]))
    for name, (target, tool) in TARGETS.items():
        found = asyncio.run(_measured(target, tool, episodes, woken, idle_s))
        print(f"{name:26}" + "".join(f"{value:14.1f}" for value in found.values()), flush=True)


async def _measured(target: str, tool: str, episodes: int, woken: int, idle_s: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        durable = ("--durable", f"{folder}/store?idle_s={idle_s}", "--max-sessions", str(episodes + 2 * woken))
        with mcpenv(target, *durable) as server:
            empty = _mib(server)
            clients = [EnvClient(server.base, resume=True, connect_timeout_s=60) for _ in range(episodes)]
            await _each(clients, lambda client: client.reset(seed=1))
            steps = {id(client): STEPS for client in (*clients[:woken], *clients[-woken:])}
            await _each(clients, lambda client: _played(client, tool, steps.get(id(client), 1)))
            assert await _awake(server) == episodes
            awake = _mib(server)
            while await _awake(server):
                await asyncio.sleep(1.0)
            away = _mib(server)
            size = _kib(folder) / episodes
            addresses = [str(client.mcp_url) for client in clients[-woken:]]
            by_client = [await _timed(client.call_tool(tool, MESSAGE)) for client in clients[:woken]]
            async with httpx.AsyncClient() as http:
                by_agent = [await _timed(_called(http, address, tool)) for address in addresses]
            for client in clients:
                client.abandon()
            others = [EnvClient(server.base, resume=True, connect_timeout_s=60) for _ in range(episodes)]
            await _each(others, lambda client: client.reset(seed=2))
            again = _mib(server)
            for client in others:
                client.abandon()
    return {
        "empty": empty, "awake": awake, "put_away": away, "as_many_others": again, "store_kib": size,
        "client_p50_ms": _percentile(by_client, 50), "client_p95_ms": _percentile(by_client, 95),
        "agent_p50_ms": _percentile(by_agent, 50), "agent_p95_ms": _percentile(by_agent, 95),
    }  # fmt: skip


async def _each(clients: Sequence[EnvClient[Any, Any]], work: Callable[[EnvClient[Any, Any]], Awaitable[Any]]) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def one(client: EnvClient[Any, Any]) -> None:
        async with free:
            await work(client)

    await asyncio.gather(*map(one, clients))


async def _played(client: EnvClient[Any, Any], tool: str, steps: int) -> None:
    for _ in range(steps):
        await client.call_tool(tool, MESSAGE)


async def _awake(server: Server) -> int:
    async with httpx.AsyncClient() as http:
        in_use: int = (await http.get(f"{server.base}/capacity", timeout=60)).json()["active_sessions"]
    return in_use


async def _called(http: httpx.AsyncClient, address: str, tool: str) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": MESSAGE, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "Accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": tool,
    }  # fmt: skip
    answer = await http.post(address, json=body, headers=headers, timeout=60)
    assert answer.status_code == 200 and '"error"' not in answer.text, answer.text


async def _timed(work: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


def _percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100)[percent - 1]


def _kib(folder: str) -> float:
    return sum(file.stat().st_size for file in Path(folder, "store").iterdir()) / 1024


def _mib(server: Server) -> float:
    return server.resident_kib() / 1024


if __name__ == "__main__":
    main()
