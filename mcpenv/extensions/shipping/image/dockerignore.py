"""The file ``.dockerignore``: its text, and its patterns, which exclude files of a folder from the build."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from .generated import checked

DOCKERIGNORE = ".dockerignore"

_IGNORED = """\
**/__pycache__
**/*.egg-info
**/.*_cache
**/.env
**/.env.*
.git
.venv
build
dist
records
runs
tests
"""


@dataclass(frozen=True)
class DockerIgnore:
    """The patterns of a file, in order.

    The last matching pattern decides; a pattern with ``!`` keeps the files that it matches.

    Attributes:
        patterns: each pattern, and True if it ignores.
    """

    patterns: tuple[tuple[str, bool], ...]

    @classmethod
    def read(cls, text: str) -> DockerIgnore:
        """Return the patterns of a file's text. Lines that begin with ``#`` are comments."""
        patterns = []
        for line in text.splitlines():
            pattern = line.strip()
            if not pattern or line.startswith("#"):
                continue
            ignores = not pattern.startswith("!")
            parts = (pattern if ignores else pattern[1:].strip()).split("/")
            cleaned = "/".join(part for part in parts if part not in ("", "."))
            if cleaned:
                patterns.append((cleaned, ignores))
        return cls(tuple(patterns))

    def ignores(self, path: str) -> bool:
        """Return True if a file is ignored.

        Args:
            path: relative to the folder, with ``/``.
        """
        ignored = False
        for pattern, ignores in self.patterns:
            if ignores != ignored and any(map(_matcher(pattern).fullmatch, _with_parents(path))):
                ignored = ignores
        return ignored


def dockerignore() -> str:
    """Return the text of ``.dockerignore``."""
    return checked(_IGNORED)


def _with_parents(path: str) -> Iterable[str]:
    """Yield a path and the folders above it: a pattern that matches a folder matches all in it."""
    parts = path.split("/")
    return ("/".join(parts[:length]) for length in range(len(parts), 0, -1))


@functools.lru_cache
def _matcher(pattern: str) -> re.Pattern[str]:
    # ** matches any number of folders; * and ? do not match a /.
    tokens = re.split(r"(\*\*/|/\*\*$|\*\*|\*|\?|\[[^\]]+\]|\\.)", pattern)
    return re.compile("".join(map(_regex, tokens)), re.DOTALL)


def _regex(token: str) -> str:
    known = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if token in known:
        return known[token]
    if token.startswith("[") and token.endswith("]"):
        return token
    return re.escape(token[1:] if token.startswith("\\") else token)
