"""The facts that determine the image of an environment."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from mcpenv.errors import TargetError
from mcpenv.targets.manifest import MANIFEST, Manifest
from mcpenv.targets.manifest_file import manifest_in

ENVIRONMENT_FILE = "environment.py"
REQUIREMENTS = "requirements.txt"


@dataclass(frozen=True)
class ImagePlan:
    """The facts that determine an image.

    Attributes:
        folder: the folder of the environment, which is the build's context.
        name: the environment's name, for tags.
        served: the TARGET that the image serves: ``/app``, ``/app:Class`` or ``/app/file.py:Class``.
        copied: files and folders to copy to the image; empty: all files that are not ignored.
        distribution: the name of the distribution that pyproject.toml describes; None if there is none.
        has_requirements: True if there is a requirements.txt.
        secrets: the environment variables that must be set when it runs.
        needs: the distributions that the environment depends on, with their extras.
        is_dynamic: True if pyproject.toml leaves the dependencies to its build backend.
        version: the environment's version; empty if it has none.
        description: one line on the environment; may be empty.
    """

    folder: Path
    name: str
    served: str = "/app"
    copied: tuple[str, ...] = ()
    distribution: str | None = None
    has_requirements: bool = False
    secrets: tuple[str, ...] = ()
    needs: tuple[str, ...] = ("mcpenv",)
    is_dynamic: bool = False
    version: str = ""
    description: str = ""


def plan_image(target: str) -> ImagePlan:
    """Return the plan for a TARGET: a folder with mcpenv.yaml or environment.py, a .py file, or either with :Class.

    Raises:
        TargetError: the target is not such a folder or file.
    """
    location, colon, attribute = target.rpartition(":")
    if not (colon and location and attribute.isidentifier()):
        location, attribute = target, ""
    path = Path(location).expanduser().absolute()
    folder = path if path.is_dir() else path.parent
    manifest = manifest_in(folder) if path.is_dir() else None
    suffix = f":{attribute}" if attribute else ""
    if manifest is not None:
        return _plan(folder, manifest.name, manifest, f"/app{suffix}")
    file = path / ENVIRONMENT_FILE if path.is_dir() else path
    if file.suffix != ".py" or not file.is_file():
        raise TargetError(
            target,
            f"an image is made of a folder with {MANIFEST} or {ENVIRONMENT_FILE}, or of a .py file; "
            "mcpenv init makes a folder",
        )
    if (folder / "__init__.py").is_file():
        raise TargetError(
            target,
            f"the folder is a package, and what it imports may be beside it; add a {MANIFEST} to the folder above it",
        )
    name = folder.name if file.name == ENVIRONMENT_FILE else file.stem
    below = "" if path.is_dir() else f"/{file.name}"
    return _plan(folder, name, None, f"/app{below}{suffix}")


def _plan(folder: Path, name: str, manifest: Manifest | None, served: str) -> ImagePlan:
    project = _project(folder)
    copied: list[str] = []
    top = None if manifest is None else manifest.entry_file.replace("\\", "/").partition("/")[0]
    if manifest is not None and top is not None and (folder / top).is_dir():
        copied = [MANIFEST, *(["README.md"] if (folder / "README.md").is_file() else []), top]
        tasks = None if manifest.tasks is None else manifest.tasks.replace("\\", "/").partition("/")[0]
        copied += [tasks] if tasks not in (None, top) else []
    return ImagePlan(
        folder=folder,
        name=name,
        served=served,
        copied=tuple(copied),
        distribution=project.get("name"),
        has_requirements=(folder / REQUIREMENTS).is_file(),
        secrets=() if manifest is None else tuple(manifest.secrets),
        needs=_needs(folder, project),
        is_dynamic="dependencies" in project.get("dynamic", ()),
        version=(manifest and manifest.version) or str(project.get("version", "")),
        description=" ".join(((manifest and manifest.description) or str(project.get("description", ""))).split()),
    )


def _project(folder: Path) -> dict[str, Any]:
    file = folder / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TargetError(str(file), f"cannot be read: {error}") from error
    return project if isinstance(project, dict) and isinstance(project.get("name"), str) else {}


def _needs(folder: Path, project: dict[str, Any]) -> tuple[str, ...]:
    lines = list(project.get("dependencies", []))
    if (folder / REQUIREMENTS).is_file():
        lines += (folder / REQUIREMENTS).read_text(encoding="utf-8").splitlines()
    names = ["mcpenv"]
    for line in lines:
        try:
            needed = Requirement(str(line).partition("#")[0].strip())
        except InvalidRequirement:
            continue  # an option or a URL, which is already pinned
        extras = f"[{','.join(sorted(needed.extras))}]" if needed.extras else ""
        names.append(f"{needed.name}{extras}")
    return tuple(dict.fromkeys(names))
