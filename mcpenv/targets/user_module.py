"""The module of a target: importing it, with the folder of its siblings on ``sys.path``."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Iterable
from inspect import getattr_static
from pathlib import Path
from types import ModuleType

from mcpenv.errors import TARGET_FOLDERS, TargetError, describe

from .place import Place, meant_prefix

_siblings: dict[str, Path] = {}
"""The folders of modules that environments import from beside their files, by the name of the module.

``sys.modules`` has one module of a name.
"""


def load_module(place: Place) -> ModuleType:
    """Import the module.

    Raises:
        TargetError: it does not exist, or its code raised (``__cause__``).
    """
    if place.file is not None and "." not in place.module and place.file.name != "__init__.py":
        return _load_file(place, place.file)
    path, before = sys.path[:], set(sys.modules)
    if place.file is None:
        put_first(Path.cwd())
    else:
        assert place.root is not None
        _refuse_taken_package(place)
        put_first(place.root)
    folder = place.file.parent if place.file is not None else _folder_of_module(place.module)
    if folder is not None:
        TARGET_FOLDERS.add(folder)
    try:
        module = importlib.import_module(place.module)
    except (Exception, SystemExit) as error:  # user code may raise anything
        if isinstance(error, ModuleNotFoundError) and place.file is None and is_part(error.name, place.module):
            raise TargetError(place.target, f"there is no module {error.name!r}{meant_prefix(place.target)}") from error
        raise _not_loaded(place, error, folder) from error
    if place.root is not None:
        _claim_loaded(place, place.root, path, before)
    return module


def _load_file(place: Place, file: Path) -> ModuleType:
    name = place.module
    loaded = sys.modules.get(name)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(file):
            return loaded
        name = f"{name}_{zlib.crc32(os.fsencode(file)):08x}"
        if name in sys.modules:
            return sys.modules[name]
    _claim_siblings(place, file)
    TARGET_FOLDERS.add(file.parent)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path, before = sys.path[:], set(sys.modules)
    put_first(file.parent)
    sys.modules[name] = module  # dataclasses and pydantic look up their module while it is executed
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # user code may raise anything
        del sys.modules[name]
        raise _not_loaded(place, error, file.parent) from error
    _claim_loaded(place, file.parent, path, before)
    return module


def _claim_siblings(place: Place, file: Path) -> None:
    """Keep the names of the modules beside a file for its environment.

    Raises:
        TargetError: another environment of this process imports another module of that name, or one is loaded.
    """
    imported = _imported_siblings(file)
    for name in sorted(imported):
        _refuse_other(place, name, file.parent)
        loaded = sys.modules.get(name)
        if loaded is not None and not _is_below(loaded, file.parent):
            raise TargetError(
                place.target,
                f"its module {name!r} has the name of a module that is loaded in this process "
                f"({getattr(loaded, '__file__', None) or 'of Python itself'}). Rename it, or add an __init__.py to the "
                f"folder and import with a dot (from . import {name})",
            )
    _siblings.update(dict.fromkeys(imported, file.parent))


def _claim_loaded(place: Place, folder: Path, path: list[str], before: set[str]) -> None:
    """Keep the names of the modules that an environment has loaded from below its folder, by any import.

    Args:
        path, before: ``sys.path`` and the names in ``sys.modules`` before it, to which a refusal returns.

    Raises:
        TargetError: it can import a module from there whose name is that of a loaded one of another environment.
    """
    own = {name for name, module in list(sys.modules.items()) if _is_below(module, folder)}
    paths = [each for each in map(Path, sys.path) if each.is_relative_to(folder)]
    try:
        for name in sorted(_siblings.keys() & sys.modules.keys() - own - {place.module}):
            if any(_has_module(each, name) for each in paths):
                _refuse_other(place, name, folder)
    except TargetError:
        sys.path[:] = path
        for name in own - before:
            del sys.modules[name]
        raise
    _siblings.update(dict.fromkeys(own - before - {place.module}, folder))


def _refuse_other(place: Place, name: str, folder: Path) -> None:
    other = _siblings.get(name, folder)
    if other != folder and str(other) in sys.path:
        raise TargetError(
            place.target,
            f"its module {name!r} has the name of a module of the environment in {other}, which is loaded in this "
            f"process. Add an __init__.py to both folders and import with a dot (from . import {name}), or load each "
            "environment in a process of its own",
        )


def _is_below(module: ModuleType, folder: Path) -> bool:
    """Return True if a module is of the files below a folder, and not of packages that are installed there."""
    # Statically, as modules may answer for any name, with anything: torch.classes has a __path__ that is no path.
    file, path = (getattr_static(module, name, None) for name in ("__file__", "__path__"))
    found = [file, *(path if isinstance(path, Iterable) else ())]
    paths = [Path(each) for each in found if isinstance(each, str)]
    return any(each.is_relative_to(folder) and "site-packages" not in each.parts for each in paths)


def _has_module(folder: Path, name: str) -> bool:
    files = (folder / f"{name}.py", folder / name / "__init__.py")
    return any(file.exists() for file in files) or any((folder / name).glob("*.py"))


def _imported_siblings(file: Path) -> set[str]:
    """Return the names of modules beside a file that it imports, itself or through others of them."""
    found: set[str] = set()
    unread = [file]
    while unread:
        try:
            tree = ast.parse(unread.pop().read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # importing it tells why
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            for name in {name.partition(".")[0] for name in names} - found:
                if _has_module(file.parent, name):
                    found.add(name)
                    unread += [file.parent / f"{name}.py", file.parent / name / "__init__.py"]
    return found


def _not_loaded(place: Place, error: BaseException, folder: Path | None) -> TargetError:
    of_arguments = isinstance(error, SystemExit) and error.code == 2  # as argparse exits
    advice = "; if it reads the command line, serve it as a process: mcp:python FILE" if of_arguments else ""
    return TargetError(place.target, f"cannot be loaded: {describe(error, folder)}{advice}")


def _refuse_taken_package(place: Place) -> None:
    assert place.root is not None
    top = place.module.partition(".")[0]
    loaded = sys.modules.get(top)
    if loaded is not None and str(place.root / top) not in map(str, getattr(loaded, "__path__", ())):
        raise TargetError(
            place.target, f"its package has the name of the module {top!r}, which mcpenv uses; rename the folder"
        )


def put_first(folder: Path) -> None:
    """Put a folder first on ``sys.path``, unless it is there."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def is_part(missing: str | None, module: str) -> bool:
    """Return True if the missing module is this one, or a package that contains it."""
    return missing is not None and (module == missing or module.startswith(f"{missing}."))


def _folder_of_module(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None
