"""The servers that are measured, each a process of its own: started, observed, ended."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

SIDES = Path(__file__).with_name("sides")
"""The programs of all sides."""

LAST_WORDS = 100
"""Lines of a server that are shown when what asked it has failed."""

_SAYS_URL = re.compile(r"(?:ws|http)://127\.0\.0\.1:\d+")


@dataclass(frozen=True, slots=True)
class Server:
    """The server that runs in a process of its own.

    Attributes:
        base: ``http://127.0.0.1:PORT``.
        pid: its process; what that started counts with it.
        start_s: seconds from the start of the process to its answering.
    """

    base: str
    pid: int
    start_s: float

    @property
    def ws(self) -> str:
        return self.base.replace("http", "ws") + "/ws"

    def cpu_s(self) -> float:
        """Return the seconds of processor time so far, to the nanosecond, including threads that ended."""
        return sum(process_cpu_s(pid) for pid in tree(self.pid))

    def resident_kib(self) -> int:
        """Return the resident memory in KiB, its largest processes and their children together."""
        return sum(status_of(pid, "VmRSS") for pid in tree(self.pid))

    def threads(self) -> int:
        """Return the present number of threads."""
        return sum(status_of(pid, "Threads") for pid in tree(self.pid))


def process_cpu_s(pid: int) -> float:
    """Return the processor time of a process: its CPU clock, numbered as by Linux's ``clock_getcpuclockid(3)``."""
    return time.clock_gettime((~pid) << 3 | 2)


def tree(pid: int) -> list[int]:
    """Return a process and all of its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended since it was listed, and has no children any more
        for child in children.split():
            found += tree(int(child))
    return found


def status_of(pid: int, name: str) -> int:
    """Return a figure from ``/proc/PID/status``. Memory is in KiB."""
    found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None, name
    return int(found[1])


@contextlib.contextmanager
def serve(command: Sequence[str | Path], **variables: str) -> Iterator[Server]:
    """Start a server. The block runs once the server has printed its URL, and the server ends with it.

    Args:
        command: a program that prints its URL, and serves until SIGTERM.
        variables: added to its environment.
    """
    began = time.perf_counter()
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
    ) as process:
        try:
            assert process.stdout is not None
            said: deque[str] = deque(maxlen=LAST_WORDS)
            for line in process.stdout:
                said.append(line)
                found = _SAYS_URL.search(line)
                if found:
                    break
            else:
                raise RuntimeError(f"{command} did not start:\n{''.join(said)}")
            # A server whose output nobody reads stops when the pipe is full.
            Thread(target=said.extend, args=(process.stdout,), daemon=True).start()
            try:
                yield Server(found[0].replace("ws://", "http://"), process.pid, time.perf_counter() - began)
            except Exception as error:
                error.add_note(f"{' '.join(map(str, command))} had said:\n{''.join(said.copy())}")
                raise
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def together(
    stack: contextlib.ExitStack, servers: Mapping[str, contextlib.AbstractContextManager[Server]]
) -> dict[str, Server]:
    """Start several at once; they end with the stack."""
    # verifiers' server ends with the thread that started it.
    threads = stack.enter_context(ThreadPoolExecutor())
    return dict(zip(servers, threads.map(stack.enter_context, servers.values()), strict=True))


def mcpenv(target: Path | str, *options: str) -> contextlib.AbstractContextManager[Server]:
    """Start ``mcpenv run TARGET`` with all features."""
    return serve([sys.executable, "-m", "mcpenv", "run", target, "--port", "0", "--log-level", "error", *options])


def floor() -> contextlib.AbstractContextManager[Server]:
    """Start Starlette under uvicorn, which does no work."""
    return serve([sys.executable, SIDES / "floor.py"])
