"""The box of an episode: the container, or its substitute, in which a task's commands run."""

from __future__ import annotations

import asyncio
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mcpenv_client.errors import McpenvError

from .config import Healthcheck

MAX_LINES = 15
"""Maximum lines of the output of a failed build that an error quotes."""

MAX_OUTPUT = 32_000
"""Maximum bytes of each output of a command that is returned. The middle of a longer output is omitted."""

MAX_FILE = 1024 * 1024
"""Maximum bytes of a file that is read at once."""

TIMED_OUT = 124
"""The exit status of a command that exceeded its time limit, as of the program ``timeout``."""

KILLED_WITHIN_S = 10.0
"""Seconds to wait for the end of a killed command."""

FILE_TIMEOUT_S = 60.0
"""Maximum seconds to read or write a file."""

TESTS = PurePosixPath("/tests")
VERIFIER_LOGS = PurePosixPath("/logs/verifier")
"""The folders where Harbor's verifier finds the tests of a task and writes rewards."""


class BoxFailed(McpenvError, RuntimeError):
    """Raised if a box cannot be made, or has ended."""


@dataclass(frozen=True)
class Done:
    """The outcome of a command.

    Attributes:
        exit_code: its exit status; 124 if it exceeded its time limit.
        stdout, stderr: its output, possibly cut.
        timed_out: True if it was killed at its time limit.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False

    @property
    def reason(self) -> str:
        """The last line of its error output, else its exit status."""
        lines = self.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self.exit_code}"


def last_lines(output: bytes) -> str:
    """Return the last lines of a program's output; the last line alone often does not explain the failure."""
    lines = output.decode("utf-8", "replace").strip().splitlines()[-MAX_LINES:]
    return "\n  ".join(["", *lines])


class Box(ABC):
    """The interface to a box. All methods run on the loop that started it."""

    @abstractmethod
    async def run(
        self,
        script: str,
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        max_output: int = MAX_OUTPUT,
    ) -> Done:
        """Run a script by bash in the working folder, and return its outcome.

        Processes left in the background continue.

        Raises:
            BoxFailed: the box has ended.
        """

    @abstractmethod
    async def begin_verification(self, tests: Sequence[Path], *, goes_on: bool = False) -> str | None:
        """End all processes, put the tests at `TESTS`, and an empty folder at `VERIFIER_LOGS`.

        Args:
            tests: the folders of the tests. Files of a later one replace those of an earlier one.
            goes_on: True to keep the agent's files for `resume`.

        Returns:
            A sentence about changes of the agent that the tests do not find; None if there are none.

        Raises:
            BoxFailed: the verification cannot be prepared.
        """

    @abstractmethod
    async def resume(self) -> None:
        """End the tests, and start with the agent's files again, without what the tests have changed.

        Raises:
            BoxFailed: it does not start.
        """

    @abstractmethod
    async def close(self) -> None:
        """End all processes, and delete the files."""

    async def become_healthy(self, check: Healthcheck) -> None:
        """Repeat the command of a health check until it succeeds.

        Raises:
            BoxFailed: it failed as often in a row as the check allows. Failures in its start period do not count.
        """
        start_ends = time.monotonic() + check.start_period_sec
        failures = 0
        while True:
            is_starting = time.monotonic() < start_ends
            done = await self.run(check.command, timeout_s=check.timeout_sec)
            if done.exit_code == 0:
                return
            failures += not is_starting
            if failures >= check.retries and not is_starting:
                raise BoxFailed(f"the health check failed {failures} times: {check.command}: {done.reason}")
            await asyncio.sleep(check.start_interval_sec if is_starting else check.interval_sec)

    async def read(self, path: str, *, user: str | None = None) -> bytes | None:
        """Return the content of a file; None if it is longer than `MAX_FILE`.

        Raises:
            FileNotFoundError: it cannot be read.
        """
        done = await self.run(
            f"head -c {MAX_FILE + 1} -- {shlex.quote(path)}",
            timeout_s=FILE_TIMEOUT_S,
            user=user,
            max_output=MAX_FILE + 1,
        )
        if done.exit_code:
            raise FileNotFoundError(done.reason)
        return None if len(done.stdout) > MAX_FILE else done.stdout

    async def write(self, path: str, content: bytes, *, user: str | None = None) -> None:
        """Write a file, and create missing folders.

        Raises:
            OSError: it cannot be written.
        """
        quoted = shlex.quote(path)
        done = await self.run(
            f'mkdir -p -- "$(dirname -- {quoted})" && cat > {quoted}',
            timeout_s=FILE_TIMEOUT_S,
            stdin=content,
            user=user,
        )
        if done.exit_code:
            raise OSError(done.reason)


def cut(data: bytes, most: int, size: int | None = None) -> bytes:
    """Return data; if it exceeds ``most`` bytes, replace its middle by a note.

    Args:
        size: the original number of bytes, if ``data`` is only the beginning and the end.
    """
    size = len(data) if size is None else size
    if size <= most:
        return data
    head, tail = data[: most // 2], data[-(most - most // 2) :]
    return head + f"\n[... {size - most} bytes left out ...]\n".encode() + tail


def exports(env: Mapping[str, str] | None) -> str:
    """Return the beginning of a script's first line, which sets variables."""
    return "".join(f"export {name}={shlex.quote(value)}; " for name, value in (env or {}).items())
