"""The environments of one process that are reused between episodes."""

from __future__ import annotations

import asyncio
import threading

from mcpenv_client.portal import in_daemon_thread

from .assignment import Share
from .clock import Clock
from .episode import Begin, Outcome
from .instances import Instances, NamedBlocking, NamedSession
from .playing import are_fit, changed, play, play_blocking


class ReadyEnvironments:
    """Environments for whole episodes, created when none is free. A failed one is closed.

    Blocking policies may play in several threads. Async ones belong to one event loop.

    Args:
        instances: makes environments.
        at_once: the number of concurrent policies; further episodes are reset and wait. None: no limit.

    Attributes:
        clock: the clock of the episodes' limits.
    """

    def __init__(self, instances: Instances, at_once: int | None = None) -> None:
        self.clock = Clock()
        self._instances = instances
        self._at_once = at_once
        self._gate = _gate(at_once)
        self._thread_gate = None if at_once is None else threading.Semaphore(at_once)
        self._blocking: list[NamedBlocking] = []
        self._sessions: list[NamedSession] = []

    def play_blocking(self, begin: Begin, share: Share) -> list[Outcome]:
        """Play a share with a plain function. Raises as `play`."""
        session = self._blocking.pop() if self._blocking else self._instances.blocking()
        fit = False
        try:
            outcomes = play_blocking(session, begin, share, self.clock, self._thread_gate)
            fit = are_fit(outcomes)
        finally:
            if fit and not self.clock.ended:
                self._blocking.append(session)
            else:
                session.close()
        return [changed(each, environment=session.name) for each in outcomes]

    async def play(self, begin: Begin, share: Share) -> list[Outcome]:
        """Play a share with an async policy.

        Raises:
            WireError: the assignment cannot be played.
            PoolError: the share has several episodes, and the environment cannot be saved.
        """
        session = self._sessions.pop() if self._sessions else await in_daemon_thread(self._instances.session)
        fit = False
        try:
            outcomes = await play(session, begin, share, self.clock, self._gate)
            fit = are_fit(outcomes)
        finally:
            if fit:
                self._sessions.append(session)
            else:
                await session.close()
        return [changed(each, environment=session.name) for each in outcomes]

    def close(self) -> None:
        """Close the environments of blocking policies. Those of policies that run are closed when they return."""
        self.clock.end()
        while self._blocking:
            self._blocking.pop().close()

    async def close_sessions(self) -> None:
        """Close the environments of async policies, in their event loop.

        Environments may be created again in another loop.
        """
        self._gate = _gate(self._at_once)
        while self._sessions:
            await self._sessions.pop().close()


def _gate(at_once: int | None) -> asyncio.Semaphore | None:
    return None if at_once is None else asyncio.Semaphore(at_once)
