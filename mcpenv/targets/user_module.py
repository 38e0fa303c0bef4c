"""The module of a target: importing it, with the folder of its siblings on ``sys.path``."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
import zlib
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
        return importlib.import_module(place.module)
    except (Exception, SystemExit) as error:  # user code may raise anything
        if isinstance(error, ModuleNotFoundError) and place.file is None and is_part(error.name, place.module):
            raise TargetError(place.target, f"there is no module {error.name!r}{meant_prefix(place.target)}") from error
        raise _not_loaded(place, error, folder) from error


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
    put_first(file.parent)
    sys.modules[name] = module  # dataclasses and pydantic look up their module while it is executed
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # user code may raise anything
        del sys.modules[name]
        raise _not_loaded(place, error, file.parent) from error
    return module


def _claim_siblings(place: Place, file: Path) -> None:
    """Keep the names of the modules beside a file for its environment.

    Raises:
        TargetError: another environment of this process imports another module of that name.
    """
    imported = _imported_siblings(file)
    for name in sorted(imported):
        other = _siblings.get(name, file.parent)
        if other != file.parent and str(other) in sys.path:
            raise TargetError(
                place.target,
                f"its module {name!r} has the name of a module of the environment in {other}, which is loaded in this "
                "process. Add an __init__.py to both folders and import with a dot (from . import "
                f"{name}), or load each environment in a process of its own",
            )
    _siblings.update(dict.fromkeys(imported, file.parent))
    _siblings.setdefault(file.stem, file.parent)


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
                beside = [file.parent / f"{name}.py", file.parent / name / "__init__.py"]
                if any(path.exists() for path in beside) or any((file.parent / name).glob("*.py")):
                    found.add(name)
                    unread += beside
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
