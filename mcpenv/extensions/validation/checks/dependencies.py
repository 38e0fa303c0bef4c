"""Compare the imports of an environment's code with its project's dependencies, and find versions left open."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from mcpenv.extensions.shipping.folder_files import shipped_files
from mcpenv.extensions.shipping.image.constraints import installed

PINNING = ("constraints.txt", "uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "requirements.lock")
"""Files that pin versions."""


def declared_in(folder: Path) -> dict[str, Requirement] | None:
    """Return the dependencies of a folder's project by name; None if it declares none in a file.

    Raises:
        ValueError: a file cannot be read, or a requirement cannot be parsed.
    """
    project, listed = folder / "pyproject.toml", folder / "requirements.txt"
    lines: list[str] = []
    if project.is_file():
        try:
            lines += tomllib.loads(project.read_text(encoding="utf-8")).get("project", {}).get("dependencies", [])
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"pyproject.toml: {error}") from error
    elif listed.is_file():
        lines += [
            bare
            for line in listed.read_text(encoding="utf-8").splitlines()
            if (bare := line.partition(" #")[0].strip()) and not bare.startswith(("#", "-"))
        ]
    else:
        return None
    try:
        requirements = [Requirement(line) for line in lines]
    except InvalidRequirement as error:
        raise ValueError(f"{project.name if project.is_file() else listed.name}: {error}") from error
    return {canonicalize_name(each.name): each for each in requirements}


def open_ended(folder: Path, declared: dict[str, Requirement]) -> list[str]:
    """Return the names of dependencies without any bound on their version, and not in a file that pins versions."""
    texts = [(folder / name).read_text(encoding="utf-8") for name in PINNING if (folder / name).is_file()]
    named = {canonicalize_name(word) for text in texts for word in re.findall(r"[A-Za-z0-9][\w.-]*", text)}
    loose = [each for each in declared.values() if not each.specifier and each.url is None]
    return [each.name for each in loose if canonicalize_name(each.name) not in named]


def undeclared_in(folder: Path, declared: dict[str, Requirement]) -> Iterator[tuple[str, str]]:
    """Yield place and name of each import of a distribution that neither the project nor its dependencies require.

    Tests are not searched. Modules that are not installed here and not part of the folder count as undeclared.
    """
    provided = importlib.metadata.packages_distributions()
    required = installed("mcpenv", *declared)
    allowed = {*declared, *(canonicalize_name(each.name) for each in required)}
    own = _own_modules(folder)
    seen: set[str] = set()
    for file in shipped_files(folder):
        relative = file.relative_to(folder)
        if file.suffix != ".py" or relative.parts[0] in ("tests", "test") or file.name.startswith("test_"):
            continue
        for line, module in _imports(file):
            if module in seen or module in sys.stdlib_module_names or module in own:
                continue
            distributions = {canonicalize_name(name) for name in provided.get(module, [module])}
            if distributions.isdisjoint(allowed):
                seen.add(module)
                yield f"{relative.as_posix()}:{line}", module


def _imports(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and top-level module of each absolute import that runs when the module is imported."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):  # loading the environment reports it
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]


def _own_modules(folder: Path) -> set[str]:
    """Return the modules that the folder, a package in it, or the folder as a package provides."""
    own = {folder.name}
    for file in shipped_files(folder):
        if file.suffix == ".py":
            own.add(file.stem if file.name != "__init__.py" else file.parent.name)
            own.update(file.relative_to(folder).parts[:-1])
    return own
