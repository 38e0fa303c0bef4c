"""Very many episodes at once in one process, each with an orchestrator and an agent: all to the end, nothing lost."""

from __future__ import annotations

import asyncio
import itertools
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from fastmcp import Client
from fault_bench import modern

from mcpenv_client import EnvClient

EPISODES = 300
STOCK_EVERY = 25
"""Of so many agents one is a stock client, of the eras in turn; the others send what it sends, and cost less."""

CONNECTING_AT_ONCE = 64
"""Sockets that are being opened at a time: a listening socket's queue is finite."""


class Episode:
    """One of them: what its agent will do, and what that is worth."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.coin = 1 + number % 97
        self.puts = [1 + (number + turn) % 5 for turn in range(number % 4 + 1)]

    @property
    def rewards(self) -> list[float]:
        """One a step."""
        return [float(self.coin * put) for put in self.puts] + [0.5]


@contextmanager
def served(target: Path, *options: str) -> Iterator[tuple[str, int]]:
    """The URL and the process id of ``mcpenv run TARGET``."""
    command = [sys.executable, "-m", "mcpenv", "run", str(target), "--port", "0", "--log-level", "warning", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=few_files
    ) as process:
        assert process.stdout is not None
        try:
            found = next(filter(None, (re.search(r"http://[^\s/]+:\d+", line) for line in process.stdout)))
            Thread(target=process.stdout.read, daemon=True).start()
            yield found.group(), process.pid
        finally:
            process.terminate()
            assert process.wait(60) == 0


async def act(http: httpx.AsyncClient, mcp_url: str, episode: Episode) -> None:
    """An agent's calls, with what the 2026-07-28 protocol asks for, on connections shared with others."""
    calls: list[tuple[str, dict[str, Any]]] = [("put", {"number": put}) for put in episode.puts]
    total = 0
    for (name, arguments), put in zip([*calls, ("shut", {})], [*episode.puts, 0], strict=True):
        body, headers = modern("tools/call", {"name": name, "arguments": arguments})
        answer = (await http.post(mcp_url, json=body, headers=headers)).json()
        total += put
        assert answer["result"]["content"] == [{"type": "text", "text": str(total)}]
        assert "reward" not in str(answer)


async def act_as_stock_client(mcp_url: str, episode: Episode) -> None:
    """The same with a client that is not ours, in either era."""
    era: Any = ("legacy", "2026-07-28")[episode.number // STOCK_EVERY % 2]
    async with Client(mcp_url, mode=era) as client:
        for put, total in zip(episode.puts, itertools.accumulate(episode.puts), strict=True):
            assert (await client.call_tool("put", {"number": put})).data == total
        assert (await client.call_tool("shut")).data == sum(episode.puts)


async def play(url: str, count: int, timeout_s: float) -> None:
    episodes = [Episode(number) for number in range(count)]
    door = asyncio.Semaphore(CONNECTING_AT_ONCE)
    limits = httpx.Limits(max_connections=100)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, limits=limits, timeout=timeout_s))

        async def orchestrate(episode: Episode) -> tuple[EnvClient[Any], str]:
            async with door:
                env = EnvClient(url, message_timeout_s=timeout_s, connect_timeout_s=timeout_s)
                await stack.enter_async_context(env)
                reset = await env.reset(coin=episode.coin)
            return env, reset.info["mcp_url"]

        begun = await asyncio.gather(*map(orchestrate, episodes))
        listed = (await http.get("/sessions")).json()["sessions"]
        assert len(listed) == count
        assert {session["state"] for session in listed} == {"running"}
        assert len({mcp_url for _, mcp_url in begun}) == count

        async def agent(episode: Episode, mcp_url: str) -> None:
            if episode.number % STOCK_EVERY:
                await act(http, mcp_url, episode)
            else:
                async with door:
                    await act_as_stock_client(mcp_url, episode)

        async def told(episode: Episode, env: EnvClient[Any]) -> None:
            end = await env.wait(timeout_s)
            assert end.done
            assert (end.reward, end.info["return"]) == (0.5, sum(episode.rewards))
            steps = (await env.trajectory()).steps
            assert [step.reward and step.reward.value for step in steps] == episode.rewards
            assert [step.call.step for step in steps] == list(range(1, len(steps) + 1))
            assert {step.call.plane for step in steps} == {"agent"}
            assert (await env.state()).step_count == len(episode.puts) + 1

        await asyncio.gather(
            *(told(episode, env) for episode, (env, _) in zip(episodes, begun, strict=True)),
            *(agent(episode, mcp_url) for episode, (_, mcp_url) in zip(episodes, begun, strict=True)),
        )
        listed = (await http.get("/sessions")).json()["sessions"]
        assert {session["state"] for session in listed} == {"done"}
        assert sum(session["step_count"] for session in listed) == sum(len(episode.puts) + 1 for episode in episodes)
    async with httpx.AsyncClient(base_url=url) as http:
        while (await http.get("/capacity")).json()["active_sessions"]:
            await asyncio.sleep(0)


def few_files() -> None:
    """A shell's usual limit, which the server has to raise for itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))


def threads_of(pid: int) -> int:
    """Return the number of threads of a process."""
    found = re.search(r"^Threads:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_concurrent_episodes_all_come_to_their_end_and_their_rewards_add_up() -> None:
    world = Path(__file__).parents[1].joinpath("many_world.py")
    with served(world, "--max-sessions", str(EPISODES)) as (url, pid):
        asyncio.run(play(url, EPISODES, 300.0))
        assert threads_of(pid) < 60
