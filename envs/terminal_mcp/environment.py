"""Let an agent work in a shell on a folder of generated files."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, SecretStr

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.generated_worlds import (
    ComposedEnvironment,
    Part,
    Shape,
    number_of,
    part_of,
    random_of,
    with_private_tasks,
)
from mcpenv.extensions.sandbox_world import ShellTools, make_sandbox
from mcpenv.worlds import ObjectWorld

from .families import FAMILIES, OF_PROGRAMS, Kind
from .repository import IDENTITY
from .tasks import ProgramTasks, TerminalTasks, disk_of
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

FURTHER = ("git", "unzip", "zip")
"""The programs that the solutions of the splits with programs use as well."""


class TerminalEnvironment(ComposedEnvironment):
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
    BACKEND: ClassVar[Mapping[str, Any]] = {"backend": "in_process"}
    COMPOSER = TerminalTasks
    tasks = TerminalTasks().tasks().with_licence("Apache-2.0")

    def __init__(self) -> None:
        self._sandbox = make_sandbox(**self.BACKEND)
        self._answers: dict[str, dict[str, object]] = {}
        self._files = FilesView(self._sandbox, git=self.COMPOSER is ProgramTasks)
        self.world = {
            "files": self._files,
            "answers": ObjectWorld(lambda: self._answers, self._load_answers),
        }
        self._requests: int | None = None
        shell = ShellTools(self._sandbox)
        for tool in (shell.run, shell.read_file, shell.write_file, self.answer):
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
            shape = Shape(level, tuple(map(self._family, families)), injected)
        made = disk_of(number, shape, canary)
        self._files.fill(made.entries(made.before))
        self._answers = {}
        self._requests = len(shape.families)

    def _family(self, name: str) -> Kind:
        if name in OF_PROGRAMS and self.COMPOSER is not ProgramTasks:
            raise ConfigurationError(f"the family {name!r} needs {' or '.join(FURTHER)}; set programs=true")
        return (FAMILIES | OF_PROGRAMS)[name]

    def close(self) -> None:
        self._sandbox.close()

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
def _on(backend: str, image: str | None, programs: bool) -> type[TerminalEnvironment]:
    if backend == "remote":
        raise ConfigurationError("backend 'remote' is not offered here (there are: bubblewrap, container, in_process)")
    options: dict[str, Any] = {"backend": backend}
    if image is not None:
        options["image"] = image
    with contextlib.closing(make_sandbox(**options)) as sandbox:
        sandbox.require((*PROGRAMS, *FURTHER) if programs else PROGRAMS)
    if programs and shutil.which("git") is None:
        raise ConfigurationError("programs=true needs git on this machine, which reads repositories at the end")
    if options == TerminalEnvironment.BACKEND:
        return TerminalEnvironment
    members: dict[str, Any] = {"BACKEND": options, "__module__": __name__, "__doc__": TerminalEnvironment.__doc__}
    if programs:
        options["env"] = IDENTITY
        members |= {"COMPOSER": ProgramTasks, "tasks": ProgramTasks().tasks().with_licence("Apache-2.0")}
    return type("TerminalEnvironment", (TerminalEnvironment,), members)


def terminal(
    backend: str = "in_process",
    image: str | None = None,
    programs: bool = False,
    private_seed: SecretStr | None = None,
) -> TerminalEnvironment:
    """Return a terminal.

    Args:
        backend: "in_process" (bashkit, no program of this machine), "bubblewrap" (the programs of this machine) or
            "container" (those of an image).
        image: the image of the backend "container", which Docker or Podman has.
        programs: True for further splits, ``programs`` and ``programs_test``, whose tasks need git, zip and unzip.
        private_seed: a secret of the operator. With it there is a split ``private``, which nobody else can make.

    Raises:
        ConfigurationError: there is no such backend, or it lacks a program that the tasks need.
    """
    return with_private_tasks(_on(backend, image, programs), private_seed)()
