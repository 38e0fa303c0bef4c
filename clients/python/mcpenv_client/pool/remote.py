"""The backend that plays on servers: sessions over ``/ws``, distributed over healthy servers."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mcpenv_client.client import EnvClient
from mcpenv_client.connection.addresses import without_password
from mcpenv_client.errors import CapacityReached, ConnectionFailed, WireError
from mcpenv_client.types.records import StepResult

from .assignment import Share
from .backend import LOST, DirectRollout, JournalError, PoolError, Rollout, lost_result, step_failed
from .clock import Clock
from .episode import LATE_S, Begin, Outcome
from .playing import are_fit, changed, is_lost, play, play_blocking, played_of
from .servers import Client, Listed, Server, Servers
from .sessions import Session
from .threads import DaemonThreads

NOT_DURABLE = "a checkpoint needs servers with --durable, whose episodes outlive the script"


class RemoteBackend:
    """Plays on servers that run elsewhere.

    Each episode uses a session of one server, chosen by `Servers`.

    Args:
        servers: as `read_servers` takes them.
        size: the total number of sessions.
        connect: makes a client of a URL, with credentials and timeouts; None: `EnvClient`.
        warm: the number of sessions in addition to ``size`` to reset ahead of need.
        wait_s: maximum seconds to wait for a healthy server with free capacity. They do not pass while episodes of this
            pool run, which will leave theirs, or during a pause.
    """

    def __init__(
        self,
        servers: Listed,
        size: int,
        *,
        connect: Callable[[str], EnvClient] | None = None,
        warm: int = 0,
        wait_s: float = 60.0,
    ) -> None:
        self.size = size
        self._warm = warm
        self._servers = Servers(servers, self.at_once, connect=connect, wait_s=wait_s)
        self._gate, self._thread_gate = asyncio.Semaphore(size), threading.Semaphore(size)
        self._clock = Clock()
        self._playing, self._played_at = 0, 0.0
        self._held: list[tuple[Server, Client] | None] = [None] * size
        self._threads = DaemonThreads(size + warm)

    @property
    def at_once(self) -> int:
        """The number of sessions."""
        return self.size + self._warm

    @property
    def servers(self) -> list[Server]:
        """The servers, as they are now."""
        return self._servers.all

    async def start(self) -> None:
        """Read the list of servers, and check each."""
        await self._servers.start()

    async def close(self) -> None:
        """Close the sessions."""
        self.pause(False)  # a thread that waits could not end
        held, self._held = self._held, [None] * self.size
        await asyncio.gather(self._servers.close(), *(each[1].close() for each in held if each is not None))
        self._threads.shutdown(wait=False)

    async def begin(self, begin: Begin) -> Rollout:
        """Return a new rollout. Each call has a deadline, which `LATE_S` bounds."""
        limits = begin.limits
        if limits.step_timeout_s is None:
            limits = dataclasses.replace(limits, step_timeout_s=limits.episode_timeout_s + LATE_S)
        return DirectRollout(self, dataclasses.replace(begin, limits=limits))

    def pause(self, paused: bool) -> None:
        """Pause the episodes, or continue."""
        self._clock.stop() if paused else self._clock.start()

    async def play(self, begin: Begin, share: Share) -> list[Outcome]:
        """Play one share."""
        since = self._clock.now()

        def left_s() -> float:
            waited_s = 0.0 if self._playing else self._clock.now() - max(since, self._played_at)
            return self._servers.wait_s - waited_s

        journal = None if begin.log is None else begin.log.journal(share)
        at = None if journal is None or journal.credential is None else journal.url
        while True:
            server, client = await self._servers.take(left_s, blocking=not begin.is_async, journal=journal, url=at)
            outcomes: list[Outcome] | None = None
            at = None
            self._playing += 1
            try:
                if journal is not None:
                    journal.url = server.url
                    if not server.durable:
                        raise PoolError(f"{without_password(server.url)}: {NOT_DURABLE}")
                outcomes = await self._play(begin, client, share)
                self._played_at = self._clock.now()
                about = {"where": without_password(client.client.base_url), "environment": server.name}
                outcomes = [changed(each, **about) for each in outcomes]
                if journal is not None and are_fit(outcomes):
                    journal.played(outcomes)  # before the session is closed, and its episode deleted there
            except CapacityReached:
                self._servers.full(server)
                if journal is not None and not journal.restored:
                    journal.forget()
                continue
            except JournalError as error:
                if journal is None or not error.again:
                    raise
                journal.forget()
                continue
            finally:
                self._playing -= 1
                if journal is not None and outcomes is None:
                    client.client.abandon()  # another process goes on with it
                finished = len(outcomes) if outcomes is not None and are_fit(outcomes) else None
                lost = any(is_lost(each) and played_of(each).status == LOST for each in outcomes or ())
                await self._servers.give_back(server, client, finished=finished, lost=lost, reuse=journal is None)
            return outcomes

    async def _play(self, begin: Begin, client: Client, share: Share) -> list[Outcome]:
        if not client.blocking:
            session = cast("Session", client.client)
            return await play(session, begin, share, self._clock, self._gate)
        blocking: Any = client.client.sync()
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, play_blocking, blocking, begin, share, self._clock, self._thread_gate
        )

    # -- single steps

    async def reset(self, options: Sequence[Mapping[str, Any] | None]) -> list[StepResult[Any] | None]:
        """Reset environments, on the servers with the most free capacity."""
        give_up = time.monotonic() + self._servers.wait_s

        async def one(index: int, given: Mapping[str, Any] | None) -> StepResult[Any] | None:
            if given is None:
                return None
            if self._held[index] is None:
                self._held[index] = await self._servers.take(lambda: give_up - time.monotonic())
            return await self._ask(index, lambda client: client.reset(**given))

        return list(await asyncio.gather(*(one(index, given) for index, given in enumerate(options))))

    async def step(self, actions: Sequence[Any], timeout_s: float | None) -> list[StepResult[Any] | None]:
        """Take one step in each environment."""

        async def one(index: int, action: Any) -> StepResult[Any] | None:
            if action is None:
                return None
            return await self._ask(index, lambda client: client.step(action, timeout_s=timeout_s))

        return list(await asyncio.gather(*(one(index, action) for index, action in enumerate(actions))))

    async def _ask(self, index: int, call: Callable[[EnvClient], Any]) -> StepResult[Any]:
        held = self._held[index]
        if held is None:
            return lost_result(LOST, f"the episode of environment {index} was lost; reset it")
        server, client = held
        try:
            result: StepResult[Any] = await call(client.client)
        except (WireError, ConnectionFailed) as error:
            self._held[index] = None
            gone = isinstance(error, ConnectionFailed)
            await self._servers.give_back(server, client, finished=None, lost=gone)
            if gone:
                return lost_result(LOST, str(error))
            return step_failed(error)
        return result
