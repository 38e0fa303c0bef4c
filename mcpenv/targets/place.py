"""The place of the code that TARGET names, found without loading it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from itertools import chain
from pathlib import Path

from mcpenv.entry_points import entries_of
from mcpenv.errors import TargetError, meant

from .manifest import MANIFEST, Manifest
from .manifest_file import manifest_in, place_in

ENTRY_POINTS = "mcpenv.environments"
"""The entry-point group under which installed packages register environments."""

EXTERNAL = "mcpenv.targets"
"""The entry-point group under which extensions register targets: see `mcpenv.targets.external`."""

MODULE_FILE = "environment.py"
"""The file that a folder must have to be an environment."""

_MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a target's module.

    Attributes:
        target: as the user wrote it.
        attribute: the name after the colon, or None.
        module: the name to import.
        file: the module's file, if the target names one.
        root: the folder to put on ``sys.path``.
        name: `Target.name`.
        spec: `Target.spec`; None if it is unknown before loading.
        folder: the folder of the manifest, if there is one.
        manifest: the manifest.
        format: the file in ``root`` by which an extension recognises the folder; None for Python code.
    """

    target: str
    attribute: str | None
    module: str
    file: Path | None
    root: Path | None
    name: str
    spec: str | None
    folder: Path | None = None
    manifest: Manifest | None = None
    format: str | None = None


def is_url(target: str) -> bool:
    """Return True if ``target`` is the URL of a server, not an environment's code."""
    return target.startswith(("http://", "https://"))


def find_place(target: str) -> Place:
    """Return the place of a target's code.

    Raises:
        TargetError: there is no such file, folder, or installed environment; or its manifest cannot be used.
    """
    location, attribute = split_target(target)
    described = folder_with_manifest(location)
    if described is not None:
        return _of_manifest(target, described, attribute)
    if not location:
        raise TargetError(repr(target), "names no environment; write '.' for the current folder")
    if is_url(target):
        raise TargetError(
            target,
            "is the URL of a server, but this command needs the environment itself: "
            "a folder, a file.py, a module:Class or the name of an installed environment",
        )
    try:
        path = Path(location).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
        has_module = is_folder and (path / MODULE_FILE).is_file()
        formats = () if has_module or not is_folder else folder_formats()
        form = next((name for name in formats if (path / name).is_file()), None)
    except (OSError, RuntimeError) as error:  # a name too long, an unknown ~user
        raise TargetError(target, getattr(error, "strerror", None) or str(error)) from error
    if has_module:
        return _of_file(target, absolute(path) / MODULE_FILE, absolute(path), attribute)
    if form is not None:
        folder = absolute(path)
        spec = str(folder) if attribute is None else f"{folder}:{attribute}"
        return Place(target, attribute, form, folder / form, folder, slug(folder.name), spec, format=form)
    if path.suffix == ".py" and is_file:
        return _of_file(target, absolute(path), absolute(path), attribute)
    if attribute is None:
        entry = installed_environments().get(location)
        if entry is not None:
            return Place(target, entry.attr, entry.module, None, None, slug(entry.name), f"{entry.module}:{entry.attr}")
    if is_folder:
        others = sorted(file.name for file in path.glob("*.py") if file.name != "__init__.py")
        hint = f"; name one of its files: {', '.join(others)}" if others else ""
        raise TargetError(target, f"the folder has no {MODULE_FILE}{hint}")
    if is_file:
        raise TargetError(target, "is not a Python file")
    if path.suffix == ".py" or os.sep in location or "/" in location:
        raise TargetError(target, f"there is no such file or folder{meant_prefix(target) or _meant(path)}")
    if attribute is not None and all(part.isidentifier() for part in location.split(".")):
        return Place(target, attribute, location, None, None, slug(_kebab(attribute)), None)
    installed = ", ".join(sorted(installed_environments())) or "none"
    begins = f", and begins with none of {' '.join(prefixes())}" if ":" in target else ""
    raise TargetError(
        target,
        f"is not a folder with {MODULE_FILE}, a .py file, a module:Class or an installed environment "
        f"(installed: {installed}){begins}{meant_prefix(target) or _meant(path, installed_environments())}",
    )


