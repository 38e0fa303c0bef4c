"""The command line as tests use it: a result, a running process, a folder with an environment, a free port."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from textwrap import dedent
from typing import Any

import pytest

from mcpenv.cli import execute

TIMEOUT_S = 60.0


@dataclass
class Done:
    """The exit status and the output of a command line."""

    status: int
    out: str
    err: str


Cli = Callable[..., Done]
"""Runs a command line in this process."""


@contextmanager
def command_lines(
    folder: Path | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    """Run command lines in ``folder``, without mcpenv's variables. Restore modules, ``sys.path`` and loggers."""
    if folder is not None:
        monkeypatch.chdir(folder)
    for name in ("MCPENV_MODE", "MCPENV_CONTROL_TOKEN", "MCPENV_AGENT_TOKEN", "MCPENV_AGENT_TOKENS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    loggers = [logging.getLogger(name) for name in ("mcpenv", "mcp", "fastmcp", "httpx", "httpx2", "asyncio")]
    logs = [(logger, logger.handlers, logger.propagate, logger.level) for logger in loggers]

    def run(*arguments: str) -> Done:
        capfd.readouterr()
        return Done(execute(arguments), *capfd.readouterr())

    yield run
    for logger, handlers, propagate, level in logs:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
    for name in {name for name in sys.modules if name.startswith("environment")} - modules:
        del sys.modules[name]


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "environment.py").write_text(dedent(text), encoding="utf-8")
    return name


def processes_with(argument: str) -> list[int]:
    """The running processes of this machine that have an argument, whatever their namespace."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and argument.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@dataclass
class Process:
    """``python -m mcpenv ...`` whose output is read while it runs."""

    popen: subprocess.Popen[str]
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    _new: Queue[None] = field(default_factory=Queue)

    def __post_init__(self) -> None:
        self._readers = [
            threading.Thread(target=self._read, args=(self.popen.stdout, self.out)),
            threading.Thread(target=self._read, args=(self.popen.stderr, self.err)),
        ]
        for reader in self._readers:
            reader.start()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match in a line of either stream, now or later."""
        while True:
            for line in [*self.out, *self.err]:
                found = re.search(pattern, line)
                if found is not None:
                    return found
            if not any(reader.is_alive() for reader in self._readers) and self._new.empty():
                pytest.fail(f"ended without {pattern!r}; stderr: {''.join(self.err)}")
            self._new.get(timeout=TIMEOUT_S)

    def url(self) -> str:
        """Wait until the server is ready, and return its address."""
        self.wait_for(r"Ctrl-C stops the server")
        return self.wait_for(r"(http://\S+)/mcp")[1]

    def end(self, number: signal.Signals | None = None) -> int:
        """Return the exit status, after a signal if one is given."""
        if number is not None:
            self.popen.send_signal(number)
        status = self.popen.wait(TIMEOUT_S)
        for reader in self._readers:
            reader.join(TIMEOUT_S)
        return status

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            lines.append(line)
            self._new.put(None)
        self._new.put(None)


@contextmanager
def started(folder: Path, *arguments: str, **environ: str) -> Iterator[Process]:
    clean = {name: value for name, value in os.environ.items() if name != "MCPENV_MODE"}
    popen = subprocess.Popen(
        [sys.executable, "-m", "mcpenv", *arguments],
        cwd=folder,
        env={**clean, **environ},
        stdin=subprocess.PIPE if arguments[:1] == ("play",) else subprocess.DEVNULL,  # it waits for lines
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    process = Process(popen)
    try:
        yield process
    finally:
        if popen.poll() is None:
            popen.terminate()
        try:
            process.end()
        except subprocess.TimeoutExpired:
            print("it did not end; its last lines:", *process.err[-40:], sep="\n")
            popen.kill()
            raise
