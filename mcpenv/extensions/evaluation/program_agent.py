"""The agent that is a program: an MCP client, started once for each episode in a directory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.mcp_proxy.process import GUARD_KILL, GUARDS, guard
from mcpenv.extensions.model_proxy.upstream import Upstream
from mcpenv.extensions.sandbox.mounts import installation_of, temporary_mounts
from mcpenv_client.types.records import StepResult

from .agent import Acted, Play
from .isolation import Choice, Isolation
from .model_side import ModelAccess, ModelSide, model_of
from .results import Failure

logger = logging.getLogger("mcpenv")

MCP_URL = "MCPENV_MCP_URL"
PROMPT = "MCPENV_PROMPT"

MAX_VARIABLE = 100_000
"""Maximum bytes of a prompt in an environment variable. Systems limit one to 128 KiB, with unclear errors."""

MAX_LINE = 200
"""Maximum characters of a program's last line that a failure quotes."""

MAX_TAIL = 4096

KILL_AFTER_S = 5.0
"""Seconds between SIGTERM and SIGKILL to a program."""

MAX_OUTPUT = 16 * 1024 * 1024
"""Maximum size of a program's output that is stored, in bytes."""

DRAIN_S = 1.0
"""Seconds for which the output of a program's children is read after the program has exited."""

_PLACE = re.compile(r"\{(mcp_url|model_url|prompt)\}")
_MODEL_PLACE = "{model_url}"
_LIKE_A_PLACE = re.compile(r"(?<!\$)\{[\w-]*(?:url|prompt|task)[\w-]*\}")
_RUNNER = re.compile(r"(?:python|pypy)[\d.]*|node|npx|npm|pnpm|bun|bunx|deno|uv|uvx|pipx|ruby|perl|sh|bash|env")
"""The programs that run the one which their first argument names."""

_RUNNERS_WORD = re.compile(r"-|(?:run|tool|exec|dlx)$|\w+=(?!=)|$")
_CODE = ("-c", "-e", "--eval")
_SUFFIX = re.compile(r"\.(?:py|js|mjs|cjs|ts|sh|rb|pl|exe|cmd)|(?<=.)[@=<>~!\[].*")
_SCRIPT = re.compile(r"[^-{][^{]*\.(?:py|js|mjs|cjs|ts|sh|rb|pl)")
_OURS = "MCPENV_"
_ALWAYS_KEPT = ("PATH", "HOME")