def folder_with_manifest(location: str) -> Path | None:
    """Return the folder at a location if it has a manifest."""
    try:
        folder = Path(location).expanduser()
        return absolute(folder) if location and (folder / MANIFEST).is_file() else None
    except (OSError, RuntimeError):  # no path at all: a name too long, an unknown ~user
        return None


def _of_manifest(target: str, folder: Path, attribute: str | None) -> Place:
    manifest = manifest_in(folder)
    assert manifest is not None
    file = folder / manifest.entry_file
    if not file.is_file():
        at = place_in(folder / MANIFEST, "entry")
        raise TargetError(at, f"entry: there is no file {manifest.entry_file} in its folder")
    place = _of_file(target, file, folder, attribute or manifest.entry_attribute)
    spec = str(folder) if attribute is None else f"{folder}:{attribute}"
    return replace(place, name=slug(manifest.name), spec=spec, folder=folder, manifest=manifest)


def split_target(target: str) -> tuple[str, str | None]:
    """Return the location and the name after the colon, or None."""
    location, colon, name = target.rpartition(":")
    # Any other colon is part of a path: C:\\envs.
    return (location, name) if colon and location and name.isidentifier() else (target, None)


def _of_file(target: str, file: Path, named: Path, attribute: str | None) -> Place:
    module, root = _import_name(file)
    named_by = file.parent.name if file.name == MODULE_FILE else file.stem
    name = named_by if attribute is None else _kebab(attribute)
    spec = str(named) if attribute is None else f"{named}:{attribute}"
    return Place(target, attribute, module, file, root, slug(name), spec)


def _import_name(file: Path) -> tuple[str, Path]:
    """Return the dotted name of a file, and the folder of its topmost package or, without a package, of the file."""
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder.name and "." not in folder.name:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts) or file.stem, folder


def installed_environments() -> Mapping[str, EntryPoint]:
    """Return the environments that installed packages register, by the name that is their TARGET."""
    return entries_of(ENTRY_POINTS)


def entry_of(name: str) -> EntryPoint | None:
    """Return the entry point of an extension's targets; None if no distribution has it."""
    return entries_of(EXTERNAL).get(name)


def folder_formats() -> list[str]:
    """Return the names of files by which extensions recognise a folder."""
    return sorted(name for name in entries_of(EXTERNAL) if "." in name[1:])


def prefixes() -> list[str]:
    """Return the prefixes of extensions' targets, each with its colon."""
    return sorted(f"{name}:" for name in entries_of(EXTERNAL) if "." not in name)


def meant_prefix(target: str) -> str:
    """Return the end of a message about a target that begins with an unknown prefix, as `meant` does."""
    prefix, colon, rest = target.partition(":")
    return meant(prefix + colon, prefixes(), rest) if colon else ""


def absolute(path: Path) -> Path:
    """Return a path from the root, with its links as they are."""
    # Not resolve(): the siblings of a link differ from the siblings of the file that it points to.
    return Path(os.path.abspath(path))


def _kebab(name: str) -> str:
    """Convert ``MCPEcho`` to ``mcp-echo``; keep a name in snake case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def slug(name: str) -> str:
    """Return a name of letters, digits, ``-`` and ``_``."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:_MAX_NAME] or "environment"


def _meant(path: Path, names: Iterable[str] = ()) -> str:
    return meant(str(path), chain(names, (str(path.with_name(near.name)) for near in path.parent.glob("*"))))


def called(place: Place) -> str:
    """Return the name of the module in messages that begin with the target."""
    if place.file is None:
        return f"module {place.module}"
    return "the file" if place.file.name == Path(split_target(place.target)[0]).name else place.file.name
