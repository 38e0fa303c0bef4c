"""The architecture page: the packages that it lists, and the private names of dependencies that the code uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import mcpenv
import mcpenv_client

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCES = [Path(str(package.__file__)).parent for package in (mcpenv, mcpenv_client)]
MOST_AT_THE_TOP = 12
"""Entries of ``mcpenv/`` that are no packages."""

OPENENV_CHILD = "integrations/openenv/child.py"
"""Runs beside OpenEnv, which is no dependency, in a process of its own."""

DOCUMENTED = frozenset({"_exit", "_getframe", "_current_frames"})
"""Names of ``os`` and ``sys`` that Python documents."""


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for folder in SOURCES:
        for file in sorted(folder.rglob("*.py")):
            if not file.as_posix().endswith(OPENENV_CHILD):
                yield file, ast.parse(file.read_text(encoding="utf-8"))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names(tree: ast.Module) -> Iterator[str]:
    """Return every private name that the module itself defines: functions, classes, attributes, slots, parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from [node.attr] if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") else []


def foreign_names(tree: ast.Module) -> Iterator[str]:
    """Return every private name that the module reads: attributes, imports, and names given to ``getattr``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and not (node.level or str(node.module).startswith("mcpenv")):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            yield from [str(node.args[1].value)] if isinstance(node.args[1], ast.Constant) else []


def test_the_private_names_of_dependencies_are_those_of_the_page() -> None:
    trees = list(modules())
    own = {name for _, tree in trees for name in own_names(tree)}
    used = {name for _, tree in trees for name in foreign_names(tree) if is_private(name)}
    table = PAGE.partition("## Private names")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert used - own - DOCUMENTED <= listed <= used
    assert len(listed) <= 8
    tests = set(re.findall(r"`(tests/\S+\.py)`", table))
    assert tests and all((ROOT / test).is_file() for test in tests)


def test_the_page_lists_every_package_and_file_at_the_top() -> None:
    top = [path for path in SOURCES[0].iterdir() if not path.name.startswith((".", "__pycache__"))]
    packages = {path.name for path in top if path.is_dir()} - {"envs"}
    assert all(f"`{name}/`" in PAGE for name in packages)
    files = [path.name for path in top if path.is_file()]
    assert len(files) <= MOST_AT_THE_TOP
    named = PAGE.partition("## The levels")[0]
    assert all(name in named for name in files if name not in ("__init__.py", "__main__.py", "py.typed"))


def test_every_file_that_the_walks_name_is_there() -> None:
    walks = PAGE.partition("## Three walks")[2].partition("## Private names")[0]
    files = re.findall(r"^\d+\. `([\w/]+\.py)`", walks, re.MULTILINE)
    assert len(files) > 15
    assert all(
        any((folder.parent / file).is_file() or (folder / file).is_file() for folder in SOURCES) for file in files
    )
