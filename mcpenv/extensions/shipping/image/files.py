"""The files of a folder that an image would contain, and files that it must not contain."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from packaging.utils import canonicalize_name

from mcpenv.errors import ConfigurationError
from mcpenv.extensions.shipping.secret_files import why_secret

from .constraints import CONSTRAINTS
from .dockerfile import DOCKERFILE, SOURCE, WHEELS
from .dockerignore import DOCKERIGNORE, DockerIgnore, dockerignore
from .generated import is_changed
from .local_wheels import name_of
from .plan import ImagePlan

_NOT_COPIED = (DOCKERFILE, DOCKERIGNORE)
_TIME = 315_532_800
"""The time of all files of a build, 1980-01-01: equal files make equal layers, whenever they are copied."""


@dataclass(frozen=True)
class FileOf:
    """A file of an image.

    Attributes:
        path: relative to the environment's folder, with ``/``.
        size: in bytes.
    """

    path: str
    size: int


@dataclass
class ImageFiles:
    """The files of a folder, by their use.

    Attributes:
        image: the files in the image.
        build: further files that only the build sees.
        ignored: files and folders that ``.dockerignore`` names.
        refused: files that must not be in an image and are not ignored, each with the reason.
    """

    image: list[FileOf] = field(default_factory=list)
    build: list[FileOf] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The bytes of the image's files."""
        return sum(file.size for file in self.image)

    def refuse(self) -> None:
        """Raise if a file holds secrets.

        Raises:
            ConfigurationError: a file holds secrets; the text names it.
        """
        if self.refused:
            listed = ", ".join(f"{path} ({reason})" for path, reason in self.refused.items())
            raise ConfigurationError(f"not built, because these would be in it: {listed}; add them to {DOCKERIGNORE}")


def files_of(plan: ImagePlan, ignored: str | None = None) -> ImageFiles:
    """Return the files of an environment's folder.

    Args:
        plan: the image.
        ignored: the text of a ``.dockerignore``. Default: the folder's own, or else the usual one.
    """
    if ignored is None:
        own = plan.folder / DOCKERIGNORE
        ignored = own.read_text(encoding="utf-8") if own.is_file() else dockerignore()
    patterns, found = DockerIgnore.read(ignored), ImageFiles()
    for path in _walk(plan.folder, "", patterns, found):
        file = plan.folder / path
        reason = _leads_out(plan.folder, file) or why_secret(file, path)
        if reason is not None:
            found.refused[path] = reason
            continue
        entry = FileOf(path, file.stat().st_size)
        top = path.partition("/")[0]
        is_copied = top in plan.copied if plan.copied else top not in (*_NOT_COPIED, WHEELS)
        (found.image if is_copied else found.build).append(entry)
    return found


def stage(plan: ImagePlan, files: ImageFiles, wheels: Sequence[Path], place: Path) -> None:
    """Copy the build's input into an empty folder.

    Args:
        plan: the image.
        files: its files.
        wheels: further wheels.
        place: the folder.

    Raises:
        ConfigurationError: a wheel cannot be read.
    """
    for file in (*files.image, *files.build):
        copied = place / file.path
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(plan.folder / file.path, copied)
    (place / WHEELS).mkdir(exist_ok=True)
    (place / WHEELS / ".gitkeep").touch()  # the Dockerfile copies the folder, and hubs drop empty ones
    for wheel in wheels:
        if wheel.suffix != ".whl" or not wheel.is_file():
            raise ConfigurationError(f"--wheel {wheel}: there is no such wheel")
        shutil.copy(wheel, place / WHEELS)
    dockerfile = place / DOCKERFILE
    if not (dockerfile.is_file() and is_changed(dockerfile.read_text(encoding="utf-8"))):
        _pin_wheels(place)
    for each in (place, *place.rglob("*")):
        os.utime(each, (_TIME, _TIME))


def _pin_wheels(place: Path) -> None:
    """Pin the distributions of wheels to these files, so that a package index cannot serve others of the same name."""
    pins = place / CONSTRAINTS
    lines = pins.read_text(encoding="utf-8").splitlines() if pins.is_file() else []
    for wheel in sorted((place / WHEELS).glob("*.whl")):
        name = name_of(wheel)
        lines = [line for line in lines if canonicalize_name(line.partition("==")[0].strip()) != name]
        lines.append(f"{name} @ file://{SOURCE}/{WHEELS}/{quote(wheel.name)}")
    pins.write_text("\n".join([*lines, ""]), encoding="utf-8")


def _leads_out(folder: Path, file: Path) -> str | None:
    """Return why a link must not be followed; None if it is not a link, or leads to a file of the folder."""
    if not file.is_symlink():
        return None
    if not file.is_file():
        return "a link to a folder or to nothing"
    return None if file.resolve().is_relative_to(folder.resolve()) else "a link out of the folder"


def _walk(folder: Path, below: str, patterns: DockerIgnore, found: ImageFiles) -> Iterator[str]:
    keeps = any(not ignores for _, ignores in patterns.patterns)
    for entry in sorted(os.scandir(folder / below), key=lambda entry: entry.name):
        path = f"{below}{entry.name}"
        ignored = patterns.ignores(path)
        if entry.is_dir(follow_symlinks=False):
            if ignored and not keeps:
                found.ignored.append(f"{path}/")
            else:
                yield from _walk(folder, f"{path}/", patterns, found)
        elif ignored:
            found.ignored.append(path)
        elif entry.is_file() or entry.is_symlink():
            yield path
