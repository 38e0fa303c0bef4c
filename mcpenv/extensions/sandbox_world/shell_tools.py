"""The tools of an agent in a sandbox: run a command, read and write a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mcpenv import ToolError

from .sandbox import Sandbox, shown

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


class ShellTools:
    """Methods to add as tools: ``env.tool(tools.run)``.

    Args:
        sandbox: the files and the shell.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def run(
        self,
        command: Annotated[
            str,
            Field(min_length=1, max_length=20_000, description="One or more commands of bash, also over several lines"),
        ],
    ) -> Output:
        """Run a command in a new shell, in the folder. Files stay; variables and `cd` end with the command."""
        done = self.sandbox.run(command)
        return Output(done.exit_code, done.stdout, done.stderr)

    def read_file(self, path: Path) -> str:
        """Return the text of a file. The middle of a long one is left out: use run with sed or head for it."""
        return shown(self.content(path))

    def content(self, path: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            ToolError: there is no such file.
        """
        try:
            return self.sandbox.read(path)
        except FileNotFoundError as error:
            raise ToolError(f"{error}. List the files with run: find . -type f") from error

    def write_file(
        self, path: Path, text: Annotated[str, Field(max_length=1_000_000, description="The whole new content")]
    ) -> str:
        """Write a file, in place of the one that is there. Folders on its way are made."""
        self.put(path, text.encode())
        return "The file is written."

    def put(self, path: str, content: bytes) -> None:
        """Write the bytes of a file.

        Raises:
            ToolError: it cannot be written.
        """
        try:
            self.sandbox.write(path, content)
        except OSError as error:
            raise ToolError(f"{path!r} was not written: {error}") from error
