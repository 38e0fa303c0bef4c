"""Servers of databases from Debian, each in a folder of its own, for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from command_line import free_port

WAIT_S = 60

Server = TypeVar("Server", bound="PostgresServer | RedisServer")


def as_postgres(*command: str | Path) -> list[str]:
    """Return a command that runs as another user where this one is root, because the server refuses root."""
    words = list(map(str, command))
    return ["runuser", "-u", "postgres", "--", *words] if os.getuid() == 0 else words


class PostgresServer:
    """A server that listens on a Unix socket only.

    Attributes:
        url: its address.
    """

    def __init__(self) -> None:
        programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        self.folder = Path(tempfile.mkdtemp(prefix="mcpenv-pg-"))
        if os.getuid() == 0:
            os.chown(self.folder, pwd.getpwnam("postgres").pw_uid, -1)
        data = self.folder / "data"
        self._control: list[str | Path] = [programs / "pg_ctl", "-D", data, "-w", "-t", str(WAIT_S)]
        self.url = f"postgresql:///postgres?host={self.folder}&user=admin"
        self._run(programs / "initdb", "-D", data, "-U", "admin", "-A", "trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off -c max_connections=80"
        self._run(*self._control, "-l", self.folder / "log", "-o", options, "start")

    def stop(self) -> None:
        """Stop it without a farewell to its clients."""
        self._run(*self._control, "-m", "immediate", "stop")

    def remove(self) -> None:
        """Stop it if it runs, and delete it."""
        if (self.folder / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder)

    def _run(self, *command: str | Path) -> None:
        subprocess.run(as_postgres(*command), check=True, stdout=subprocess.DEVNULL, cwd=self.folder)


class RedisServer:
    """A server on a port of its own, which writes each change to its file.

    Attributes:
        url: its address.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mcpenv-redis-"))
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = shutil.which("redis-server")
        assert program, "there is no redis-server; .ci/run installs it"
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + WAIT_S
        while self.ask("PING") != "+PONG":
            assert time.monotonic() < until
            assert self._process.poll() is None, "redis-server does not start"
            time.sleep(0.02)

    def ask(self, command: str) -> str:
        """Send a command, and return the first line of the answer; empty if there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as connection:
                connection.sendall(command.encode() + b"\r\n")
                return connection.makefile().readline().strip()
        except OSError:
            return ""

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(WAIT_S)
            self._process = None

    def remove(self) -> None:
        """Kill it if it runs, and delete it."""
        self.stop()
        shutil.rmtree(self.folder)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Run a server while the block runs, and delete it then."""
    try:
        server.start()
        yield server
    finally:
        server.remove()
