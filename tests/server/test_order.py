"""Invariant 6: nothing slow that an author wrote delays anybody else. Orders, not times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx
import pytest
from worlds import Slow

from mcpenv.server.serve import serving
from mcpenv_client import EnvClient

WHERE = ("constructor", "reset", "state", "tool")


@pytest.fixture
def gated() -> Iterator[type[Slow]]:
    class Gated(Slow):
        pass

    yield Gated
    Gated.block_in = ""


async def blocked(cls: type[Slow], where: str, url: str, entered: asyncio.Event) -> str:
    """Run into the shut gate; returns only when it opens."""
    if where == "constructor":
        cls.block_in = where
    client: EnvClient[Any, Any, Any] = EnvClient(url)
    await client.connect()
    if where != "constructor":
        await client.reset()
        cls.block_in = where
    doing: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "constructor": client.reset,
        "reset": client.reset,
        "state": client.state,
        "tool": lambda: client.call_tool("wait"),
    }
    entered.set()
    await doing[where]()
    await client.close()
    return "slow"


@pytest.mark.parametrize("where", WHERE)
def test_invariant_6_health_and_other_sessions_answer_before_slow_code_returns(where: str, gated: type[Slow]) -> None:
    async def main(url: str) -> list[str]:
        order: list[str] = []
        other: EnvClient[Any, Any, Any] = EnvClient(url)
        await other.reset()
        entered = asyncio.Event()
        slow = asyncio.create_task(blocked(gated, where, url, entered))
        slow.add_done_callback(lambda task: order.append("slow"))
        await entered.wait()
        async with httpx.AsyncClient() as http:
            for _ in range(3):
                assert (await http.get(f"{url}/health")).status_code == 200
        order.append("health")
        assert (await other.call_tool("quick")).text == "quick"
        order.append("other session")
        gated.block_in = ""
        await slow
        await other.close()
        return order

    with serving(gated) as url:
        assert asyncio.run(asyncio.wait_for(main(url), 30)) == ["health", "other session", "slow"]


def test_many_blocked_tools_do_not_stop_others(gated: type[Slow]) -> None:
    """anyio's pool has 40 places; here 60 tools block at once and a further session still steps."""

    async def main(url: str) -> None:
        clients: list[EnvClient[Any, Any, Any]] = [EnvClient(url) for _ in range(60)]
        for client in clients:
            await client.reset()
        gated.block_in = "tool"
        calls = [asyncio.create_task(client.call_tool("wait")) for client in clients]
        other: EnvClient[Any, Any, Any] = EnvClient(url)
        await other.reset()
        assert (await other.state()).step_count == 0
        assert (await other.call_tool("quick")).text == "quick"
        assert not any(call.done() for call in calls)
        gated.block_in = ""
        assert [result.text for result in await asyncio.gather(*calls)] == ["through"] * 60
        for client in [*clients, other]:
            await client.close()

    with serving(gated) as url:
        asyncio.run(asyncio.wait_for(main(url), 60))
