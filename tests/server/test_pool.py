"""The pool of sessions, where what happens in one turn of the event loop matters."""

from __future__ import annotations

import asyncio

import pytest
from worlds import World

from mcpenv.server.config import ServerConfig
from mcpenv.server.sessions.credential import Credential
from mcpenv.server.sessions.factory import EnvironmentFactory
from mcpenv.server.sessions.pool import SessionPool

MINE = Credential.of("session-number-0001", "a-long-enough-secret")


class Holder:
    """A socket, as far as a session knows it."""

    def __init__(self) -> None:
        self.evicted = False

    def evict(self, why: str) -> None:
        self.evicted = True

    def dismiss(self, *, at_once: bool) -> None:
        """Nothing waits for a frame."""


@pytest.mark.parametrize(
    "comes_back", ["before it is known that it was lost", "before the session is released", "then"]
)
def test_a_client_that_comes_back_at_any_moment_keeps_its_session(comes_back: str) -> None:
    async def main() -> None:
        config = ServerConfig(resume_grace_s=300)
        source = EnvironmentFactory(World, config)
        pool = SessionPool(source, config)
        async with source.running(), pool.running():
            session = await pool.open_socket(MINE, resume=False)
            lost, new = Holder(), Holder()
            session.attach(lost)
            if comes_back == "before it is known that it was lost":
                session.attach(new)
                assert lost.evicted
                assert not session.detach(lost)
            else:
                assert session.detach(lost)
                releasing = asyncio.ensure_future(pool.release(session, lost=True))
                if comes_back == "then":
                    await releasing
                    assert session.grace is not None and not session.held
                assert await pool.open_socket(MINE, resume=True) is session
                session.attach(new)
                await releasing
            assert session.held
            assert session.grace is None
            assert not new.evicted
            assert session.detach(new)

    asyncio.run(asyncio.wait_for(main(), 20))
