"""ProgramAgent: any program that acts as an MCP client, started anew for each episode."""

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

from mcpenv_client.records import StepResult

from ..errors import ConfigurationError
from .agent import Acted, Play
from .results import Failure

MCP_URL = "MCPENV_MCP_URL"
PROMPT = "MCPENV_PROMPT"
TASK_ID = "MCPENV_TASK_ID"

MAX_VARIABLE = 100_000
"""Bytes of a prompt in an argument or a variable; systems take no more than 128 KiB, and say so in riddles."""

MAX_LINE = 200
"""Characters of its last line that a failure quotes."""

MAX_TAIL = 4096

KILL_AFTER_S = 5.0
"""Between asking a program to end and killing it."""

_PLACE = re.compile(r"\{(mcp_url|prompt|task_id)\}")
_LIKE_A_PLACE = re.compile(r"(?<!\$)\{[\w-]*(?:url|prompt|task)[\w-]*\}")
_NOT_FOR_AGENTS = ("MCPENV_CONTROL_TOKEN", "MCPENV_AGENT_TOKENS")


@dataclass
class ProgramAgent:
    """A program that plays: it gets the URL of the episode's MCP server and the prompt, and exits when it is done.

    ``{mcp_url}``, ``{prompt}`` and ``{task_id}`` in the command are filled in, each within one argument, whatever it
    holds; no shell reads the command. The same are in its environment as MCPENV_MCP_URL, MCPENV_PROMPT (if it fits)
    and MCPENV_TASK_ID. A command without ``{prompt}`` gets the prompt on stdin, any other an empty stdin: programs such
    as ``claude -p`` and ``codex exec`` add what they find there to the prompt in their arguments. What it prints is
    kept. It is the leader of a process group, which ends as a whole.

    Args:
        command: as a shell would split it.
        grace_s: seconds that the program may go on when the episode is over, of which nobody tells it but the tools.

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
                warnings.warn(f"agent {self.command!r}: {found} is not filled in; {known}", stacklevel=3)
        if "{" not in self._words[0] and shutil.which(self._words[0]) is None:
            raise ConfigurationError(f"agent {self.command!r}: there is no program {self._words[0]!r}")

    def described(self) -> dict[str, Any]:
        """What it is."""
        return {"kind": "program", "command": self.command}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Nothing is shared by its episodes."""
        yield

    async def act(self, play: Play) -> Acted:
        """Play one episode: until the program exits, or ``grace_s`` after the episode's end, or to the deadline.

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
    """An argument with its placeholders filled in; what was filled in is not read again."""
    values = {"mcp_url": play.mcp_url, "prompt": play.prompt, "task_id": play.task_id}
    return _PLACE.sub(lambda found: values[found.group(1)], word)


def _environment(play: Play) -> dict[str, str]:
    """This process's, without what an agent must not have, and with where to play."""
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_AGENTS}
    variables |= {MCP_URL: play.mcp_url, TASK_ID: play.task_id}
    if len(play.prompt.encode()) <= MAX_VARIABLE:
        variables[PROMPT] = play.prompt
    return variables


@contextlib.contextmanager
def _stdin(text: str) -> Iterator[IO[bytes] | int]:
    """What a program reads there: a file, because a pipe wants somebody who writes as fast as it reads."""
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
    """How the play went, when the program has exited, or the episode and its grace are over, or the time is up."""
    either: set[asyncio.Future[Any]] = {exited, over}
    await asyncio.wait(either, timeout=play.left_s, return_when=asyncio.FIRST_COMPLETED)
    acted = Acted()
    if over.done():
        over.result()  # raises what became of the session
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
    """End a program and all that it started."""
    if not exited.done():
        _signal(group, signal.SIGTERM)
        await asyncio.wait({exited}, timeout=KILL_AFTER_S)
    # Also when it has exited: what it left behind would go on acting.
    _signal(group, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
    await exited


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(
        ProcessLookupError, PermissionError
    ):  # all of it is gone; macOS says the second of zombies
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
    """The last line with words in it that a program printed, shortened."""
    with output.open("rb") as file:
        file.seek(max(output.stat().st_size - MAX_TAIL, 0))
        lines = file.read().decode("utf-8", "replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if any(map(str.isalnum, line))), "")
    return "".join(character for character in said if character.isprintable())[:MAX_LINE]
