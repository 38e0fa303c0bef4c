"""Servers as processes of this machine: `LocalProvider`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

from mcpenv_client.errors import InstanceFailed

from .blocking import in_thread
from .provider import POLL_S, Capabilities, Instance, Provider

PROGRAM = Path(__file__).parent / "inside" / "local_server.py"
STOP_TIMEOUT_S = 20.0
"""Seconds for a server to end by itself; longer than `inside.local_server` takes."""

PROBE_S = 30.0
LOG_LINES = 30
_LOG_BYTES = 16 * 1024


class LocalProvider(Provider):
    """The provider of processes of this machine: ``mcpenv run TARGET`` on a free port of loopback.

    A process ends with its block, and with the process that started it, for any reason. It has no isolation: the
    environment's code can do what this user can do.

    Args:
        target: TARGET as on the command line.
        python: a Python with mcpenv and the environment's imports; by default this process's.
        options: further options of ``mcpenv run``, such as ``["--set", "size=3"]``.
        env: environment variables in addition to this process's, such as the manifest's secrets.
        folder: the working directory; by default this process's.
        start_timeout_s: maximum seconds until the server is ready.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(ends_with_owner=True)

    def __init__(
        self,
        target: str | Path,
        *,
        python: str | Path | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        super().__init__(start_timeout_s=start_timeout_s)
        self.target = str(target)
        self.python = str(python or sys.executable)
        self.options = tuple(options)
        self.env = dict(env or {})
        self.folder = None if folder is None else Path(folder)

    async def missing(self) -> list[str]:
        """Return a sentence if the Python does not exist or has no mcpenv."""
        if self.folder is not None and not self.folder.is_dir():
            return [f"there is no folder {self.folder}; give an existing one"]
        if shutil.which(self.python) is None:
            return [f"there is no program {self.python}; give python= a Python that has mcpenv"]
        if not await in_thread(self._has_mcpenv):
            return [f"{self.python} has no mcpenv; run: {self.python} -m pip install CLONE/clients/python CLONE"]
        return []

    @asynccontextmanager
    async def launch(self) -> AsyncIterator[LocalInstance]:
        """Start a process and end it with the block."""
        with tempfile.TemporaryDirectory(prefix="mcpenv-", ignore_cleanup_errors=True) as place:
            token = secrets.token_urlsafe(24)
            process = ServerProcess(self, Path(place), token)
            try:
                url = await self._started(process)
                yield LocalInstance(process, url, token)
            finally:
                await in_thread(process.stop)

    async def _started(self, process: ServerProcess) -> str:
        """Wait until the process has reported its address."""
        end = time.monotonic() + self.start_timeout_s
        while (url := process.url()) is None:
            if not process.is_running():
                raise InstanceFailed(process.name, "it ended while it started", process.log())
            if time.monotonic() >= end:
                reason = f"it was not ready after {self.start_timeout_s:g} s"
                raise InstanceFailed(process.name, reason, process.log())
            await asyncio.sleep(POLL_S)
        return url

    def _has_mcpenv(self) -> bool:
        program = "import importlib.util, sys; sys.exit(importlib.util.find_spec('mcpenv') is None)"
        done = subprocess.run(
            [self.python, "-P", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_S,
            check=False,
        )
        return done.returncode == 0


class ServerProcess:
    """The process of one server.

    Args:
        provider: the options.
        place: a folder for its log and its address only.
        token: its control token.
    """

    def __init__(self, provider: LocalProvider, place: Path, token: str) -> None:
        self._log, self._ready = place / "log", place / "ready.json"
        command = [provider.python, "-P", str(PROGRAM), "run", provider.target, "--port", "0"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--ready-file", str(self._ready), *provider.options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=provider.folder,
                env={**os.environ, **provider.env},
                # Ctrl-C must reach the owner only, which then ends this process.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        # Not as an argument, because every user of this machine can see those.
        with contextlib.suppress(BrokenPipeError):  # the process has ended, which `is_running` reports
            self._process.stdin.write(f"{token}\n".encode())
            self._process.stdin.flush()

    @property
    def name(self) -> str:
        """Its name for messages."""
        return f"process {self._process.pid}"

    def is_running(self) -> bool:
        """Return True if the process has not ended."""
        return self._process.poll() is None

    def url(self) -> str | None:
        """Return the base URL of its control plane; None as long as it does not accept connections."""
        try:
            return str(json.loads(self._ready.read_bytes())["url"])
        except FileNotFoundError:
            return None

    def log(self) -> str:
        """Return the end of its output."""
        with self._log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
            return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-LOG_LINES:])

    def stop(self) -> None:
        """End the process; kill it and its children after `STOP_TIMEOUT_S` seconds. Idempotent."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)  # its own group, not yet waited for: the id is still valid
            else:
                self._process.kill()
            self._process.wait()


class LocalInstance(Instance):
    """A server that is a process of this machine."""

    def __init__(self, process: ServerProcess, url: str, control_token: str) -> None:
        super().__init__(process.name, url, control_token)
        self._process = process

    async def is_running(self) -> bool:
        """Return True if the process has not ended."""
        return self._process.is_running()

    async def logs(self) -> str:
        """Return the end of the output of the server and the environment."""
        return await in_thread(self._process.log)