@dataclass
class ProgramAgent:
    """The agent that runs a program with the URL of the episode's MCP server and the prompt, until it exits.

    ``{mcp_url}`` and ``{prompt}`` in the command are replaced, each within one argument; no shell reads the command.
    The environment variables MCPENV_MCP_URL and MCPENV_PROMPT (if it fits) have the same values. A command without
    ``{prompt}`` gets the prompt on stdin. With ``{prompt}`` stdin is empty, because programs such as ``claude -p`` and
    ``codex exec`` append stdin to the prompt in their arguments. The program's output is stored. The program leads a
    process group, which is ended as a whole.

    With an ``endpoint``, requests to its model go through a proxy that records them. ``{model_url}`` in the command and
    MCPENV_MODEL_URL have its base URL, and so have the variables of OpenAI's and Anthropic's clients.

    The program runs in an empty directory, or a copy of ``workspace``, which is new for each episode. Arguments that
    name a file of the present working directory (``my_agent.py``) are made absolute. A script can import its
    neighbours, unless they are in a hidden folder. The environment variables name neither the task nor the
    environment's folder nor the results.

    Args:
        command: the command line, split as a shell would.
        grace_s: seconds for which the program may continue after the episode's end, which it learns only from tools.
        workspace: a folder that is copied to the program's working directory. Default: an empty one.
        isolation: ``auto`` isolates the program where bubblewrap works, ``bubblewrap`` requires it, ``none`` does not.
        hide: more files and folders that an isolated program must not see.
        show: files and folders that it may read although they are in hidden or temporary folders. The program, and the
            files that its arguments and environment variables name, are always among them.
        endpoint: the endpoint of its model, to record its requests. Default: nothing is recorded.

    Raises:
        ConfigurationError: the command cannot be split, its program or the workspace is not found, or the isolation is
            not possible.
    """

    command: str
    grace_s: float = 60.0
    workspace: Path | None = None
    isolation: Choice = "auto"
    hide: Sequence[Path] = ()
    show: Sequence[Path] = ()
    endpoint: Upstream | None = None
    isolated: Isolation = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._words = shlex.split(self.command)
        except ValueError as error:
            raise ConfigurationError(f"agent {self.command!r}: {error}") from error
        if not self._words:
            raise ConfigurationError("agent: the command is empty")
        for found in _LIKE_A_PLACE.findall(self.command):
            if _PLACE.fullmatch(found) is None:
                known = "{mcp_url}, {model_url} and {prompt} are"
                warnings.warn(f"agent {self.command!r}: {found} is not a placeholder; {known}", stacklevel=3)
        if _MODEL_PLACE in self.command and self.endpoint is None:
            raise ConfigurationError(
                f"agent {self.command!r}: {_MODEL_PLACE} needs the endpoint of its model (--base-url)"
            )
        self._side = None if self.endpoint is None else ModelSide(self.endpoint)
        self._name = _name_of(self._words)
        program = shutil.which(self._words[0])
        if "{" not in self._words[0] and program is None:
            raise ConfigurationError(f"agent {self.command!r}: there is no program {self._words[0]!r}")
        if self.workspace is not None and not self.workspace.is_dir():
            raise ConfigurationError(f"--workspace {self.workspace}: there is no such folder")
        for path in (*self.hide, *self.show):
            if not path.exists():
                raise ConfigurationError(f"--hide, --show: there is no {path}")
        self.isolated = Isolation.choose(self.isolation)
        self._shown = [path.absolute() for path in self.show]
        if program is not None:
            # Absolute, because the program starts in another directory.
            self._words[0] = os.path.abspath(program)
            links = (Path(self._words[0]), Path(self._words[0]).resolve())
            self._shown += map(installation_of, links)
        script = self._words[1] if len(self._words) > 1 else ""
        if _SCRIPT.fullmatch(script) and not _exists(script, self.workspace):
            raise ConfigurationError(f"agent {self.command!r}: there is no file {script!r}")
        for number, word in enumerate(self._words[1:], 1):
            file = _file_of(word, self.workspace)
            if file is not None:
                self._words[number] = str(file)
                self._shown += (file, file.resolve())

    def described(self) -> dict[str, Any]:
        """Return the agent's settings as plain JSON data."""
        workspace = None if self.workspace is None else str(self.workspace)
        return {
            "kind": "program",
            "name": self._name,
            "command": self.command,
            "workspace": workspace,
            "isolation": str(self.isolated),
            **({} if self.endpoint is None else {"endpoint": self.endpoint.described()}),
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve the proxy in front of the model's endpoint, if it is recorded."""
        async with contextlib.AsyncExitStack() as stack:
            if self._side is not None:
                await stack.enter_async_context(self._side.running())
            yield

    async def act(self, play: Play) -> Acted:
        """Play one episode until the program exits, ``grace_s`` after the episode's end, or until the deadline.

        Cancelling kills the program.

        Raises:
            WireError: the environment failed.
            ConfigurationError: the program's directory or isolation cannot be created.
        """
        async with model_of(self._side) as model:
            acted = await self._act(play, model)
        return acted if model is None else model.counted(acted)

    async def _act(self, play: Play, model: ModelAccess | None) -> Acted:
        hidden = [*play.hidden, *(path.absolute() for path in self.hide)]
        with _scratch() as scratch, _Output(play.output) as output:
            await asyncio.to_thread(self._fill, scratch, hidden)
            try:
                process = await self._started(play, model, scratch, hidden, output)
            except (OSError, ValueError) as error:
                return Acted().fail(Failure.AGENT_CRASHED, f"it could not be started: {error}")
            over = asyncio.ensure_future(play.env.wait())
            exited = asyncio.ensure_future(process.wait())
            try:
                return await _watched(exited, over, play, output, self.grace_s, self._unseen(hidden))
            finally:
                over.cancel()
                await _end_group(process.pid, exited, guarded=GUARDS and self.isolated.bwrap is None)

    def _fill(self, scratch: Path, hidden: Sequence[Path]) -> None:
        """Copy the workspace to the program's directory.

        Raises:
            ConfigurationError: it cannot be copied, or it contains a hidden file or folder.
        """
        if self.workspace is None:
            return
        workspace = self.workspace.resolve()
        for path in hidden:
            if path.resolve().is_relative_to(workspace) and path.exists():
                raise ConfigurationError(f"--workspace {self.workspace} contains {path}, which agents must not see")
        try:
            shutil.copytree(workspace, scratch, symlinks=True, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise ConfigurationError(f"--workspace {self.workspace} cannot be copied: {error}") from error

    async def _started(
        self, play: Play, model: ModelAccess | None, scratch: Path, hidden: Sequence[Path], output: _Output
    ) -> asyncio.subprocess.Process:
        words = [_filled(word, play, model) for word in self._words]
        environment = _environment(play, scratch, hidden)
        if self._side is not None and model is not None:
            environment = self._side.without_keys(environment) | model.variables()
        shown = [*self._shown, *_files_of(environment), *self._beside_script(hidden)]
        with (
            _stdin(play.prompt if "{prompt}" not in self.command else "") as stdin,
            self.isolated.command(words, scratch, hidden, shown) as (command, descriptors),
        ):
            process = await asyncio.create_subprocess_exec(
                *(guard() if self.isolated.bwrap is None else ()),  # all processes of a sandbox end with it
                *command,
                pass_fds=descriptors,
                stdin=stdin,
                stdout=output.pipe,
                stderr=subprocess.STDOUT,
                cwd=scratch,
                env=environment,
                start_new_session=True,
            )
        output.close_pipe()
        return process

    def _beside_script(self, hidden: Sequence[Path]) -> list[Path]:
        """Return the folder of the script in a temporary folder, from which it imports; empty if it is hidden.

        Elsewhere, isolated programs read the folder without being shown it.
        """
        folder = self._folder_of_script()
        outer = {path.resolve() for path in temporary_mounts()}
        if folder is None or folder in outer or outer.isdisjoint(folder.parents):
            return []
        return [] if any(folder.is_relative_to(path.resolve()) for path in hidden) else [folder]

    def _unseen(self, hidden: Sequence[Path]) -> str:
        """Return the advice for a program that crashes and sees of its script's folder the script alone; else ""."""
        folder, above = self._folder_of_script(), [path.resolve() for path in hidden]
        if self.isolated.bwrap is None or folder is None or not any(map(folder.is_relative_to, above)):
            return ""
        if any(folder.is_relative_to(path.resolve()) for path in self.show):
            return ""
        # What is hidden itself is not shown, but what is in it.
        remedy = "move it elsewhere" if folder in above else f"--show {shlex.quote(str(folder))} shows them"
        return f" (it does not see the other files of its script's folder, which is hidden: {remedy})"

    def _folder_of_script(self) -> Path | None:
        """Return the folder of the script that the command names by a path; None if it names none."""
        if len(self._words) < 2 or _SCRIPT.fullmatch(self._words[1]) is None or not os.path.isabs(self._words[1]):
            return None
        return Path(self._words[1]).resolve().parent


def _file_of(word: str, workspace: Path | None) -> Path | None:
    """Return the absolute path of the file that an argument names; None if it names none, or one of the workspace."""
    if "{" in word or not ("." in word or os.sep in word) or not os.path.isfile(word):
        return None
    if workspace is not None and not os.path.isabs(word) and (workspace / word).exists():
        return None
    return Path(os.path.abspath(word))


def _exists(script: str, workspace: Path | None) -> bool:
    """Return True if a script is a file of the present working directory or of the workspace."""
    return os.path.isfile(script) or (workspace is not None and (workspace / script).is_file())


def _files_of(environment: dict[str, str]) -> list[Path]:
    """Return the files that variables name, such as certificates."""
    return [Path(value) for value in environment.values() if os.path.isabs(value) and os.path.isfile(value)]


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a new empty directory with a meaningless name, and delete it."""
    with tempfile.TemporaryDirectory(prefix="agent-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


class _Output:
    """The pipe through which a program's output reaches a file.

    The program must not have the file itself: /proc shows a program the names of its files, and this one's has the
    task and the folder of the results.

    Attributes:
        pipe: the end for the program.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("w+b", buffering=0)
        self._size = self._left_out = 0
        reading, self.pipe = os.pipe()
        self._open = True
        # A daemon, because a child that left the process group may keep the pipe open for ever.
        self._thread = threading.Thread(target=self._copy, args=(reading,), name="mcpenv-output", daemon=True)
        self._thread.start()

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_pipe()
        self._thread.join(DRAIN_S)

    def close_pipe(self) -> None:
        """Close this process's copy of the program's end. Idempotent."""
        if self._open:
            self._open = False
            os.close(self.pipe)

    async def drained(self) -> None:
        """Wait until all output is in the file, at most `DRAIN_S`."""
        await asyncio.to_thread(self._thread.join, DRAIN_S)

    def _copy(self, reading: int) -> None:
        with self._file, os.fdopen(reading, "rb", buffering=0) as pipe:
            lost = False
            while data := pipe.read(65536):
                try:
                    self._write(data)
                except OSError as error:  # a full disk does not stop the program
                    if not lost:
                        logger.warning("the output of an agent is not written to %s: %s", self._file.name, error)
                    lost = True

    def _write(self, data: bytes) -> None:
        """Append to the file. Above `MAX_OUTPUT`, keep its first half and its last quarter."""
        self._file.write(data)
        self._size += len(data)
        if self._size <= MAX_OUTPUT:
            return
        first, last = MAX_OUTPUT // 2, MAX_OUTPUT // 4
        self._left_out += self._size - first - last
        self._file.seek(self._size - last)
        end = self._file.read(last)
        self._file.seek(first)
        self._file.write(b"\n[about %d bytes are left out here]\n" % self._left_out + end)
        self._size = self._file.tell()
        self._file.truncate()


def _filled(word: str, play: Play, model: ModelAccess | None) -> str:
    """Return an argument with its placeholders replaced in one pass: inserted values are not replaced again."""
    values = {"mcp_url": play.mcp_url, "prompt": play.prompt, "model_url": "" if model is None else model.url}
    return _PLACE.sub(lambda found: values[found.group(1)], word)


def _environment(play: Play, scratch: Path, hidden: Sequence[Path]) -> dict[str, str]:
    """Return this process's environment variables without any that agents must not have, and with the episode's."""
    names = [str(path) for path in hidden]
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OURS) and (name in _ALWAYS_KEPT or not any(hides in value for hides in names))
    }
    variables.pop("OLDPWD", None)
    variables |= {"PWD": str(scratch), MCP_URL: play.mcp_url}
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
    exited: asyncio.Future[int],
    over: asyncio.Future[StepResult[Any]],
    play: Play,
    output: _Output,
    grace_s: float,
    advice: str,
) -> Acted:
    """Wait until the program exits, the grace after the episode's end is over, or the deadline; return the outcome.

    Args:
        advice: the end of the text about a crash.
    """
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
    await output.drained()
    how = f"exit status {status}" if status > 0 else f"killed by {_signal_name(-status)}"
    last = _last_line(play.output)
    return acted.fail(Failure.AGENT_CRASHED, (f"{how}: {last}" if last else how) + advice)


