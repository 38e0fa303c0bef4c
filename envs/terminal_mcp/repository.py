"""Git repositories: as files, made without git, and as verifiers see them."""

from __future__ import annotations

import hashlib
import stat
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mcpenv.errors import WorldUnreadable
from mcpenv.extensions.generated_worlds import ANY
from mcpenv.extensions.git_world import GitWorld
from mcpenv.extensions.sandbox_world.sandbox import Entry
from mcpenv.worlds.world import Tree

AGENT = "assistant"
NOW = 1798804800
"""The time of each commit of the agent: 2027-01-01, 12:00 UTC."""

IDENTITY = {
    **{f"GIT_{role}_NAME": AGENT for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": f"{AGENT}@example.com" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_DATE": f"{NOW} +0000" for role in ("AUTHOR", "COMMITTER")},
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": "true",
    "GIT_PAGER": "cat",
}
"""The environment variables of commands, with which equal commits have equal ids. No editor waits."""

CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"
_DAY_S = 86400


@dataclass(frozen=True, eq=False)
class Commit:
    """A commit.

    Attributes:
        subject, body: its message. The subject has no "/".
        author: a name; that of the agent for a commit to come.
        at: its time, in seconds since 1970.
        files: the text of each file by path.
        parents: the commits before it.
    """

    subject: str
    author: str
    at: int
    files: Mapping[str, str]
    parents: tuple[Commit, ...] = ()
    body: str = ""

    @property
    def given(self) -> bool:
        """True if it is there from the start."""
        return self.at < NOW

    @property
    def message(self) -> str:
        return f"{self.subject}\n\n{self.body}\n" if self.body else f"{self.subject}\n"

    @cached_property
    def tree(self) -> str:
        """The id of its tree."""
        return next(_trees(self.files))[0]

    @cached_property
    def id(self) -> str:
        return _hashed("commit", self.content)[0]

    @property
    def content(self) -> bytes:
        who = f"{self.author} <{self.author}@example.com> {self.at} +0000"
        parents = "".join(f"parent {each.id}\n" for each in self.parents)
        return f"tree {self.tree}\n{parents}author {who}\ncommitter {who}\n\n{self.message}".encode()

    def changes(self) -> dict[str, str]:
        """Return the files that differ from those of the first parent, as `GitWorld` has them."""
        before: Mapping[str, str] = self.parents[0].files if self.parents else {}
        paths = sorted({*before, *self.files})
        return {
            path: "deleted" if path not in self.files else "modified" if path in before else "added"
            for path in paths
            if before.get(path) != self.files.get(path)
        }


class Repository:
    """A repository with a work tree that has no changes.

    Attributes:
        branches, tags: commits by name. Tags are lightweight.
        head: the current branch.
    """

    def __init__(self) -> None:
        self.branches: dict[str, Commit] = {}
        self.tags: dict[str, Commit] = {}
        self.head = "main"
        self._count = 0

    def copy(self) -> Repository:
        """Return another one with the same commits."""
        other = copy(self)
        other.branches, other.tags = dict(self.branches), dict(self.tags)
        return other

    @property
    def tip(self) -> Commit:
        """The current commit."""
        return self.branches[self.head]

    def commit(
        self,
        subject: str,
        author: str,
        changed: Mapping[str, str | None],
        *merged: Commit,
        branch: str = "",
        body: str = "",
    ) -> Commit:
        """Add a commit to a branch, and return it.

        Args:
            changed: texts by path; None deletes a file.
            merged: further parents.
            branch: the current one if it is left out. A new branch starts at the current commit.
        """
        branch = branch or self.head
        above = self.branches.get(branch) or self.branches.get(self.head)
        files = {**(above.files if above else {}), **changed}
        self._count += 1
        at = NOW if author == AGENT else NOW - 400 * _DAY_S + self._count * _DAY_S
        made = Commit(
            subject,
            author,
            at,
            {path: text for path, text in sorted(files.items()) if text is not None},
            (*([above] if above else []), *merged),
            body,
        )
        self.branches[branch] = made
        return made

    def commits(self) -> list[Commit]:
        """Return the commits of all branches and tags, the oldest first."""
        found: dict[str, Commit] = {}
        todo = [*self.branches.values(), *self.tags.values()]
        while todo:
            each = todo.pop()
            if found.setdefault(each.id, each) is each:
                todo += each.parents
        return sorted(found.values(), key=lambda each: each.at)

    def files(self) -> dict[str, bytes]:
        """Return the files of the work tree and of ``.git``. Equal repositories have equal files."""
        made = {path: text.encode() for path, text in self.tip.files.items()}
        made[".git/HEAD"] = f"ref: refs/heads/{self.head}\n".encode()
        made[".git/config"] = CONFIG.encode()
        made[".git/index"] = _index(self.tip.files)
        for kind, references in (("heads", self.branches), ("tags", self.tags)):
            for name, at in references.items():
                made[f".git/refs/{kind}/{name}"] = f"{at.id}\n".encode()
        for each in self.commits():
            objects = [_hashed("commit", each.content), *_trees(each.files)]
            objects += [_hashed("blob", text.encode()) for text in each.files.values()]
            for name, data in objects:
                made[f".git/objects/{name[:2]}/{name[2:]}"] = zlib.compress(data, 0)  # the same in each zlib
        return made

    def captured(self) -> Tree:
        """Return the state as `GitWorld` has it. Messages of commits to come are free below their subject."""
        count: Counter[str] = Counter()
        names = {}
        commits = self.commits()
        for each in commits:
            count[each.subject] += 1
            names[each.id] = each.subject + (f"#{count[each.subject]}" if count[each.subject] > 1 else "")
        tree: Tree = {"HEAD": self.head}
        tree |= {f"branches/{name}": names[at.id] for name, at in self.branches.items()}
        tree |= {f"tags/{name}": names[at.id] for name, at in self.tags.items()}
        for each in commits:
            tree[f"commits/{names[each.id]}"] = {
                "author": f"{each.author} <{each.author}@example.com>",
                "message": each.message if each.given else ANY,
                "parents": [names[parent.id] for parent in each.parents],
                "files": each.changes(),
                "tree": each.tree[:12],
            }
        return tree


