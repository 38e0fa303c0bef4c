"""The agent that is a program: an MCP client, started once for each episode."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mcpenv.errors import ConfigurationError
from mcpenv_client.types.records import StepResult

from .agent import Acted, Play
from .results import Failure

MCP_URL = "MCPENV_MCP_URL"
PROMPT = "MCPENV_PROMPT"
TASK_ID = "MCPENV_TASK_ID"

MAX_VARIABLE = 100_000
"""Maximum bytes of a prompt in an environment variable. Systems limit one to 128 KiB, with unclear errors."""

MAX_LINE = 200
"""Maximum characters of a program's last line that a failure quotes."""

MAX_TAIL = 4096

KILL_AFTER_S = 5.0
"""Seconds between SIGTERM and SIGKILL to a program."""

_PLACE = re.compile(r"\{(mcp_url|prompt|task_id)\}")
_LIKE_A_PLACE = re.compile(r"(?<!\$)\{[\w-]*(?:url|prompt|task)[\w-]*\}")
_NOT_FOR_AGENTS = ("MCPENV_CONTROL_TOKEN", "MCPENV_AGENT_TOKENS")


@dataclass
class ProgramAgent:
    """The agent that runs a program with the URL of the episode's MCP server and the prompt, until it exits.

    ``{mcp_url}``, ``{prompt}`` and ``{task_id}`` in the command are replaced, each within one argument; no shell reads
    the command. The environment variables MCPENV_MCP_URL, MCPENV_PROMPT (if it fits) and MCPENV_TASK_ID have the same
    values. A command without ``{prompt}`` gets the prompt on stdin. With ``{prompt}`` stdin is empty, because programs
    such as ``claude -p`` and ``codex exec`` append stdin to the prompt in their arguments. The program's output is
    stored. The program leads a process group, which is ended as a whole.

    Args:
        command: the command line, split as a shell would.
        grace_s: seconds for which the program may run on after the episode's end, which it learns only from tools.

    Raises:
        ConfigurationError: the command cannot be split, or its program is not found.
    """

    command: str
    grace_s: float = 60.0

    def __post_init__(self) -> None:
        try:
            self._words = shlex.split(self.command)
        except ValueError as error:
            raise ConfigurationError(f"agent {self.command!r}: {error}") from error
        if not self._words:
            raise ConfigurationError("agent: the command is empty")
        for found in _LIKE_A_PLACE.findall(self.command):
            if _PLACE.fullmatch(found) is None:
                known = "{mcp_url}, {prompt} and {task_id} are"
                warnings.warn(f"agent {self.command!r}: {found} is not a placeholder; {known}", stacklevel=3)
        if "{" not in self._words[0] and shutil.which(self._words[0]) is None:
            raise ConfigurationError(f"agent {self.command!r}: there is no program {self._words[0]!r}")

    def described(self) -> dict[str, Any]:
        """Return the agent's settings as plain JSON data."""
        return {"kind": "program", "command": self.command}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do nothing: episodes share no resources."""
        yield

    async def act(self, play: Play) -> Acted:
        """Play one episode until the program exits, ``grace_s`` after the episode's end, or until the deadline.

        Cancelling kills the program.

        Raises:
            WireError: the environment failed.
        """
        try:
            process = await self._started(play)
        except (OSError, ValueError) as error:
            return Acted().fail(Failure.AGENT_CRASHED, f"it could not be started: {error}")
        over = asyncio.ensure_future(play.env.wait())
        exited = asyncio.ensure_future(process.wait())
        try:
            return await _watched(exited, over, play, self.grace_s)
        finally:
            over.cancel()
            await _end_group(process.pid, exited)

    async def _started(self, play: Play) -> asyncio.subprocess.Process:
        on_stdin = "{prompt}" not in self.command
        play.output.parent.mkdir(parents=True, exist_ok=True)
        with play.output.open("wb") as output, _stdin(play.prompt if on_stdin else "") as stdin:
            return await asyncio.create_subprocess_exec(
                *(_filled(word, play) for word in self._words),
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(play),
                start_new_session=True,
            )


def _filled(word: str, play: Play) -> str:
    """Return an argument with its placeholders replaced, in one pass, so that values are not searched for more."""
    values = {"mcp_url": play.mcp_url, "prompt": play.prompt, "task_id": play.task_id}
    return _PLACE.sub(lambda found: values[found.group(1)], word)


def _environment(play: Play) -> dict[str, str]:
    """Return this process's environment variables without tokens that agents must not have, and with the episode's."""
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_AGENTS}
    variables |= {MCP_URL: play.mcp_url, TASK_ID: play.task_id}
    if len(play.prompt.encode()) <= MAX_VARIABLE:
        variables[PROMPT] = play.prompt
    return variables


@contextlib.contextmanager
def _stdin(text: str) -> Iterator[IO[bytes] | int]:
    """Yield a program's stdin with ``text``: a file, because a pipe would need a task that writes to it."""
    if not text:
        yield subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        yield file


async def _watched(
    exited: asyncio.Future[int], over: asyncio.Future[StepResult[Any]], play: Play, grace_s: float
) -> Acted:
    """Wait until the program exits, the grace after the episode's end is over, or the deadline; return the outcome."""
    either: set[asyncio.Future[Any]] = {exited, over}
    await asyncio.wait(either, timeout=play.left_s, return_when=asyncio.FIRST_COMPLETED)
    acted = Acted()
    if over.done():
        over.result()  # raises if the session is lost
        await asyncio.wait({exited}, timeout=min(grace_s, play.left_s))
        return acted
    if not exited.done():
        return acted.fail(Failure.TIMEOUT)
    status = exited.result()
    if status == 0:
        return acted
    how = f"exit status {status}" if status > 0 else f"killed by {_signal_name(-status)}"
    last = _last_line(play.output)
    return acted.fail(Failure.AGENT_CRASHED, f"{how}: {last}" if last else how)


async def _end_group(group: int, exited: asyncio.Future[int]) -> None:
    """End a program and all processes of its group."""
    if not exited.done():
        _signal(group, signal.SIGTERM)
        await asyncio.wait({exited}, timeout=KILL_AFTER_S)
    # Also after the program has exited: its child processes could go on acting.
    _signal(group, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
    await exited


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(
        ProcessLookupError, PermissionError
    ):  # the group has ended; macOS raises the second for zombies
        if sys.platform == "win32":
            os.kill(group, number)
        else:
            os.killpg(group, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(output: Path) -> str:
    """Return the last printed line that has a letter or digit, shortened; empty if there is none."""
    with output.open("rb") as file:
        file.seek(max(output.stat().st_size - MAX_TAIL, 0))
        lines = file.read().decode("utf-8", "replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if any(map(str.isalnum, line))), "")
    return "".join(character for character in said if character.isprintable())[:MAX_LINE]
