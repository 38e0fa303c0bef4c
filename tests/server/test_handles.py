"""Handles of past episodes: what they still say, and how many there are."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from mcpenv import MCPEnvironment
from mcpenv.server.sessions import handles
from mcpenv.server.sessions.handles import Handle, Handles


class World(MCPEnvironment):
    """A world with a tool, or two."""

    def __init__(self, more: bool = False) -> None:
        @self.tool
        def look() -> str:
            """Look."""
            return "a wall"

        if more:

            @self.tool
            def listen() -> str:
                """Listen."""
                return "nothing"


async def retired(kept: Handles, more: bool = False) -> Handle:
    env = World(more)
    await env.reset_async()
    handle = kept.mint(env._execution)
    kept.retire(handle)
    return handle


def test_of_very_many_past_episodes_the_last_ones_still_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MAX_PAST", 3)

    async def main() -> None:
        kept, forgotten = Handles(lambda: secrets.token_urlsafe(16)), list[str]()
        kept.on_forget = forgotten.append
        past = [await retired(kept) for _ in range(5)]
        assert [kept.find(handle.value) for handle in past] == [None, None, *past[2:]]
        assert forgotten == [handle.value for handle in past[:2]]
        kept.close()

    asyncio.run(main())


def test_past_episodes_say_what_tools_they_had_and_hold_equal_lists_together() -> None:
    async def main() -> None:
        kept = Handles(lambda: secrets.token_urlsafe(16))
        one, other, larger = await retired(kept), await retired(kept), await retired(kept, more=True)
        assert [tool.name for tool in (await one.listing()).tools] == ["look"]
        assert [tool.name for tool in (await larger.listing()).tools] == ["look", "listen"]
        assert one.left is other.left
        kept.close()

    asyncio.run(main())
