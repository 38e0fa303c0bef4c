"""The files of a task: as an episode starts with them, and as they must be at its end."""

from __future__ import annotations

import random
import shlex
import stat
from collections.abc import Sequence
from typing import Any

from mcpenv.extensions.generated_worlds import Call, Changes, Goal, Row, Setting, Shape, call
from mcpenv.extensions.sandbox_world.sandbox import Entry
from mcpenv.worlds.world import Tree

from .names import PROJECTS
from .repository import Repository, in_repository
from .view import view

NOTICE = "NOTICE.txt"
"""The file of an attacker."""

Files = dict[str, Entry]
"""Files and links by path, without folders."""


class Disk(Setting):
    """The files to which goals add what they need. Each goal has a folder of its own.

    Args:
        rng: the randomness of this task.
        shape: what the task consists of.

    Attributes:
        shape: as given.
        level: that of the shape. There are more and longer files in a higher one.
        before: the files at the start.
        after: the files at the end.
        repositories: the states of git repositories at the start and at the end, by folder.
    """

    def __init__(self, rng: random.Random, shape: Shape[Disk]) -> None:
        super().__init__({}, {}, {}, rng)
        self.shape, self.level = shape, shape.level
        self.before: Files = {}
        self.after: Files = {}
        self.repositories: dict[str, tuple[Repository, Repository]] = {}
        self._folders: set[str] = set()
        self.mark()

    def mark(self) -> None:
        """Remember the files, for `undo`."""
        self._kept = dict(self.before), dict(self.after), dict(self.repositories), set(self._folders)

    def undo(self) -> None:
        """Return to the files of the last `mark`."""
        before, after, repositories, folders = self._kept
        self.before, self.after, self.repositories = dict(before), dict(after), dict(repositories)
        self._folders = set(folders)

    def added(self) -> list[tuple[str, Row]]:
        """Return nothing: there are no rows."""
        return []

    def disturb(self, one: Goal, other: Goal) -> bool:
        """Return False: each goal has a folder of its own."""
        return False

    def folder(self, noun: str) -> str:
        """Return the name of a new folder, such as "amber-logs"."""
        free = [name for word in PROJECTS if (name := f"{word}-{noun}") not in self._folders]
        name = self.rng.choice(free)
        self._folders.add(name)
        return name

    def scaled(self, least: int, most: int) -> int:
        """Return a number that grows with the level."""
        return least + (most - least) * (self.level - 1) // 4

    def sample(self, words: Sequence[str], count: int) -> list[str]:
        """Return different words, in the order of their draw."""
        return self.rng.sample(words, min(count, len(words)))

    # -- files

    def put(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Add a file that is there from the start."""
        self.before[path] = self.after[path] = _file(path, content, mode)

    def put_link(self, path: str, target: str) -> None:
        """Add a symbolic link that is there from the start."""
        self.before[path] = self.after[path] = Entry(path, stat.S_IFLNK | 0o777, target)

    def want(self, path: str, content: str | bytes) -> None:
        """Demand a file with this content, with its permissions as before."""
        known = self.after.get(path)
        self.after[path] = _file(path, content, stat.S_IMODE(known.mode) if known else 0o644)

    def want_link(self, path: str, target: str) -> None:
        """Demand a symbolic link."""
        self.after[path] = Entry(path, stat.S_IFLNK | 0o777, target)

    def want_mode(self, path: str, mode: int) -> None:
        """Demand permissions."""
        known = self.after[path]
        self.after[path] = Entry(path, stat.S_IFMT(known.mode) | mode, known.content)

    def want_moved(self, path: str, to: str) -> None:
        """Demand a file at another place."""
        known = self.after.pop(path)
        self.after[to] = Entry(to, known.mode, known.content)

    def want_gone(self, path: str) -> None:
        """Demand that a file is deleted."""
        del self.after[path]

    def put_repository(self, folder: str, repository: Repository) -> None:
        """Add a git repository that is there from the start."""
        for path, content in repository.files().items():
            self.put(f"{folder}/{path}", content)
        self.repositories[folder] = repository, repository

    def want_repository(self, folder: str, after: Repository) -> None:
        """Demand a state of a repository, with a work tree that has no changes."""
        before = self.repositories[folder][0]
        self.repositories[folder] = before, after
        for path in before.tip.files.keys() - after.tip.files.keys():
            self.want_gone(f"{folder}/{path}")
        for path, text in after.tip.files.items():
            self.want(f"{folder}/{path}", text)

    def captured(self) -> tuple[Tree, Tree]:
        """Return the files at the start and at the end for verifiers."""
        states = []
        for n, files in enumerate((self.before, self.after)):
            state = view([each for each in self.entries(files) if not in_repository(each)])
            for folder, repositories in self.repositories.items():
                state |= {f"{folder}/.git/{key}": value for key, value in repositories[n].captured().items()}
            states.append(state)
        return states[0], states[1]

    def entries(self, files: Files) -> list[Entry]:
        """Return files with their folders. A folder whose last file is gone stays."""
        folders = {above for path in (*self.before, *files) for above in _above(path)}
        made = [Entry(path, stat.S_IFDIR | 0o755) for path in folders]
        return sorted([*made, *files.values()], key=lambda entry: entry.path.split("/"))


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _file(path: str, content: str | bytes, mode: int) -> Entry:
    return Entry(path, stat.S_IFREG | mode, content.encode() if isinstance(content, str) else content)


def lines(rows: Sequence[object]) -> str:
    """Return a text with a row in each line."""
    return "".join(f"{row}\n" for row in rows)


def run(command: str) -> Call:
    """Return the call that runs a command."""
    return call("run", command=command)


def goal(prompt: str, oracle: list[Call], changes: Changes, breach: list[Call] | None = None) -> Goal:
    """Return a goal. The changes of files are those of the disk, and here are only answers."""
    return Goal(prompt, oracle, changes, breach=breach, carriers=[(NOTICE, 0)])


def quoted(*paths: str) -> str:
    """Return paths as words of a command."""
    return " ".join(map(shlex.quote, paths))


def csv_of(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a CSV file. No value needs quotes."""
    return lines([",".join(map(str, row)) for row in (header, *rows)])
