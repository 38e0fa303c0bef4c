"""The bench of a server of several processes, as ``mcpenv run --workers`` starts it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from mcpenv_client import EnvClient

HERE = Path(__file__).parent
PATIENCE_S = 90.0
"""Longest wait for anything, in seconds; nothing is expected to take it."""


class Server:
    """The server that runs.

    Attributes:
        url: of the agents' door, and of the control plane if that has none of its own.
        control: of the control plane.
        said: what it has said on stderr, line by line.
    """

    def __init__(self, process: subprocess.Popen[str], url: str, control: str) -> None:
        self.process, self.url, self.control = process, url, control
        self.said: list[str] = []
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def workers(self) -> set[int]:
        """The processes of its workers that live."""
        return workers_of(self.process.pid)

    def capacity(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(self.control + "/capacity", timeout=PATIENCE_S).json()
        return answer

    def end(self) -> int:
        """Have it end in order; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE_S)
        self._hearing.join(PATIENCE_S)
        return status

    def _hear(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)


def is_over(process: int) -> bool:
    """Return True if a process ended with all its threads and closed its files. Its command is unknown before that."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state in ("Z", "X") and len(os.listdir(f"/proc/{process}/task")) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def workers_of(pid: int) -> set[int]:
    """Return the processes of the workers of a server, which its fork server has started (Linux)."""
    forking = [child for child in children_of(pid) if "forkserver" in command_of(child)]
    return {worker for each in forking for worker in children_of(each)}


def children_of(pid: int) -> set[int]:
    """Return the processes that a process has started (Linux)."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task").glob("*/children")
        return {int(child) for file in children for child in file.read_text().split()}
    return set()


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return ""


def command(world: str, *options: str) -> list[str]:
    target = f"{HERE / 'cluster_world.py'}:{world}"
    return [sys.executable, "-m", "mcpenv", "run", target, "--port", "0", "--drain-s", "0", *options]


@contextlib.contextmanager
def served(
    *options: str, world: str = "World", workers: int = 2, env: dict[str, str] | None = None
) -> Iterator[Server]:
    """Run a server, which must end in order."""
    given = command(world, "--workers", str(workers), *options)
    environ = {**os.environ, **(env or {})}
    with subprocess.Popen(
        given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            said = ""
            for line in process.stdout:
                said += line
                if "Ctrl-C stops" in line:
                    break
            agents, control = re.search(r"MCP +(http://[^/]+)/", said), re.search(r"docs +(http://[^/]+)/", said)
            assert agents is not None and control is not None, process.communicate(timeout=PATIENCE_S)
            server = Server(process, agents[1], control[1])
            yield server
            if process.poll() is None:
                assert server.end() == 0, server.said
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def sessions(url: str, count: int) -> AsyncIterator[list[EnvClient[Any, Any, Any]]]:
    """Open so many sessions, and reset each."""
    async with contextlib.AsyncExitStack() as stack:
        clients: list[EnvClient[Any, Any, Any]] = []
        for _ in range(count):
            clients.append(await stack.enter_async_context(EnvClient(url)))
            await clients[-1].reset()
        yield clients


async def process_of(client: EnvClient[Any, Any, Any]) -> int:
    """The worker in which a session is."""
    return int((await client.call_tool("process")).text)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that another process brings about."""
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit, f"never: {what}"
        time.sleep(0.01)
