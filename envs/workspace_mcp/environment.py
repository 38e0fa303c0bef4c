"""Give an agent a folder of text files to read, write, move and search."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import Field
from workspace_tasks import TASKS

from mcpenv import MCPEnvironment, TaskSet, ToolError
from mcpenv.worlds import FilesWorld

FILES = {"welcome.txt": "This folder is yours.\n"}
"""The files at the start by path, unless a task names others."""

MAX_FILES = 200
MAX_BYTES = 64 * 1024
"""Maximum bytes of one file."""
MAX_MATCHES = 100

FilePath = Annotated[str, Field(min_length=1, max_length=500, description='A path in the workspace: "notes/todo.txt"')]


@dataclass
class Entry:
    """A file and its size in bytes."""

    path: str
    size: int


@dataclass
class Match:
    """A line that has the text; lines are counted from 1."""

    path: str
    line: int
    text: str


class WorkspaceEnvironment(MCPEnvironment):
    """A workspace of text files.

    Description:
        The agent works on a folder of text files, which is its own. Paths are relative to it and have "/" between their
        parts. Nothing outside it can be accessed. Folders are created and removed with the files in them.

    Tools:
        list_files(folder?): the files, with sizes.
        read_file(path): a file's text.
        write_file(path, text): make a file, or replace one.
        replace_text(path, old, new): replace a passage that occurs once.
        move_file(source, target): move or rename; nothing is overwritten.
        delete_file(path): delete.
        search(text, folder?): the lines that contain a text.

    Observation:
        Of a reset: ``metadata.prompt``, the task. Of a step: the tool's.

    Reward:
        At the end, by the task's verifier over the files: 1.0 if they are correct, else 0.0. Steps are not scored.

    Start:
        The files that the task's options name; without a task those of `FILES`. The seed has no effect.

    End:
        Ended by the orchestrator after the agent has stopped. Truncated after the task's ``max_steps``.

    Version:
        1.0.0
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    EXPOSED_NAME = "workspace"
    VERSION = "1.0.0"
    tasks = TaskSet(TASKS).with_licence("Apache-2.0")

    world: FilesWorld

    def __init__(self) -> None:
        # Only the world refers to the folder, because a copy of this environment has another one.
        self.world = FilesWorld(tempfile.mkdtemp(prefix="workspace-"))
        for tool in (
            self.list_files,
            self.read_file,
            self.write_file,
            self.replace_text,
            self.move_file,
            self.delete_file,
            self.search,
        ):
            self.tool(tool)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, files: dict[str, str] | None = None
    ) -> None:
        """Empty the folder and fill it.

        Args:
            files: text by path, instead of `FILES`.
        """
        for entry in self.world.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        for path, text in (FILES if files is None else files).items():
            file = self._inside(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())

    def close(self) -> None:
        shutil.rmtree(self.world.folder)

    # -- tools

    def list_files(
        self, folder: Annotated[str, Field(max_length=500, description='A folder; "." for all')] = "."
    ) -> list[Entry]:
        """List the files in a folder and in the folders below it, in the order of their paths."""
        return [Entry(self._shown(file), file.stat().st_size) for file in self._files(folder)]

    def read_file(self, path: FilePath) -> str:
        """Read a file."""
        return self._text(self._file(path))

    def write_file(self, path: FilePath, text: Annotated[str, Field(description="The whole text of the file")]) -> str:
        """Write a file: a new one, or all of one that is there. Folders on the way are made."""
        file = self._inside(path)
        if file.is_dir():
            raise ToolError(f"{path} is a folder")
        if not file.exists() and len(self._files(".")) >= MAX_FILES:
            raise ToolError(f"there are {MAX_FILES} files, and no room for more")
        self._put(file, text)
        return f"{self._shown(file)}: {file.stat().st_size} bytes"

    def replace_text(
        self,
        path: FilePath,
        old: Annotated[str, Field(min_length=1, description="A passage that is in the file exactly once")],
        new: Annotated[str, Field(description="What takes its place")],
    ) -> str:
        """Replace one passage of a file and leave the rest as it is."""
        file = self._file(path)
        text = self._text(file)
        if text.count(old) != 1:
            raise ToolError(f"{path} has the passage {text.count(old)} times; it must be there once")
        self._put(file, text.replace(old, new))
        return f"{self._shown(file)}: {file.stat().st_size} bytes"

    def move_file(self, source: FilePath, target: FilePath) -> str:
        """Move a file to another path, or give it another name. Folders on the way are made."""
        file, place = self._file(source), self._inside(target)
        if place.exists():
            raise ToolError(f"{target} is there already; write the whole path of the file that is to be")
        self._make_folders(place)
        file.rename(place)
        self._drop_empty(file.parent)
        return self._shown(place)

    def delete_file(self, path: FilePath) -> str:
        """Delete a file."""
        file = self._file(path)
        file.unlink()
        self._drop_empty(file.parent)
        return f"{path} is deleted"

    def search(
        self,
        text: Annotated[str, Field(min_length=1, description="What to look for, as it is written")],
        folder: Annotated[str, Field(max_length=500, description='A folder; "." for all')] = ".",
    ) -> list[Match]:
        """Find the lines that have a text, in all files below a folder; the first hundred."""
        matches: list[Match] = []
        for file in self._files(folder):
            for number, line in enumerate(self._text(file).splitlines(), 1):
                if text in line:
                    matches.append(Match(self._shown(file), number, line))
        return matches[:MAX_MATCHES]

    # -- the folder

    def _inside(self, path: str) -> Path:
        """Return the file of a path. Raise `ToolError` if it is outside the folder."""
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path:
            raise ToolError(f"{path!r} is no path in the workspace: it begins with a name, and has no '..'")
        place = self.world.folder.joinpath(*parts)
        # No tool makes links, but a link that exists must not lead outside.
        if not place.resolve().is_relative_to(self.world.folder.resolve()):
            raise ToolError(f"{path!r} leads out of the workspace")
        return place

    def _file(self, path: str) -> Path:
        file = self._inside(path)
        if file.is_dir():
            raise ToolError(f"{path} is a folder")
        if not file.is_file():
            raise ToolError(f"there is no file {path}")
        return file

    def _files(self, folder: str) -> list[Path]:
        root = self.world.folder if folder in (".", "") else self._inside(folder)
        if not root.is_dir():
            raise ToolError(f"there is no folder {folder}")
        return sorted(file for file in root.rglob("*") if file.is_file() and not file.is_symlink())

    def _shown(self, file: Path) -> str:
        return file.relative_to(self.world.folder).as_posix()

    def _text(self, file: Path) -> str:
        # Not read_text, which would change the line ends that the verifier sees.
        return file.read_bytes().decode(errors="replace")

    def _put(self, file: Path, text: str) -> None:
        content = text.encode()
        if len(content) > MAX_BYTES:
            raise ToolError(f"the text has {len(content)} bytes; a file has {MAX_BYTES} at most")
        self._make_folders(file)
        file.write_bytes(content)

    def _make_folders(self, file: Path) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ToolError(f"a part of {self._shown(file)} is a file, not a folder") from None

    def _drop_empty(self, folder: Path) -> None:
        """Remove an empty folder, and parents that become empty."""
        while folder != self.world.folder and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent
