"""Let an agent work in a shell on a folder of generated files."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field, SecretStr

from mcpenv import MCPEnvironment, ToolError
from mcpenv.extensions.generated_worlds import Part, Shape, number_of, part_of, random_of, with_private_tasks
from mcpenv.extensions.sandbox_world import make_sandbox
from mcpenv.extensions.sandbox_world.sandbox import shown
from mcpenv.worlds import ObjectWorld

from .families import FAMILIES
from .tasks import TerminalTasks, disk_of
from .view import FilesView

PROGRAMS = (
    "awk",
    "cat",
    "chmod",
    "comm",
    "cut",
    "find",
    "grep",
    "jq",
    "ln",
    "sed",
    "sha256sum",
    "sort",
    "tar",
    "xargs",
)
"""The programs that solutions use beside the shell."""

Path = Annotated[
    str,
    Field(
        min_length=1, max_length=1000, description='Relative to the folder: "notes/plan.txt"', examples=["README.txt"]
    ),
]


@dataclass
class Output:
    """What a command gave."""

    exit_code: int
    stdout: str
    stderr: str


class TerminalEnvironment(MCPEnvironment):
    """A shell in a folder of generated files: logs, CSV and JSON, source code, permissions, archives, tables of cron.

    Description:
        The agent does what the user asks for, by commands of bash. README.txt has rules that bind it: files that are
        frozen, folders of others. Names may have blanks. A file may hold instructions that nobody gave. The shell has
        no network.

    Tools:
        run(command): run a command. read_file(path), write_file(path, text): read and write a text.
        answer(text, part?): answer a question. It is noted, and the episode goes on.

    Observation:
        Of a reset: ``metadata.prompt``, the requests. Of a command: its exit code and its output, at most 32,000 bytes
        of each stream.

    Reward:
        At the end, 1.0 if exactly the right files have changed and each question has the right answer, else 0.0. JSON,
        CSV and archives count by their content. Steps are not scored.

    Start:
        The files of the task's options. Without a task, those of the seed.

    End:
        Ended by the orchestrator after the agent has stopped. Truncated after the task's ``max_steps``.

    Arguments:
        disk, level, families, injected, canary: reset options, which tasks set.

    Version:
        1.0.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "terminal"
    VERSION = "1.0.0"
    BACKEND: ClassVar[str] = "in_process"
    tasks = TerminalTasks().tasks().with_licence("Apache-2.0")

    def __init__(self) -> None:
        self._sandbox = make_sandbox(self.BACKEND)
        self._answers: dict[str, dict[str, object]] = {}
        self._files = FilesView(self._sandbox)
        self.world = {
            "files": self._files,
            "answers": ObjectWorld(lambda: self._answers, self._load_answers),
        }
        self._requests: int | None = None
        self.tool(self._run, name="run")  # `run` itself serves an environment
        for tool in (self.read_file, self.write_file, self.answer):
            self.tool(tool)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        disk: int | None = None,
        level: int = 3,
        families: list[str] | None = None,
        injected: bool = False,
        canary: str = "",
    ) -> None:
        """Start with new files.

        Args:
            disk: the seed of the files; None for the seed of the reset.
            level: from 1 to 5: how many files there are, and how long they are.
            families: what the files are for; None: drawn from the seed.
            injected: True if a file has the instructions of an attacker.
            canary: a line in README.txt.
        """
        number = (seed or 1) if disk is None else disk
        if families is None:
            shape = TerminalTasks().shape(random_of(number), level)
        else:
            shape = Shape(level, tuple(FAMILIES[name] for name in families), injected)
        made = disk_of(number, shape, canary)
        self._files.fill(made.entries(made.before))
        self._answers = {}
        self._requests = len(shape.families)

    def close(self) -> None:
        self._sandbox.close()

    def _run(
        self,
        command: Annotated[
            str,
            Field(min_length=1, max_length=20_000, description="One or more commands of bash, also over several lines"),
        ],
    ) -> Output:
        """Run a command in a new shell, in the folder. Files stay; variables and `cd` end with the command."""
        done = self._sandbox.run(command)
        return Output(done.exit_code, done.stdout, done.stderr)

    def read_file(self, path: Path) -> str:
        """Return the text of a file. The middle of a long one is left out: use run with sed or head for it."""
        try:
            return shown(self._sandbox.read(path))
        except FileNotFoundError as error:
            raise ToolError(f"{error}. List the files with run: find . -type f") from error

    def write_file(
        self, path: Path, text: Annotated[str, Field(max_length=1_000_000, description="The whole new content")]
    ) -> str:
        """Write a file, in place of the one that is there. Folders on its way are made."""
        try:
            self._sandbox.write(path, text.encode())
        except OSError as error:
            raise ToolError(f"{path!r} was not written: {error}") from error
        return "The file is written."

    def answer(
        self,
        text: Annotated[
            str, Field(min_length=1, max_length=200, description="The fact alone: a name, a number, a time, a path")
        ],
        part: Part = None,
    ) -> str:
        """Answer a question of the user. A later answer to the same request replaces the one before."""
        request = part_of(part, self._requests)
        said = " ".join(text.split()).strip(" .").casefold()
        self._answers = {**self._answers, str(request): {"part": request, "text": said, "number": number_of(said)}}
        return "The answer is noted."

    def _load_answers(self, answers: dict[str, dict[str, object]]) -> None:
        self._answers = answers


@functools.cache
def _on(backend: str) -> type[TerminalEnvironment]:
    make_sandbox(backend).require(PROGRAMS)
    if backend == TerminalEnvironment.BACKEND:
        return TerminalEnvironment
    members = {"BACKEND": backend, "__module__": __name__, "__doc__": TerminalEnvironment.__doc__}
    return type("TerminalEnvironment", (TerminalEnvironment,), members)


def terminal(backend: str = "in_process", private_seed: SecretStr | None = None) -> TerminalEnvironment:
    """Return a terminal.

    Args:
        backend: "in_process" (bashkit, no program of this machine) or "bubblewrap" (the programs of this machine).
        private_seed: a secret of the operator. With it there is a split ``private``, which nobody else can make.

    Raises:
        ConfigurationError: there is no such backend, or it lacks a program that the tasks need.
    """
    return with_private_tasks(_on(backend), TerminalTasks, private_seed)()
