"""Make the folder of a new environment from a template.

A template is a real environment in ``templates/``: it runs, and is linted, typed and tested as it stands. The files in
``templates/common`` are added to each. Copying replaces ``my_env`` and ``MyEnv`` in the names and texts of all files,
and the description if another is given.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mcpenv.errors import ConfigurationError, meant
from mcpenv.targets.manifest import MANIFEST, SCHEMA_FILE, SCHEMA_PATH
from mcpenv.targets.manifest_file import read_manifest
from mcpenv.targets.place import installed_environments
from mcpenv.tools.names import RESERVED_NAMES

from .image.constraints import CONSTRAINTS, constraints
from .image.dockerfile import DOCKERFILE, dockerfile
from .image.dockerignore import DOCKERIGNORE, dockerignore
from .image.plan import plan_image

TEMPLATES = {
    "minimal": "two tools, a reward for each step, and an end",
    "tasks": "tasks from a file, each with an oracle, scored at the end",
    "database": "a world in SQLite, tasks checked by what changed in its tables",
    "mcp-server": "an MCP server that is a process, proxied for each episode, and scored",
    "http-api": "tools that call an HTTP API, with its token from a secret",
}
"""The templates, each with a one-line description."""

PACKAGE, CLASS = "my_env", "MyEnv"
"""The names in a template that are replaced."""

MAX_DESCRIPTION = 100
"""Maximum characters of a description: it is the first line of a docstring."""

_FOLDER = Path(__file__).parent / "templates"
_LEFT_BEHIND = shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info")
_RESERVED = RESERVED_NAMES | {"tests", "wheels", "environment"}


@dataclass(frozen=True, slots=True)
class Scaffold:
    """A folder that was made.

    Attributes:
        name: the name of the environment and of its package.
        class_name: the name of its class.
        template: the template.
        folder: the folder.
        files: the paths of its files in the folder.
        secrets: the environment variables that must be set before it starts.
    """

    name: str
    class_name: str
    template: str
    folder: Path
    files: tuple[str, ...]
    secrets: tuple[str, ...]


def make_scaffold(name: str, template: str, folder: Path, description: str | None = None) -> Scaffold:
    """Make the folder of a new environment, or nothing if that fails.

    Args:
        name: the name of the environment and of its package.
        template: one of `TEMPLATES`.
        folder: the folder to make; an existing one must be empty.
        description: a one-line description of the environment; by default the template's own.

    Raises:
        ConfigurationError: a name, the template, the description or the folder cannot be used.
    """
    check_name(name)
    if template not in TEMPLATES:
        raise ConfigurationError(
            f"there is no template {template!r}; there are {', '.join(TEMPLATES)}{meant(template, TEMPLATES)}"
        )
    if description is not None:
        check_description(description)
    check_folder(folder)
    check_unused(name)
    source = _FOLDER / template
    manifest = read_manifest(source / MANIFEST)
    replaced = {PACKAGE: name, CLASS: class_name_of(name)}
    if description is not None and manifest.description is not None:
        replaced[manifest.description] = description
    try:
        with ExitStack() as undo:
            # After any interruption, Ctrl-C included, the disk is as before.
            undo.callback(_remove, folder, _first_missing(folder))
            folder.mkdir(parents=True, exist_ok=True)
            for each in (_FOLDER / "common", source):
                shutil.copytree(each, folder, ignore=_LEFT_BEHIND, dirs_exist_ok=True)
            _replace_in(folder, replaced)
            shutil.copyfile(SCHEMA_PATH, folder / SCHEMA_FILE)
            (folder / CONSTRAINTS).write_text(constraints("mcpenv"), encoding="utf-8")
            (folder / DOCKERFILE).write_text(dockerfile(plan_image(str(folder))), encoding="utf-8")
            (folder / DOCKERIGNORE).write_text(dockerignore(), encoding="utf-8")
            undo.pop_all()
    except OSError as error:
        raise ConfigurationError(f"{error.filename or folder}: {error.strerror or error}") from error
    files = tuple(sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()))
    return Scaffold(name, class_name_of(name), template, folder, files, tuple(manifest.secrets))


def class_name_of(name: str) -> str:
    """Return the name of the class for a package: ``WeatherEnv`` for ``weather`` and for ``weather_env``."""
    camel = "".join(part.capitalize() for part in name.split("_"))
    return camel if camel.endswith("Env") else f"{camel}Env"


def check_name(name: str) -> None:
    """Raise if a package cannot have a name.

    Raises:
        ConfigurationError: it is not an identifier, or is reserved.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or keyword.issoftkeyword(name):
        near = re.sub(r"\W+|^(?=\d)", "_", name.lower(), flags=re.ASCII).strip("_")
        hint = f", such as {near}" if near != name and re.fullmatch(r"[a-z][a-z0-9_]*", near) else ""
        raise ConfigurationError(
            f"{name!r} cannot be the name of a package; use small letters, digits and _, beginning with a letter{hint}"
        )
    if len(name) > 50:
        raise ConfigurationError(f"the name has {len(name)} characters; use 50 or fewer")
    if name in _RESERVED:
        raise ConfigurationError(f"{name!r} is reserved; choose another name, such as {name}_env")
    if name in sys.stdlib_module_names:
        raise ConfigurationError(f"{name!r} is a module of Python, which a package of that name would hide")


