"""Read a Dockerfile as steps that need no container engine, or report the parts that need one.

Supported without an engine: one ``FROM`` (the image is not used), ``WORKDIR``, ``ENV``, ``ARG``, ``RUN``, ``COPY`` and
``ADD`` of files in the build context, and ``USER root``. ``CMD`` is not run, as in Harbor. ``LABEL``, ``EXPOSE`` and
``MAINTAINER`` have no effect on commands.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_NO_EFFECT = frozenset({"CMD", "LABEL", "EXPOSE", "MAINTAINER"})
_VARIABLE = r"\$(?:(\w+)|\{(\w+)(?:(:?[-+])((?:[^{}]|\$\{[^{}]*\})*))?\})"
_QUOTED = re.compile(rf"\\.|{_VARIABLE}|.", re.DOTALL)
_UNQUOTED = re.compile(rf"\\.|'[^']*'|{_VARIABLE}|.", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"(^|\s)\d*<<-?[\"']?\w")
_ARCHIVE = re.compile(r"\.(tar|tgz|tbz2?|txz|tar\.\w+)$")

VARIABLES = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "USER": "root",
}
"""The variables of a box by bubblewrap, in place of those of the image."""

CONTEXT = "/run/mcpenv/context"
"""The folder in which steps find the build context."""


class NeedsEngine(Exception):
    """Raised if a Dockerfile uses a feature that requires a container engine. The text names the feature."""


@dataclass(frozen=True)
class Step:
    """A step of a build.

    Attributes:
        line: the line of the Dockerfile.
        script: a shell script.
        workdir: its working folder.
        env: its variables.
    """

    line: int
    script: str
    workdir: str
    env: dict[str, str]


@dataclass
class Recipe:
    """The steps of a Dockerfile.

    Attributes:
        image: the image of ``FROM``.
        steps: the steps to run.
        env: the variables of the container.
        workdir: its working folder.
    """

    image: str
    steps: list[Step] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"


def read_recipe(folder: Path) -> Recipe:
    """Return the steps of ``Dockerfile`` in a folder.

    Raises:
        NeedsEngine: it uses a feature that requires a container engine.
    """
    if (folder / ".dockerignore").exists():
        raise NeedsEngine("environment/.dockerignore")
    try:
        text = (folder / "Dockerfile").read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise NeedsEngine(f"environment/Dockerfile: {error}") from error
    return _Reader(folder).read(text)


class _Reader:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recipe: Recipe | None = None
        self._arguments: dict[str, str] = {}

    def read(self, text: str) -> Recipe:
        for line, name, rest in _instructions(text):
            try:
                self._add(line, name, rest)
            except NeedsEngine as error:
                raise NeedsEngine(f"line {line} of environment/Dockerfile: {error}") from None
            except (IndexError, OSError, ValueError):
                raise NeedsEngine(f"line {line} of environment/Dockerfile: {name} {rest} (cannot be read)") from None
        if self._recipe is None:
            raise NeedsEngine("environment/Dockerfile has no FROM")
        return self._recipe

    def _add(self, line: int, name: str, rest: str) -> None:
        if name == "ARG":
            pairs = [word.partition("=") for word in self._words(rest)]
            self._arguments.update({argument: default for argument, equals, default in pairs if equals})
            return
        if name == "FROM":
            if self._recipe is not None:
                raise NeedsEngine("a second FROM")
            self._recipe = Recipe(self._words(rest)[0])
            return
        recipe = self._recipe
        if recipe is None:
            raise NeedsEngine(f"{name} before FROM")
        if name == "WORKDIR":
            recipe.workdir = posixpath.join(recipe.workdir, self._word(rest))
            self._step(line, f"mkdir -p -- {shlex.quote(recipe.workdir)}", "/")
        elif name == "ENV":
            recipe.env.update(dict(self._variables(rest)))  # each value sees those before the line
        elif name == "RUN":
            self._step(line, _command(rest), recipe.workdir)
        elif name in ("COPY", "ADD"):
            self._step(line, self._copy(name, rest), "/")
        elif name == "USER":
            if rest.strip().partition(":")[0] not in ("root", "0"):
                raise NeedsEngine(f"USER {rest.strip()} (only root is there)")
        elif name not in _NO_EFFECT:
            raise NeedsEngine(name)

    def _step(self, line: int, script: str, workdir: str) -> None:
        assert self._recipe is not None
        self._recipe.steps.append(Step(line, script, workdir, {**self._arguments, **self._recipe.env}))

    def _variables(self, rest: str) -> Iterator[tuple[str, str]]:
        name, *_ = rest.split()
        if "=" not in name:  # the old form, ENV NAME VALUE
            yield name, self._word(rest.strip()[len(name) :])
            return
        for word in self._words(rest):
            name, _, value = word.partition("=")
            yield name, value

    def _copy(self, name: str, rest: str) -> str:
        """Return the script of a ``COPY`` or ``ADD``."""
        assert self._recipe is not None
        words, mode = self._words(rest), None
        while words and words[0].startswith("--"):
            flag, _, value = words.pop(0).partition("=")
            if flag == "--chmod":
                mode = value
            elif not (flag == "--link" or (flag == "--chown" and value in ("root", "0", "root:root", "0:0"))):
                raise NeedsEngine(f"{name} {flag}={value}")
        if (listed := _listed(rest)) is not None:
            words = [self._word(word) for word in listed]
        *sources, target = words
        if name == "ADD" and any("://" in source or _ARCHIVE.search(source) for source in sources):
            raise NeedsEngine("ADD of a URL or an archive")
        found = [path for source in sources for path in self._found(name, source)]
        if name == "ADD" and any(path.is_file() and tarfile.is_tarfile(path) for path in found):
            raise NeedsEngine("ADD of a URL or an archive")
        into = posixpath.join(self._recipe.workdir, target)
        is_folder = target.endswith(("/", ".")) or len(found) > 1 or found[0].is_dir()
        lines = [f"mkdir -p -- {shlex.quote(into if is_folder else posixpath.dirname(into))}"]
        for path in found:
            relative = path.relative_to(self._folder).as_posix()
            source = posixpath.join(CONTEXT, relative, ".") if path.is_dir() else posixpath.join(CONTEXT, relative)
            lines.append(f"cp -RP -- {shlex.quote(source)} {shlex.quote(into)}")
            if mode is not None:
                copied = into if path.is_dir() or not is_folder else posixpath.join(into, path.name)
                lines.append(f"chmod -R {shlex.quote(mode)} -- {shlex.quote(copied)}")
        return " && ".join(lines)

    def _found(self, name: str, source: str) -> list[Path]:
        pattern = posixpath.normpath(source.lstrip("/"))
        if pattern.startswith(".."):
            raise NeedsEngine(f"{name} {source} (it leads out of environment/)")
        found = [self._folder] if pattern == "." else sorted(self._folder.glob(pattern))
        if not found:
            raise NeedsEngine(f"{name} {source} (there is no such file)")
        return found

    def _word(self, text: str) -> str:
        """Return a text without quotes, and with variables substituted."""
        return "".join(self._words(text.strip(), blanks=True))

    def _words(self, text: str, *, blanks: bool = False) -> list[str]:
        """Return the words of a text, with variables substituted by Docker's rules: not in single quotes.

        Args:
            blanks: True to take blanks between words as a part of one word.
        """
        made, at, quote = [], 0, False
        while at < len(text):
            match = (_QUOTED if quote else _UNQUOTED).match(text, at)
            assert match is not None
            token, at = match[0], match.end()
            if token == "$" and text.startswith("{", at):
                raise NeedsEngine(f"{text[at - 1 :]!r} (of the forms of variables, only :- - :+ and + are there)")
            name = match[1] or match[2]
            if name is not None or token == "\\$":
                token = shlex.quote("$" if name is None else self._value(name, match[3] or "", match[4] or ""))
                token = f'"{token}"' if quote else token  # a part of its own between two double quotes
            elif token == '"':
                quote = not quote
            elif blanks and not quote and token.isspace():
                token = f"'{token}'"
            made.append(token)
        try:
            return shlex.split("".join(made))
        except ValueError as error:
            raise NeedsEngine(f"{text.strip()!r} cannot be read: {error}") from None

    def _value(self, name: str, how: str, more: str) -> str:
        known = {**VARIABLES, **self._arguments, **(self._recipe.env if self._recipe is not None else {})}
        is_set = bool(known.get(name)) if how.startswith(":") else name in known
        if how.endswith("+"):
            return self._word(more) if is_set else ""
        return known.get(name, "") if is_set or not how else self._word(more)


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the name and the rest of each instruction, with its continuation lines joined.

    Raises:
        NeedsEngine: there is a here-document or another escape character.
    """
    parts: list[str] = []
    begun = 0
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"#\s*escape\s*=\s*[^\\\s]", line):
            raise NeedsEngine("the directive 'escape'")
        if line.lstrip().startswith("#") or not (parts or line.strip()):
            continue
        begun = begun or number
        continues = line.rstrip().endswith("\\")
        parts.append(line.rstrip()[:-1] if continues else line)
        if continues:
            continue
        name, _, rest = " ".join(parts).strip().partition(" ")
        if _HERE_DOCUMENT.search(rest) and name.upper() in ("RUN", "COPY", "ADD"):
            raise NeedsEngine(f"line {begun} of environment/Dockerfile: a here-document")
        yield begun, name.upper(), rest
        parts, begun = [], 0


def _command(rest: str) -> str:
    """Return the shell script of a ``RUN``.

    Raises:
        NeedsEngine: it has options, such as mounts.
    """
    rest = rest.strip()
    if rest.startswith("--"):
        raise NeedsEngine(f"RUN {rest.split()[0]}")
    listed = _listed(rest)
    return rest if listed is None else shlex.join(listed)


def _listed(rest: str) -> list[str] | None:
    """Return the words of an instruction in the form of a JSON array of texts; None if it has another form."""
    try:
        words = json.loads(rest) if rest.lstrip().startswith("[") else None
    except ValueError:
        return None  # RUN [ -f a ] || touch a
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None