def repositories(entries: Sequence[Entry]) -> Tree:
    """Return the repositories among some files: ``FOLDER/.git/KEY`` for each key of `GitWorld`.

    One that cannot be read has ``"unreadable": true``. Git runs on this machine, on a copy of the files.

    Args:
        entries: all files, a folder before its content.
    """
    tree: Tree = {}
    for entry in entries:
        *above, name = entry.path.split("/")
        if name != ".git" or not in_repository(entry) or ".git" in above:
            continue
        with tempfile.TemporaryDirectory(prefix="mcpenv-terminal-") as place:
            _write(entries, entry.path.removesuffix(".git"), Path(place))
            try:
                seen = GitWorld(place, trees=()).capture()
            except WorldUnreadable:
                seen = {"unreadable": True}
        tree |= {f"{entry.path}/{key}": value for key, value in seen.items()}
    return tree


def in_repository(entry: Entry) -> bool:
    """Return True for a folder ``.git`` and what is in it."""
    *above, name = entry.path.split("/")
    return ".git" in above or (name == ".git" and stat.S_ISDIR(entry.mode))


def _write(entries: Sequence[Entry], below: str, place: Path) -> None:
    for entry in entries:
        inside = entry.path.removeprefix(below)
        if not entry.path.startswith(below) or inside.startswith(".git/objects/info"):
            continue  # the latter may name objects of this machine
        if stat.S_ISDIR(entry.mode):
            (place / inside).mkdir(exist_ok=True)
        elif isinstance(entry.content, bytes):
            (place / inside).write_bytes(entry.content)
            (place / inside).chmod(0o600 | entry.mode & 0o100)
        elif isinstance(entry.content, str) and not in_repository(entry):
            (place / inside).symlink_to(entry.content)


def _hashed(kind: str, content: bytes) -> tuple[str, bytes]:
    """Return the id and the bytes of an object."""
    data = f"{kind} {len(content)}\0".encode() + content
    return hashlib.sha1(data, usedforsecurity=False).hexdigest(), data


def _trees(files: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the objects of a tree, the top first."""
    rows: dict[str, tuple[str, str]] = {}
    inside: dict[str, dict[str, str]] = {}
    for path, text in files.items():
        name, slash, rest = path.partition("/")
        if slash:
            inside.setdefault(name, {})[rest] = text
        else:
            rows[name] = "100644", _hashed("blob", text.encode())[0]
    below = []
    for name, of_folder in inside.items():
        made = list(_trees(of_folder))
        rows[f"{name}/"] = "40000", made[0][0]  # as git sorts them
        below += made
    content = b"".join(
        f"{mode} {name.rstrip('/')}\0".encode() + bytes.fromhex(own) for name, (mode, own) in sorted(rows.items())
    )
    yield _hashed("tree", content)
    yield from below


def _index(files: Mapping[str, str]) -> bytes:
    """Return an index of format 2 without times, so that git compares the contents."""
    made = struct.pack(">4sII", b"DIRC", 2, len(files))
    for path, text in sorted(files.items()):
        own, name = _hashed("blob", text.encode())[0], path.encode()
        entry = struct.pack(">10I20sH", 0, 0, 0, 0, 0, 0, 0o100644, 0, 0, 0, bytes.fromhex(own), len(name)) + name
        made += entry + b"\0" * (8 - len(entry) % 8)
    return made + hashlib.sha1(made, usedforsecurity=False).digest()
