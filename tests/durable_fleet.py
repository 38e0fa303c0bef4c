"""A fleet: servers in processes of their own, which share a store, and are killed, stopped and started again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
from cluster_bench import workers_of
from command_line import free_port

HERE = Path(__file__).parent
WAIT_S = 60


class Fleet:
    """Servers by number.

    Args:
        folder: for their output, and the store if that is a folder.
        world: the name of a class in ``durable_worlds.py``.
        durable: the store, and its settings.
        servers: how many there are.
        arguments: further arguments of ``mcpenv run``.
    """

    def __init__(
        self, folder: Path, world: str, durable: str, servers: int = 3, arguments: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        self.record = folder / "record"
        self._target = f"{HERE / 'durable_worlds.py'}:{world}"
        self._durable = durable
        self._arguments = arguments
        self._ports = [free_port() for _ in range(servers)]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * servers
        self.kills = 0

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self._ports]

    def start(self, number: int) -> None:
        command = ["-m", "mcpenv", "run", self._target, "--port", str(self._ports[number]), "--durable", self._durable]
        with (self.folder / f"server-{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                [sys.executable, *command, "--record", str(self.record), "--max-sessions", "1024", *self._arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, "COUNTED": str(self.folder / "counted")},
            )

    def wait(self, number: int) -> None:
        """Return when a server answers."""
        with httpx.Client() as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    http.get(self.urls[number] + "/health", timeout=5).raise_for_status()
                    return
                process = self.processes[number]
                assert process is not None
                assert process.poll() is None, self.log(number)

    def log(self, number: int) -> str:
        return (self.folder / f"server-{number}.log").read_text(errors="replace")

    def workers(self) -> set[int]:
        """Return the processes of the first server's workers."""
        process = self.processes[0]
        assert process is not None
        return workers_of(process.pid)

    def signal(self, number: int, which: signal.Signals) -> None:
        process = self.processes[number]
        assert process is not None
        process.send_signal(which)
        if which in (signal.SIGKILL, signal.SIGTERM):
            process.wait(WAIT_S)

    def __enter__(self) -> Fleet:
        for number in range(len(self.processes)):
            self.start(number)
        for number in range(len(self.processes)):
            self.wait(number)
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self.processes:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            if process is not None:
                process.wait(WAIT_S)

    @contextlib.contextmanager
    def killed_in_turn(self, seed: int, *, least_s: float = 0.5, most_s: float = 2.0) -> Iterator[None]:
        """Kill one server after the other at random times, and start it again, while the block runs."""
        over, chance = threading.Event(), random.Random(seed)

        def kill() -> None:
            number = 0
            while not over.wait(chance.uniform(least_s, most_s)):
                self.signal(number, signal.SIGKILL)
                self.kills += 1
                self.start(number)
                self.wait(number)
                number = (number + 1) % len(self.processes)

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