def check_unused(name: str) -> None:
    """Raise if a package of that name would be confused with an installed one.

    Raises:
        ConfigurationError: it is the name of an installed module or environment.
    """
    registered = installed_environments().get(name)
    # A package's own registration is no conflict: the check of modules below detects a different package.
    if registered is not None and registered.module.partition(".")[0] != name:
        raise ConfigurationError(
            f"{name!r} is the name of an installed environment ({registered.value}): where both are installed, `mcpenv "
            f"run {name}` could start either of them. Choose another name, such as my_{name}"
        )
    if _is_installed(name):
        raise ConfigurationError(
            f"{name!r} is an installed module, which a package of that name would hide; choose another name, or run "
            "pip uninstall for the package that has it"
        )


def check_description(description: str) -> None:
    """Raise if a text cannot be a description.

    Raises:
        ConfigurationError: it is empty, too long, longer than a line, or has characters that end a string.
    """
    if not description.strip() or len(description) > MAX_DESCRIPTION:
        raise ConfigurationError(f"the description must have from 1 to {MAX_DESCRIPTION} characters")
    if not description.isprintable() or set(description) & {'"', "\\"}:
        raise ConfigurationError('the description must be one line without " and \\')


def check_folder(folder: Path) -> None:
    """Raise if a folder cannot be made or filled.

    Raises:
        ConfigurationError: it is a file, or not empty.
    """
    if folder.is_dir():
        if any(folder.iterdir()):
            raise ConfigurationError(f"{folder} is not empty; choose another folder with --into")
    elif folder.exists():
        raise ConfigurationError(f"{folder} is a file; choose a folder with --into")


def _is_installed(name: str) -> bool:
    """Return True if a top-level module of that name is installed. The working directory is not searched."""
    found = importlib.util.find_spec(name)
    if found is None:
        return False
    places = found.submodule_search_locations or [found.origin or ""]
    here = Path.cwd()
    return any(not Path(place).is_absolute() or Path(place).parent != here for place in places)


def _replace_in(folder: Path, replaced: dict[str, str]) -> None:
    """Replace texts in all files, then in the names of files and folders, innermost first."""
    for path in sorted(folder.rglob("*"), key=lambda path: -len(path.parts)):
        if path.is_file():
            path.write_text(_with(path.read_text(encoding="utf-8"), replaced), encoding="utf-8")
        if (renamed := _with(path.name, replaced)) != path.name:
            path.rename(path.with_name(renamed))


def _with(text: str, replaced: dict[str, str]) -> str:
    return re.sub("|".join(map(re.escape, replaced)), lambda match: replaced[match[0]], text)


def _first_missing(folder: Path) -> Path | None:
    """Return the outermost folder that does not exist; None if all exist."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    return missing[-1] if missing else None


def _remove(folder: Path, made: Path | None) -> None:
    """Remove a folder that was created, or empty one that existed."""
    for path in list(folder.glob("*")) if made is None else [made]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
