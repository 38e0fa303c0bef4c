"""Trips of a fleet that is killed, and the script that plays some of them: a pool with a checkpoint, and agents.

The script's arguments: a folder, in which it keeps its checkpoint and the trips, the seed, the first number and the one
after the last, and the URLs of the servers. It may be killed and started again at any time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastmcp
import mcp

from mcpenv_client import EnvClient, Trajectory
from mcpenv_client.pool import EnvPool, Episode, Limits

logger = logging.getLogger("trips")

AT_ONCE = 12
PATIENCE_S = 120.0
"""Seconds after which an agent that does not get on gives up."""

Call = tuple[str, dict[str, Any]]

Read = Callable[[], Awaitable[str]]
"""Reads a resource as an agent."""

Act = Callable[[str, dict[str, Any]], Awaitable[tuple[bool, str]]]
"""Calls a tool as an agent; returns True if that failed, and its text."""


def calls_of(seed: int) -> list[Call]:
    """Return the 20 to 200 calls of a trip, the last of which ends it."""
    chance = random.Random(seed)
    calls: list[Call] = []
    for number in range(int(20 * 10 ** chance.random()) - 1):
        kind = chance.random()
        if kind < 0.03:
            calls.append(("linger", {"seconds": 0.02}))
        elif kind < 0.05:
            calls.append(("fail", {}))
        elif kind < 0.12:
            calls.append(("send", {"name": f"{seed}-{number}", "seconds": 0.01}))
        else:
            calls.append(("walk", {"by": chance.randint(1, 9)}))
    return [*calls, ("arrive", {})]


@dataclass
class Trip:
    """A trip that was played.

    Attributes:
        trajectory: the server's record.
        seen: the answers that the player got, by the number of the step.
        again: how often an agent lost its connection, or was refused, and came again.
    """

    trajectory: Trajectory
    seen: dict[int, str]
    again: int = 0


@dataclass
class Agent:
    """An agent that plays a trip by a stock MCP client, and goes to the next server when something fails.

    Attributes:
        seen: the answers that it got, by the number of the step.
        again: how often it came again.
    """

    url: str
    servers: Sequence[str]
    calls: Sequence[Call]
    number: int
    seen: dict[int, str] = field(default_factory=dict)
    again: int = 0

    async def play(self) -> None:
        """Play until the end."""
        path, began = urlsplit(self.url).path, time.monotonic()
        own = f"http://{urlsplit(self.url).netloc}"
        others = [each for each in self.servers if each != own]
        for server in itertools.cycle([own, *others]):
            at = len(self.seen)
            try:
                await (_by_fastmcp if self.number % 2 else _by_mcp)(server + path, self._calls)
            except* Exception as failed:  # httpx's, anyio's or MCP's: the host of an agent tries again
                if len(self.seen) > at:
                    began = time.monotonic()
                if time.monotonic() - began > PATIENCE_S:
                    raise
                logger.info("agent %d comes again: %r", self.number, failed.exceptions)
                self.again += 1
            else:
                return
            await asyncio.sleep(random.uniform(0.05, 0.3))

    async def _calls(
        self, read: Callable[[], Awaitable[str]], call: Callable[..., Awaitable[tuple[bool, str]]]
    ) -> None:
        step = int(await read())
        while step < len(self.calls):
            failed, text = await call(*self.calls[step])
            if failed and self.calls[step][0] != "fail":
                raise RuntimeError(text)  # perhaps a refusal, perhaps a step
            step += 1
            self.seen[step] = text


async def _by_fastmcp(url: str, play: Callable[[Read, Act], Awaitable[None]]) -> None:
    async with fastmcp.Client(url, timeout=30, init_timeout=15) as client:

        async def read() -> str:
            return str((await client.read_resource("trip://steps"))[0].text)

        async def call(name: str, arguments: dict[str, Any]) -> tuple[bool, str]:
            result = await client.call_tool(name, arguments, raise_on_error=False)
            return result.is_error, result.content[0].text

        await play(read, call)


async def _by_mcp(url: str, play: Callable[[Read, Act], Awaitable[None]]) -> None:
    async with mcp.Client(url, read_timeout_seconds=30) as client:

        async def read() -> str:
            return str((await client.read_resource("trip://steps")).contents[0].text)  # type: ignore[union-attr]

        async def call(name: str, arguments: dict[str, Any]) -> tuple[bool, str]:
            result = await client.call_tool(name, arguments)
            return bool(result.is_error), result.content[0].text  # type: ignore[union-attr]

        await play(read, call)


def _text(result: Any) -> str:
    error = result.observation.error
    return str(error.message) if error is not None else str(result.observation.result.content[0]["text"])


async def of_client(servers: Sequence[str], seed: int, number: int, *, agent: bool) -> Trip:
    """Play a trip by an `EnvClient`, which waits if an agent plays."""
    turned = [*servers[number % len(servers) :], *servers[: number % len(servers)]]
    async with EnvClient(turned, resume=True, max_resumes=60, capacity_timeout_s=60) as env:
        first = await env.reset(seed=seed, episode_id=f"trip-{number}")
        if agent:
            player = Agent(str(first.info["mcp_url"]), servers, calls_of(seed), number)
            async with asyncio.TaskGroup() as group:
                group.create_task(player.play())
                result = await env.wait()
            assert result.done
            return Trip(await env.trajectory(), player.seen, player.again)
        seen = {}
        for step, (name, arguments) in enumerate(calls_of(seed), start=1):
            seen[step] = _text(await env.call_tool(name, arguments))
        return Trip(await env.trajectory(), seen)


class Policy:
    """The policy of a pool: plays trips, and has agents play every third one."""

    def __init__(self, servers: Sequence[str]) -> None:
        self.servers = servers

    async def __call__(self, episode: Episode) -> tuple[dict[int, str], int]:
        """Return the answers, and how often an agent came again."""
        number, seed = episode.assignment.number, episode.assignment.row["seed"]
        if number % 3 == 0:
            agent = Agent(str(episode.first.info["mcp_url"]), self.servers, calls_of(seed), number)
            await agent.play()
            return agent.seen, agent.again
        seen = {}
        for step, (name, arguments) in enumerate(calls_of(seed), start=1):
            seen[step] = _text(await episode.call_tool(name, arguments))
        return seen, 0


async def main(folder: Path, seeds: Sequence[int], servers: Sequence[str]) -> None:
    """Play the trips of these seeds, and keep each in a file of its own."""
    pool = EnvPool([*servers], AT_ONCE, backend="remote")
    done: set[int] = pool.restore(folder / "checkpoint") or set()
    rows: list[Mapping[str, Any]] = [{"seed": seed} for seed in seeds]
    async with pool, pool.play(Policy(servers), rows, limits=Limits(episode_timeout_s=600)) as stream:
        async for played in stream:
            assert played.trajectory is not None, played
            seen, again = played.value
            trip = folder / f"trip-{seeds[played.assignment.number]}"
            trip.write_bytes(pickle.dumps((played.trajectory, seen, again)))
            logger.info("played %d", seeds[played.assignment.number])
            done.add(played.assignment.number)
            pool.checkpoint(folder / "checkpoint", done)
    assert len(done) == len(seeds), done


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    _, given, first, last, *urls = sys.argv
    asyncio.run(main(Path(given), range(int(first), int(last)), urls))
