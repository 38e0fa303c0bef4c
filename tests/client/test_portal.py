"""The portal, awaited from coroutines of other loops."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from mcpenv_client.portal import Portal

WORD: ContextVar[str] = ContextVar("word", default="none")
LIMIT_S = 30


def test_a_coroutine_of_any_loop_awaits_one_that_runs_in_the_portals_thread() -> None:
    portal = Portal()

    async def where() -> tuple[int, str]:
        return threading.get_ident(), WORD.get()

    async def main() -> None:
        WORD.set("given")
        thread, word = await portal.run(where)
        assert thread != threading.get_ident()
        assert word == "given"

        async def within() -> tuple[int, str]:
            return await portal.run(where)

        assert (await portal.run(within))[0] == thread

    asyncio.run(main())
    asyncio.run(main())


def test_an_exception_is_raised_to_the_caller() -> None:
    async def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        asyncio.run(Portal().run(fail))


def test_cancelling_the_caller_cancels_the_coroutine() -> None:
    began, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def main() -> None:
        waiting = asyncio.create_task(Portal().run(wait))
        await asyncio.to_thread(began.wait, LIMIT_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert cancelled.wait(LIMIT_S)