async def _end_group(group: int, exited: asyncio.Future[int], *, guarded: bool) -> None:
    """End a program and all processes of its group; with a guard, which has ended all if it has exited, all of them."""
    if not exited.done():
        _signal(group, signal.SIGTERM)
        await asyncio.wait({exited}, timeout=KILL_AFTER_S)
    if guarded:
        if not exited.done():
            _signal(group, GUARD_KILL)
    else:
        # Also after the program has exited: its child processes could continue to act.
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


def _name_of(words: Sequence[str]) -> str:
    """Return the base name of the program, or of the script, package or module that it runs."""
    name = _SUFFIX.sub("", Path(words[0]).name)
    if _RUNNER.fullmatch(name):
        for number, word in enumerate(words[1:], 1):
            if word in _CODE or "{" in word:
                break
            if _RUNNERS_WORD.match(word) is None:
                return _name_of(words[number:])
    return name


def _last_line(output: Path) -> str:
    """Return the last printed line that has a letter or digit, shortened; empty if there is none."""
    with output.open("rb") as file:
        file.seek(max(output.stat().st_size - MAX_TAIL, 0))
        lines = file.read().decode("utf-8", "replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if any(map(str.isalnum, line))), "")
    return "".join(character for character in said if character.isprintable())[:MAX_LINE]
