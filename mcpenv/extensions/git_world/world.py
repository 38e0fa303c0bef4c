"""Define `GitWorld`, a git repository as authors think of it: without hashes of commits and without times."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpenv.extensions.files_world.world import MAX_BYTES as MAX_FILES
from mcpenv.extensions.files_world.world import MAX_TEXT, FilesWorld, look, look_at
from mcpenv.worlds.world import Budget, Tree

from .reader import GitFailed, GitReader

MAX_COMMITS = 10_000
"""Maximum commits to list. For a longer history, give a base."""

MAX_BYTES = 64 << 20
"""Maximum bytes of all texts of the trees. A verifier accepts at most this many."""

_WORDS = {"A": "added", "D": "deleted", "M": "modified", "T": "type changed"}

_OPERATIONS = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
}


class GitWorld:
    """A git repository.

    Captured as references, commits, trees and status:

    - ``HEAD``: the name of the current branch; ``{"commit": ...}`` if it is detached.
    - ``branches/NAME``, ``tags/NAME`` and ``refs/NAME`` for all others: the commit. An annotated tag has ``commit`` and
      ``message``.
    - ``commits/SUBJECT``: ``author``, ``message``, ``parents``, ``files`` (path and "added", "modified" or "deleted",
      compared with the first parent), and ``tree``, which is git's hash of all content.
    - ``trees/REVISION/PATH``: a file of a tree, as `FilesWorld` has it.
    - ``status/PATH``: a file that differs from HEAD: its ``code`` as git prints it, and its content.
    - ``operation``: an unfinished merge, rebase, cherry-pick or revert.

    A commit is named by its subject. Further commits with the same subject get the suffixes "#2", "#3", the oldest
    first. Without a repository, the world is empty. Submodules appear as their commits. Nothing that the repository's
    configuration names is run.

    Args:
        folder: the work tree, or a bare repository.
        trees: the revisions to capture files of. A missing revision has no files.
        base: a commit or tag; its history is not listed, which shortens a long history. Commits of that history are
            named by subject and hash.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, trees: Iterable[str] = ("HEAD",), base: str | None = None
    ) -> None:
        self.folder = Path(folder)
        self._trees = tuple(trees)
        self._base = base

    def capture(self) -> Tree:
        """Return the state of the repository.

        Raises:
            GitFailed: it cannot be read, is too large, or has no such base.
        """
        if not GitReader.finds(self.folder):
            return {}
        with GitReader(self.folder) as git:
            return _Capture(git, self._trees, self._base).tree()

    def save(self) -> bytes:
        """Return the files of the work tree and of the repository."""
        return FilesWorld(self.folder).save()

    def load(self, saved: bytes) -> None:
        """Empty the folder and restore the saved files."""
        FilesWorld(self.folder).load(saved)

    def held(self) -> tuple[object, ...]:
        """Return the folder: the world is a place on disk."""
        return (self.folder,)


@dataclass(frozen=True)
class _Commit:
    """A commit as git prints it."""

    id: str
    tree: str
    parents: list[str]
    author: str
    message: str

    @property
    def subject(self) -> str:
        return self.message.strip().partition("\n")[0].strip() or "(no subject)"


