"""Test how long a cancelled call of a proxied server may take to release what it holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from mcpenv.extensions.mcp_proxy import loop

WAIT_S = 20.0


@pytest.mark.parametrize("patient", [True, False])
def test_a_cancelled_call_waits_for_10_s_at_most_for_what_it_releases(
    patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is `CANCELLED_WITHIN_S`: a caller whose call ends within it finds all released, another one goes on."""
    assert loop.CANCELLED_WITHIN_S == 10.0
    if not patient:
        monkeypatch.setattr(loop, "CANCELLED_WITHIN_S", 0.01)
    begun, go, released = threading.Event(), threading.Event(), threading.Event()

    async def held(may_end: Callable[[], bool]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(may_end)
            released.set()

    async def main() -> None:
        call = asyncio.create_task(loop.UPSTREAMS.run(held(lambda: patient or go.wait(WAIT_S))))
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert released.is_set() is patient
        go.set()
        assert await asyncio.to_thread(released.wait, WAIT_S)

    asyncio.run(asyncio.wait_for(main(), 2 * WAIT_S))
