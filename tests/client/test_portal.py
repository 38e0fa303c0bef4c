"""The portal, awaited from coroutines of other loops."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from mcpenv_client.portal import Portal, in_daemon_thread

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


def test_the_end_of_a_loop_does_not_wait_for_a_blocking_call_in_a_daemon_thread() -> None:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        held.wait(LIMIT_S)
        over.set()

    async def body() -> tuple[int, int]:
        task = asyncio.ensure_future(in_daemon_thread(hold))
        found: tuple[int, int] = await in_daemon_thread(divmod, 7, 2)
        with pytest.raises(ZeroDivisionError):
            await in_daemon_thread(divmod, 1, 0)
        task.cancel()
        return found

    assert asyncio.run(body()) == (3, 1)
    assert not over.is_set()
    held.set()
    assert over.wait(LIMIT_S)  # its loop is closed, which is no error