class _Capture:
    """One reading of a repository."""

    def __init__(self, git: GitReader, trees: tuple[str, ...], base: str | None) -> None:
        self._git = git
        self._revisions = trees
        self._base = [] if base is None else ["--not", self._base_of(base)]
        self._size = 0

    def tree(self) -> Tree:
        references = self._references()
        head = self._resolved("HEAD^{commit}")
        commits = self._commits(head, references)
        names = self._names(commits, [*([head] if head else []), *(at for at, _, _ in references.values() if at)])
        tree: Tree = {"HEAD": self._head(head, names)}
        for name, (at, message, kind) in references.items():
            pointed: Any = names.get(at, f"({kind} {at[:12]})")
            tree[_short(name)] = pointed if message is None else {"commit": pointed, "message": message}
        files = self._files(commits)
        for commit in commits:
            tree[f"commits/{_key(names[commit.id])}"] = {
                "author": commit.author,
                "message": commit.message,
                "parents": [names[parent] for parent in commit.parents],
                "files": files.get(commit.id, {}),
                "tree": commit.tree[:12],
            }
        for revision in self._revisions:
            for path, content in self._tree_of(revision).items():
                tree[f"trees/{revision}/{path}"] = content
        if not self._git.bare:
            for path, state in self._status().items():
                tree[f"status/{path}"] = state
            for file, operation in _OPERATIONS.items():
                if os.path.lexists(self._git.directory / file):
                    tree["operation"] = operation
        return tree

    def _base_of(self, base: str) -> str:
        found = self._resolved(f"{base}^{{commit}}")
        if not found:
            raise GitFailed(f"{self._git.folder}: there is no commit {base!r}, the base")
        return found

    def _resolved(self, revision: str) -> str:
        """Return the id of a revision; empty if there is none."""
        options = ("--verify", "--quiet", "--end-of-options")
        return self._git.ask("rev-parse", *options, revision, may_fail=True).decode().strip()

    def _head(self, head: str, names: Mapping[str, str]) -> Any:
        branch = _text(self._git.ask("symbolic-ref", "--quiet", "HEAD", may_fail=True)).strip()
        return branch.removeprefix("refs/heads/") if branch else {"commit": names[head]}

    def _references(self) -> dict[str, tuple[str, str | None, str]]:
        """Return commit, message of an annotated tag, and type of the object, by the names of the references."""
        parts = ("refname", "objecttype", "objectname", "*objectname", "contents")
        wanted = "%00".join(f"%({part})" for part in parts)
        *fields, _ = self._git.ask("for-each-ref", f"--format={wanted}%00").split(b"\0")
        found: dict[str, tuple[str, str | None, str]] = {}
        for name, kind, own, peeled, message in zip(*(iter(map(_text, fields)),) * 5, strict=True):
            if kind == "tag":
                found[name.lstrip("\n")] = (peeled, message.split("\n-----BEGIN ")[0], kind)
            else:
                found[name.lstrip("\n")] = (own, None, kind)
        return found

    def _commits(self, head: str, references: Mapping[str, Any]) -> list[_Commit]:
        """Return the commits that a reference reaches, the oldest first."""
        if not head and not references:
            return []
        return self._log("--all", *([head] if head else []), *self._base)

    def _log(self, *which: str) -> list[_Commit]:
        options = ("--topo-order", "--reverse", "-z", "--format=%H%n%T%n%P%n%an <%ae>%n%B")
        text = self._git.ask("log", *options, f"--max-count={MAX_COMMITS + 1}", *which, "--")
        lines = [_text(each).split("\n", 4) for each in text.split(b"\0") if each]
        if len(lines) > MAX_COMMITS:
            raise GitFailed(f"{self._git.folder}: there are more than {MAX_COMMITS} commits; give GitWorld a base")
        return [_Commit(own, tree, parents.split(), author, message) for own, tree, parents, author, message in lines]

    def _names(self, commits: list[_Commit], others: Iterable[str]) -> dict[str, str]:
        """Return the names of commits by id: of listed commits, and of commits that something refers to."""
        count: Counter[str] = Counter()
        names = {}
        for commit in commits:
            count[commit.subject] += 1
            number = count[commit.subject]
            names[commit.id] = commit.subject if number == 1 else f"{commit.subject}#{number}"
        others = [*others, *(parent for commit in commits for parent in commit.parents)]
        unknown = list(dict.fromkeys(each for each in others if each not in names))
        shown = self._git.ask("cat-file", "--batch-check", given="".join(f"{each}\n" for each in unknown).encode())
        kinds = [line.split()[1:2] for line in shown.decode().splitlines()]
        of_base = [each for each, kind in zip(unknown, kinds, strict=True) if kind == ["commit"]]
        if of_base:
            for commit in self._log("--no-walk=unsorted", *of_base):
                names[commit.id] = f"{commit.subject} ({commit.id[:12]})"
        # Parents beyond the edge of a shallow repository are only ids.
        return {**{each: f"({each[:12]})" for each in unknown}, **names}

    def _files(self, commits: list[_Commit]) -> dict[str, dict[str, str]]:
        """Return the files that each commit changed, by the commit's id."""
        options = ("--stdin", "--root", "-r", "-z", "--name-status", "--no-renames", "--diff-merges=first-parent")
        given = "".join(f"{commit.id}\n" for commit in commits).encode()
        parts = iter(self._git.ask("diff-tree", *options, given=given).split(b"\0"))
        files: dict[str, dict[str, str]] = {}
        into: dict[str, str] = {}
        for part in parts:
            code = _text(part).strip()
            if len(code) == 1:
                into[_text(next(parts))] = _WORDS.get(code, code)
            elif code:
                into = files.setdefault(code, {})
        return files

    def _tree_of(self, revision: str) -> dict[str, Any]:
        """Return the files of a revision by path."""
        tree = self._resolved(f"{revision}^{{tree}}")
        if not tree:
            return {}
        listed = self._git.ask("ls-tree", "-r", "-z", "--full-tree", tree)
        entries = [entry.split(b"\t", 1) for entry in listed.split(b"\0") if entry]
        return self._contents({_text(path): tuple(_text(about).split()[::2]) for about, path in entries})

    def _contents(self, entries: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
        """Return the contents of files, given as mode and blob by path."""
        blobs = {blob: b"" for mode, blob in entries.values() if mode != "160000"}
        for blob, content in self._git.contents(blobs):
            blobs[blob] = content
            self._size += min(len(content), MAX_TEXT)
            if self._size > MAX_BYTES:
                raise GitFailed(f"{self._git.folder}: the trees have more than {MAX_BYTES >> 20} MiB of text")
        found: dict[str, Any] = {}
        for path, (mode, blob) in entries.items():
            if mode == "160000":
                found[path] = {"submodule": blob}
            elif mode == "120000":
                found[path] = {"link": _text(blobs[blob])}
            else:
                found[path] = {**look_at(blobs[blob]), **({"executable": True} if mode == "100755" else {})}
        return found

    def _status(self) -> dict[str, Any]:
        """Return the files that differ from HEAD, by path."""
        options = ("--porcelain=v2", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=dirty")
        found: dict[str, Any] = {}
        budget = Budget("the folder", MAX_FILES)
        staged: dict[str, tuple[str, ...]] = {}
        for entry in map(_text, self._git.ask("status", *options).split(b"\0")):
            if entry.startswith("1 "):
                _, code, _, _, in_index, _, _, blob, path = entry.split(" ", 8)
                if code[0] not in ".D" and code[1] != ".":
                    staged[path] = (in_index, blob)
            elif entry.startswith("u "):
                code, path = entry.split(" ")[1], entry.split(" ", 10)[10]
            elif entry.startswith("? "):
                code, path = "??", entry[2:]
            else:
                continue
            found[path.rstrip("/")] = {"code": code, **look(self._git.folder / path, budget)}
        for path, content in self._contents(staged).items():
            found[path]["staged"] = content
        return found


def _short(reference: str) -> str:
    for prefix, name in (("refs/heads/", "branches/"), ("refs/tags/", "tags/")):
        if reference.startswith(prefix):
            return name + reference.removeprefix(prefix)
    return reference


def _key(subject: str) -> str:
    """Return a subject as one part of a path."""
    return subject.replace("~", "~0").replace("/", "~1")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
