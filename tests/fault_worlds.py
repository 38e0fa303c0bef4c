"""Worlds that go wrong when they are told to, and a census of their instances. Importable by a server of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from fastmcp import FastMCP

from mcpenv import MCPEnvironment, Observation, ToolCall, ToolOutcome


class Gate:
    """Shut until it is opened; sync code and coroutines of any loop wait at it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._mutex = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self.inside = 0

    def open(self) -> None:
        with self._mutex:
            self._event.set()
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def shut(self) -> None:
        self._event.clear()

    def wait(self) -> None:
        """Block the thread."""
        with self._mutex:
            self.inside += 1
        try:
            if not self._event.wait(60):
                raise RuntimeError("the gate was never opened")
        finally:
            with self._mutex:
                self.inside -= 1

    async def wait_async(self) -> None:
        """Wait in a coroutine."""
        event = asyncio.Event()
        with self._mutex:
            if self._event.is_set():
                return
            self._waiting.append((asyncio.get_running_loop(), event))
            self.inside += 1
        try:
            await event.wait()
        finally:
            with self._mutex:
                self.inside -= 1


class Census:
    """The counts of instances of a class. Constructors run in threads, so they are behind a lock.

    Attributes:
        opened: constructors that began.
        failed: constructors that raised.
        closed: instances whose ``close`` ran.
        closed_twice: how often ``close`` ran again.
        most: the largest number that existed at one moment, those under construction included.
        loop: the server's event loop.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._references: list[weakref.ref[Any]] = []
        self.opened = self.failed = self.closed = self.closed_twice = self.most = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def open(self, env: MCPEnvironment) -> None:
        with self._mutex:
            self.opened += 1
            self.most = max(self.most, self.opened - self.closed - self.failed)
            self._references = [r for r in self._references if r() is not None]
            self._references.append(weakref.ref(env))

    def fail(self) -> None:
        with self._mutex:
            self.failed += 1

    def close(self, again: bool) -> None:
        with self._mutex:
            if again:
                self.closed_twice += 1
            else:
                self.closed += 1

    @property
    def in_use(self) -> int:
        """Instances that were made and not closed."""
        with self._mutex:
            return self.opened - self.closed - self.failed

    @property
    def alive(self) -> int:
        """Instances that are still in memory."""
        with self._mutex:
            return sum(reference() is not None for reference in self._references)


@asynccontextmanager
async def _holding() -> AsyncIterator[dict[str, str]]:
    yield {"held": "yes"}


class Counted(MCPEnvironment):
    """A counter that tells the census of its class what becomes of it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    census: ClassVar[Census]
    gate: ClassVar[Gate]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.census, cls.gate = Census(), Gate()

    def __init__(self) -> None:
        self.is_closed = False
        self.count = 0
        self.census.open(self)

        @self.tool
        async def add(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncIterator[None]:
        cls.census.loop = asyncio.get_running_loop()
        yield

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation | None:
        self.count = 0
        return Observation(metadata={"seed": seed})

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float | None:
        return float(call.arguments.get("by", 1)) if outcome.error is None else -1.0

    def close(self) -> None:
        self.census.close(self.is_closed)
        self.is_closed = True


class Faulty(Counted):
    """One tool for every way to go wrong. A step is worth what it adds."""

    def __init__(self) -> None:
        super().__init__()

        @self.tool
        def add_sync(by: int = 1) -> int:
            """Add to the counter in a thread."""
            self.count += by
            return self.count

        @self.tool
        async def hold() -> int:
            """Count, then wait until the gate opens."""
            self.count += 1
            await self.gate.wait_async()
            return self.count

        @self.tool
        def block() -> str:
            """Block the thread until the gate opens."""
            self.gate.wait()
            return "through"

        @self.tool
        def crash(kind: str) -> str:
            """Raise in a thread."""
            raise FAULTS[kind]("this went wrong")

        @self.tool
        async def crash_async(kind: str) -> str:
            """Raise on the event loop."""
            raise FAULTS[kind]("this went wrong")

        @self.tool
        def recurse() -> int:
            """Exhaust the stack of a thread."""
            return endless(0)

        @self.tool
        async def recurse_async() -> int:
            """Exhaust the stack of the event loop."""
            return endless(0)

        @self.tool
        def big(megabytes: int) -> str:
            """A long text."""
            return "x" * (megabytes * 1024 * 1024)

        @self.tool
        def deep(levels: int) -> Any:
            """Lists in lists."""
            value: list[Any] = []
            for _ in range(levels):
                value = [value]
            return value

        @self.tool
        def cyclic() -> Any:
            """A list that holds itself."""
            value: list[Any] = []
            value.append(value)
            return value

        @self.tool
        async def abandoned() -> str:
            """Wait for what somebody has cancelled."""
            waited = asyncio.ensure_future(asyncio.Event().wait())
            waited.cancel()
            await waited
            return "never"

        @self.tool(terminal=True)
        async def submit() -> str:
            """End the episode."""
            return "handed in"


FAULTS: dict[str, type[BaseException]] = {
    "RuntimeError": RuntimeError,
    "MemoryError": MemoryError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "BaseException": BaseException,
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "TimeoutError": TimeoutError,
}


def endless(depth: int) -> int:
    """Never ends well."""
    return endless(depth + 1) + 1


class Stages(Counted):
    """Raises ``kind`` in the stage that the class names."""

    stage = ""
    kind = "RuntimeError"

    def __init__(self) -> None:
        super().__init__()
        try:
            self._maybe("constructor")
        except BaseException:
            self.census.fail()
            raise

        @self.tool
        def ping() -> str:
            """Answer."""
            return "pong"

        @self.tool
        async def ping_async() -> str:
            """Answer."""
            return "pong"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:
        self._maybe("reset")

    def score(self, call: ToolCall, outcome: ToolOutcome) -> float:
        self._maybe("score")
        return 1.0

    @property
    def state(self) -> Any:
        self._maybe("state")
        return super().state

    def close(self) -> None:
        super().close()
        self._maybe("close")

    def _maybe(self, stage: str) -> None:
        if type(self).stage == stage:
            raise FAULTS[type(self).kind]("this went wrong")


class AsyncStages(Stages):
    """The same in coroutines."""

    async def reset(self, seed: int | None = None, episode_id: str | None = None) -> None:  # type: ignore[override]
        self._maybe("reset")

    async def score(self, call: ToolCall, outcome: ToolOutcome) -> float:  # type: ignore[override]
        self._maybe("score")
        return 1.0

    async def close(self) -> None:  # type: ignore[override]
        self.census.close(self.is_closed)
        self.is_closed = True
        self._maybe("close")


class Gated(Counted):
    """Its constructor, reset, state or close waits at the gate while ``wait_in`` names it."""

    wait_in = ""

    def __init__(self) -> None:
        super().__init__()
        self._maybe("constructor")

        @self.tool
        def block() -> str:
            """Block the thread until the gate opens."""
            self.gate.wait()
            return "through"

        @self.tool(concurrent=True)
        async def look() -> str:
            """Wait at the gate beside others."""
            await self.gate.wait_async()
            return "seen"

        @self.tool(concurrent=True, terminal=True)
        async def submit() -> str:
            """End the episode."""
            return "handed in"

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation | None:
        self._maybe("reset")
        return super().reset(seed, episode_id)

    @property
    def state(self) -> Any:
        self._maybe("state")
        return super().state

    def close(self) -> None:
        self._maybe("close")
        super().close()

    def _maybe(self, stage: str) -> None:
        if type(self).wait_in == stage:
            self.gate.wait()


class EveryThird(Counted):
    """Every third constructor raises, the prototype's excepted."""

    tries: ClassVar[int] = -1
    mutex = threading.Lock()

    def __init__(self) -> None:
        super().__init__()
        with self.mutex:
            type(self).tries += 1
            fails = type(self).tries % 3 == 2
        if fails:
            self.census.fail()
            raise RuntimeError("the third")


class Journalled(MCPEnvironment):
    """Writes down what becomes of it, for a test in another process.

    Args:
        journal: a file; one line each time that an instance is made or closed, or a step begins or ends.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, journal: str) -> None:
        self.journal = Path(journal)
        self.log("opened")

        @self.tool
        async def wait(seconds: float) -> str:
            """Take a while."""
            self.log("began")
            await asyncio.sleep(seconds)
            self.log("ended")
            return "waited"

        @self.tool
        def stuck() -> str:
            """Never return."""
            self.log("stuck")
            threading.Event().wait()
            return "never"

    def close(self) -> None:
        self.log("closed")

    def log(self, word: str) -> None:
        # One write of one short line to a file opened for appending is never torn.
        file = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{word}\n".encode())
        finally:
            os.close(file)


class AsyncClosing(Faulty):
    """Its close is a coroutine, and calls that of its base class."""

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().close()


SERVER: FastMCP[dict[str, str]] = FastMCP("handed in", lifespan=lambda server: _holding())
"""Shared by the instances; each holds its lifespan."""


class WithServer(Counted):
    """A FastMCP server handed in, whose lifespan each instance holds."""

    def __init__(self) -> None:
        MCPEnvironment.__init__(self, SERVER)
        super().__init__()

        @self.tool
        def block() -> str:
            """Block the thread until the gate opens."""
            self.gate.wait()
            return "through"
