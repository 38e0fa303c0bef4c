"""Targets that extensions add, by the entry-point group ``mcpenv.targets``. The name of an entry is one of these:

- A prefix, such as ``harbor``: the target is ``harbor:REST``.
- A suffix, such as ``.json``: the target is an existing file of that suffix.
- The name of a file, such as ``openenv.yaml``: the target is a folder with that file, and no ``environment.py``.

An entry is a function that returns an environment class, a `TargetKind`, or for the name of a file a `FolderKind`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import StartupError, TargetError

from .place import absolute, entry_of, folder_formats
from .settings import bind

if TYPE_CHECKING:
    from mcpenv.cli.run_request import RunRequest

logger = logging.getLogger("mcpenv")

DISTRIBUTIONS = frozenset({"fleet"})
"""The prefixes of the repository's other distributions, which a user may name before installing them."""


@dataclass(frozen=True, kw_only=True)
class TargetKind:
    """The targets of a prefix or suffix, if a function does not suffice.

    Attributes:
        load: the function that returns an environment class. Its only positional argument is the text after the prefix,
            or the file. Settings (``--set name=value``) are given by name, as values of the annotations of its
            parameters. An argument annotated as `Path` is a file or folder: it is watched for changes, and written from
            the root in `Target.spec`. With ``str | Path``, it is a path if such a file exists. None if only ``mcpenv
            run`` takes such targets; for other commands ``prefix:NAME`` is then the class of a module.
        absolute: returns the text after the prefix in a form that is valid in other working directories.
        run: serves the target for ``mcpenv run`` and returns the exit status, or returns the TARGET to serve instead.
    """

    load: Callable[..., type[MCPEnvironment]] | None = None
    absolute: Callable[[str], str] = str
    run: Callable[[RunRequest], int | str] | None = None


@dataclass(frozen=True, kw_only=True)
class FolderKind:
    """Folders with a certain file, and the environment classes of the framework that defines this file.

    Attributes:
        framework: its name.
        advice: the command to convert its environments, for an error.
        load_folder: returns the environment class of the target (as written), its folder, and the name after the colon.
            Settings are arguments of the class.
        load_attribute: returns the environment class of the target, its module, the module's file if it is known, and
            the name after the colon.
        owns: returns True if an object is an environment class of the framework.
        explains: returns True if the environment may belong to the framework, given the error of its import; the
            framework's packages are not installed here. The second argument is True if there is no such module at all.
    """

    framework: str
    advice: str
    load_folder: Callable[[str, Path, str | None], type[MCPEnvironment]]
    load_attribute: Callable[[str, str, Path | None, str], type[MCPEnvironment]]
    owns: Callable[[Any], bool]
    explains: Callable[[BaseException | None, bool], bool]


@dataclass(frozen=True)
class ExternalTarget:
    """A target of an extension, not loaded.

    Attributes:
        target: as the user wrote it.
        prefix: the prefix with its colon; empty for a file.
        rest: the text after the prefix.
        kind: the kind.
        source: the value of the entry point, for errors.
    """

    target: str
    prefix: str
    rest: str
    kind: TargetKind
    source: str

    @functools.cached_property
    def path(self) -> Path | None:
        """The file or folder that the target names, from the root."""
        given = self._argument
        return absolute(given) if isinstance(given, Path) else None

    @property
    def spec(self) -> str:
        """`Target.spec`."""
        return f"{self.prefix}{self.kind.absolute(self.rest) if self.path is None else self.path}"

    def load(self, settings: Sequence[str], values: Mapping[str, Any] | None = None) -> type[MCPEnvironment]:
        """Return the environment class.

        Args:
            settings: ``name=value`` each.
            values: further settings as Python values.

        Raises:
            TargetError: the extension refuses the target, or returns something else.
        """
        given, load = self._argument, self.kind.load
        assert load is not None
        if isinstance(given, Path) and not self.rest:
            raise TargetError(self.target, f"nothing stands after {self.prefix}")
        bound = bind(self.target, load, settings, values)
        try:
            cls = load(given, **bound)
        except StartupError as error:
            raise TargetError(self.target, str(error).removeprefix(f"{self.target}: ")) from error
        if not (isinstance(cls, type) and issubclass(cls, MCPEnvironment)):
            raise TargetError(self.target, f"{self.source} returned {cls!r:.200}, not an environment class")
        return cls

    @functools.cached_property
    def _argument(self) -> str | Path:
        accepted = _argument_types(self.kind.load)
        path = Path(self.rest).expanduser() if Path in accepted else None
        return path if path is not None and (str not in accepted or (self.rest and path.is_file())) else self.rest


def external_target(target: str) -> ExternalTarget | None:
    """Return the target of an extension that ``target`` names; None if no extension matches.

    Raises:
        TargetError: the extension is not installed or cannot be loaded.
    """
    found = _found(target)
    return None if found is None or found.kind.load is None else found


def runner_of(target: str) -> Callable[[RunRequest], int | str] | None:
    """Return the function with which ``mcpenv run`` serves a target of an extension; None if it loads the target.

    Raises:
        TargetError: as `external_target`.
    """
    found = _found(target)
    return None if found is None else found.kind.run


def folder_kind(name: str) -> FolderKind:
    """Return the kind of the folders with a file of that name.

    Raises:
        TargetError: it cannot be loaded.
    """
    kind = _loaded(name, name)
    if not isinstance(kind, FolderKind):
        raise TargetError(name, f"the entry point is a {type(kind).__name__}, not a mcpenv.targets.external.FolderKind")
    return kind


def folder_kinds() -> Iterator[FolderKind]:
    """Yield the kinds of folders that can be loaded. The others are logged."""
    for name in folder_formats():
        try:
            yield folder_kind(name)
        except TargetError as error:
            logger.warning("%s", error)


def _found(target: str) -> ExternalTarget | None:
    name, colon, rest = target.partition(":")
    entry = entry_of(name) if colon else None
    if entry is not None:
        return _as_target(target, f"{name}:", rest, name, entry.value)
    if colon and name in DISTRIBUTIONS:
        raise TargetError(
            target,
            f"targets that begin with {name}: need another package: pip install CLONE/clients/{name} "
            f"(for a module of that name, write ./{name}.py:CLASS)",
        )
    suffix = Path(target).suffix
    entry = entry_of(suffix) if suffix else None
    if entry is None or not Path(target).expanduser().is_file():
        return None
    return _as_target(target, "", target, suffix, entry.value)


def _as_target(target: str, prefix: str, rest: str, name: str, source: str) -> ExternalTarget:
    kind = _loaded(target, name)
    return ExternalTarget(target, prefix, rest, kind if isinstance(kind, TargetKind) else TargetKind(load=kind), source)


def _loaded(target: str, name: str) -> Any:
    entry = entry_of(name)
    assert entry is not None
    try:
        return entry.load()
    except Exception as error:  # code of another distribution may raise anything
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if missing and missing.partition(".")[0] != entry.module.partition(".")[0]:
            raise TargetError(target, f"needs the package {missing}; run: pip install {missing}") from error
        raise TargetError(target, f"{entry.value} cannot be loaded: {type(error).__name__}: {error}") from error


def _argument_types(load: Callable[..., Any] | None) -> set[Any]:
    """Return the types of the function's first parameter."""
    if load is None:
        return set()
    hints = typing.get_type_hints(load)
    first = hints.get(next(iter(inspect.signature(load).parameters), ""), str)
    return {first, *typing.get_args(first)}
