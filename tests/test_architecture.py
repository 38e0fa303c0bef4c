"""The architecture page: the packages that it lists, and the private names of dependencies that the code uses."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mcpenv
import mcpenv_client

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCES = [Path(str(package.__file__)).parent for package in (mcpenv, mcpenv_client)]
MOST_AT_THE_TOP = 11
"""Entries of ``mcpenv/`` that are no packages."""

OPENENV_CHILD = "extensions/openenv/child.py"
"""Runs beside OpenEnv, which is no dependency, in a process of its own."""

DOCUMENTED = frozenset({"_exit", "_getframe", "_current_frames", "_asdict", "_value_"})
"""Names of ``os``, ``sys``, named tuples and ``enum`` that Python documents."""


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


# -- imports of extensions, and modules that are too small

LISTED = set(
    re.findall(
        r"`(mcpenv\.[\w.]+)`",
        (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").partition("## Modules for extensions")[2],
    )
)
PUBLIC = {"mcpenv", "mcpenv.server", "mcpenv.extensions.contract"}
FURTHER = {
    "branching": {"server"},
    "console": {"server", "trajectories"},
    "contract": {"execution", "tasks", "tools"},
    "harbor": {"targets"},
    "hosts": {"cli"},
    "in_process": {"execution"},
    "inspection": {"server"},
    "live": {"server", "trajectories"},
    "model_proxy": {"server"},
    "mcp_proxy": {"execution", "tools", "trajectories"},
    "openenv": {"tasks", "tools"},
    "postgres_world": {"worlds"},
    "play": {"cli"},
    "durable": {"execution", "server", "trajectories"},
    "records": {"execution", "rewards", "targets", "tasks", "trajectories"},
    "sessions": {"cli"},
    "stdio": {"cli"},
    "reload": {"cli", "server", "targets"},
    "users": {"execution", "tools"},
    "validation": {"cli"},
    "wires": {"execution", "server"},
    "workers": {"server"},
}
"""The packages of the kernel of which an extension of this wheel imports modules that the page does not list."""
MOST_FURTHER = 64
"""Such imports, counted once for each extension and module. The number only falls."""

SMALL = 40
"""Lines. A module with fewer belongs to its importer, if there is only one."""
CHECKED = ("mcpenv.",)
STILL_SMALL = {"mcpenv.extensions.users.scripted_user"}


def files_by_module() -> dict[str, Path]:
    """Return every module of the two packages."""
    found: dict[str, Path] = {}
    for folder in SOURCES:
        for file in folder.rglob("*.py"):
            if "templates" not in file.parts:
                found[".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")] = file
    return found


def imports_of(module: str, file: Path, known: set[str]) -> set[str]:
    """Return the modules of the two packages that a module imports."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            base = f"{above}.{node.module}".rstrip(".") if node.level and node.module else node.module or above
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= names & known or {base}
    return found & known


MODULES = files_by_module()


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """Return the imports of each module. A worker that runs other tests does not read the modules."""
    return {module: imports_of(module, file, set(MODULES)) for module, file in MODULES.items()}


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by these names; a second one of a name is an error, though not where each runs alone."""
    names = Counter(
        file.name for file in (ROOT / "tests").rglob("*.py") if file.name not in {"__init__.py", "conftest.py"}
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_extensions_import_the_listed_modules_of_the_kernel() -> None:
    assert 30 <= len(LISTED - PUBLIC) <= 48 and set(MODULES) >= LISTED
    further = {
        (module.split(".")[2], name)
        for module, names in all_imports().items()
        if module.startswith("mcpenv.extensions.")
        for name in names - LISTED - PUBLIC
        if name.startswith("mcpenv.") and not name.startswith("mcpenv.extensions")
    }
    assert sorted(pair for pair in further if pair[1].split(".")[1] not in FURTHER.get(pair[0], ())) == []
    assert len(further) <= MOST_FURTHER


def test_a_small_module_has_several_importers() -> None:
    importers: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, names in all_imports().items():
        for name in names:
            importers[name].add(module)
    small = {
        module
        for module, file in MODULES.items()
        if module.startswith(CHECKED) and file.name != "__init__.py" and len(importers[module]) == 1
        if len(file.read_text(encoding="utf-8").splitlines()) < SMALL
    }
    assert small == STILL_SMALL
