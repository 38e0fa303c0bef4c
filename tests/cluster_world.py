"""The world for servers of several processes, whose tools return the process in which they run."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import socket
import stat
import time
from pathlib import Path

from mcpenv import Context, MCPEnvironment


class World(MCPEnvironment):
    """Count, and say where."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.count = 0

        @self.tool
        async def add(by: int = 1) -> int:
            """Add to the counter."""
            self.count += by
            return self.count

        @self.tool
        async def process() -> int:
            """The process in which this runs."""
            return os.getpid()

        @self.tool
        async def hold(gate: str) -> int:
            """Wait until there is a file at ``gate``; beside it, one says that this waits."""
            note(gate)
            while not is_there(gate):
                await asyncio.sleep(0.01)
            self.count += 1
            return self.count

        @self.tool
        async def tell(ctx: Context, times: int) -> int:
            """Report progress."""
            for number in range(times):
                await ctx.report_progress(number + 1, times)
            return os.getpid()

        @self.tool
        async def stick(gate: str, seconds: float | None = None) -> int:
            """Block the event loop in C, for some time or for ever, once a file beside ``gate`` says so."""
            note(gate)
            if seconds is not None:
                return int(ctypes.PyDLL(None).usleep(int(seconds * 1e6)))
            return sum(itertools.repeat(0))

        @self.tool
        def burn(seconds: float) -> int:
            """Compute for so many seconds of processor time."""
            begun = time.thread_time()
            while time.thread_time() - begun < seconds:
                pass
            return os.getpid()

        @self.tool
        async def delays() -> list[int]:
            """TCP_NODELAY of each TCP connection of this process."""
            return [value for number in os.listdir("/proc/self/fd") if (value := no_delay(int(number))) is not None]


def note(gate: str) -> None:
    with open(f"{gate}.waiting", "a") as waiting:
        waiting.write(f"{os.getpid()}\n")


def is_there(gate: str) -> bool:
    return os.path.exists(gate)


def no_delay(number: int) -> int | None:
    """TCP_NODELAY of an open file; None if it is no TCP connection."""
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
    except OSError:  # closed meanwhile
        return None
    with socket.socket(fileno=os.dup(number)) as connection:
        if connection.family != socket.AF_INET or connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return None
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class Alone(World):
    """One session at a time."""

    SUPPORTS_CONCURRENT_SESSIONS = False


class Broken(MCPEnvironment):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no such luck")


class BrokenLater(World):
    """Can be made in the first process that does."""

    def __init__(self) -> None:
        super().__init__()
        if not Path(os.environ["CLUSTER_WORLD_ONCE"]).exists():
            raise RuntimeError("the file is not there")
