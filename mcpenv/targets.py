"""Targets: what TARGET on the command line names, found, loaded and bound to its settings.

TARGET is ``folder``, ``file.py``, ``folder:Class``, ``file.py:Class``, ``module:Class``, ``module:factory`` or the name
of an installed environment. A folder with ``openenv.yaml`` and a class of OpenEnv's are environments too.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fastmcp import FastMCP

from .environment import MCPEnvironment
from .errors import TargetError
from .openenv.adapter import OpenEnvEnvironment
from .openenv.target import (
    MANIFEST,
    has_openenv_elsewhere,
    is_openenvs,
    load_attribute,
    load_folder,
    needs_openenv,
)
from .target_settings import bind
from .target_tasks import with_tasks
from .tasks import TaskSet

ENTRY_POINTS = "mcpenv.environments"
"""Entry-point group by which installed packages offer environments."""

MODULE_FILE = "environment.py"
"""The file that makes a folder an environment."""

_MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class Target:
    """An environment that was found and loaded.

    Attributes:
        name: short, of letters, digits, ``-`` and ``_``: for the configuration of hosts.
        factory: makes an instance; settings are bound.
        environment_class: what it makes, None for a plain factory.
        folder: where its code stands, if it stands in a file.
        readme: the text of README.md beside it.
        spec: a TARGET that names the same from any working directory.
    """

    name: str
    factory: Callable[[], MCPEnvironment]
    environment_class: type[MCPEnvironment] | None
    folder: Path | None
    readme: str | None
    spec: str

    def make(self) -> MCPEnvironment:
        """An instance for use in this process.

        Raises:
            TargetError: the constructor or the factory raised (``__cause__``), or gave something else.
        """
        what = "the constructor" if self.environment_class is not None else "the factory"
        try:
            env = self.factory()
        except (Exception, SystemExit) as error:  # the author's constructor may raise anything
            raise TargetError(self.name, f"{what} raised {describe(error, self.folder)}") from error
        if not isinstance(env, MCPEnvironment):
            raise TargetError(self.name, f"{what} gave a {type(env).__name__}, not an MCPEnvironment")
        return env


def is_url(target: str) -> bool:
    """Whether ``target`` is a server and not an environment's code."""
    return target.startswith(("http://", "https://"))


def load_target(target: str, settings: Sequence[str] = (), tasks: str | Path | None = None) -> Target:
    """Find and load what ``target`` names.

    A file in a folder with ``__init__.py`` is loaded as part of its package, so that relative imports work; any other
    with its folder on ``sys.path``, so that it can import its siblings. Meant to be called once per process: two
    environments with siblings of the same name would share the first one's.

    Args:
        target: as the user wrote it.
        settings: ``name=value`` each, for the constructor or factory; values are JSON or plain text, as the
            parameter's annotation wants them. Of a name given twice the last counts.
        tasks: a file or folder of tasks, instead of those that its class has.

    Raises:
        TargetError: nothing is found there, it does not load (``__cause__``), or the settings do not fit.
        InvalidTasks: there are no such tasks.
    """
    place = _find(target)
    task_set = None if tasks is None else TaskSet.from_path(tasks)
    if place.file is not None and place.file.name == MANIFEST:
        return _openenv(place, load_folder(target, place.file.parent, place.attribute), settings, task_set)
    try:
        module = _load(place)
    except TargetError as error:
        if place.attribute is None or not _may_be_openenvs(place, error.__cause__):
            raise
        return _openenv(place, load_attribute(target, place.module, place.file, place.attribute), settings, task_set)
    if place.attribute is not None and is_openenvs(getattr(module, place.attribute, None)):
        return _openenv(place, load_attribute(target, place.module, place.file, place.attribute), settings, task_set)
    file = getattr(module, "__file__", None)
    folder = place.file.parent if place.file is not None else Path(file).parent if file else None
    made = _pick(place, module)
    if task_set is not None:
        made = with_tasks(made, task_set)
    environment_class = made if isinstance(made, type) else None
    bound = bind(target, made, settings)
    return Target(
        name=place.name,
        factory=functools.partial(made, **bound) if bound else made,
        environment_class=environment_class,
        folder=folder,
        readme=_readme(folder),
        spec=place.spec or _module_spec(place, module),
    )


def load_object(target: str) -> tuple[Any, Path | None]:
    """What ``module:NAME`` or ``file.py:NAME`` names, whatever it is, and the folder of its code.

    Raises:
        TargetError: nothing is found there, or it does not load (``__cause__``).
    """
    place = _find(target)
    if place.attribute is None:
        raise TargetError(target, "it names no object; write MODULE:NAME or FILE.py:NAME")
    module = _load(place)
    try:
        found = getattr(module, place.attribute)
    except AttributeError as error:
        raise TargetError(target, f"there is no {place.attribute!r} in {_called(place)}") from error
    return found, place.file.parent if place.file is not None else None


def _openenv(place: _Place, cls: type[OpenEnvEnvironment], settings: Sequence[str], tasks: TaskSet | None) -> Target:
    """A target that stands for an OpenEnv environment; its constructor is over there, and checks settings itself."""
    made: Any = cls if tasks is None else with_tasks(cls, tasks)
    bound = bind(place.target, made, settings)
    folder = None if place.file is None else place.file.parent
    return Target(
        name=_slug(made.exposed_name()),
        factory=functools.partial(made, **bound) if bound else made,
        environment_class=made,
        folder=folder,
        readme=_readme(folder),
        spec=place.spec or f"{place.module}:{place.attribute}",
    )


def _may_be_openenvs(place: _Place, cause: BaseException | None) -> bool:
    """Whether what could not be loaded here may be an OpenEnv environment of the Python that has OpenEnv."""
    missing = isinstance(cause, ModuleNotFoundError) and _is_part(cause.name, place.module)
    return needs_openenv(cause) or (missing and has_openenv_elsewhere())


def watched_path(target: str) -> Path:
    """The folder (or, outside of any project, the file) whose changes change what ``target`` names. Loads nothing.

    Raises:
        TargetError: nothing is found there.
    """
    place = _find(target)
    if place.file is not None:
        assert place.root is not None
        if place.file.name == MANIFEST:
            return place.root
        top = place.module.partition(".")[0]
        return place.root / top if "." in place.module else place.file.parent
    top = place.module.partition(".")[0]
    _put_first(Path.cwd())
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError) as error:
        raise TargetError(target, f"module {top!r} cannot be found: {error}") from error
    if spec is None:
        raise TargetError(target, f"there is no module {top!r}")
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    if spec.origin is None or not Path(spec.origin).is_file():
        raise TargetError(target, f"module {top!r} is no file that could change")
    file = Path(spec.origin)
    return file.parent if file.parent == Path.cwd() else file


def describe(error: BaseException, folder: Path | None) -> str:
    """An exception of the author's code as one line: its type, its text, and where in their files it came from."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    said = " ".join(text.split())
    line = f"{type(error).__name__}: {said}" if said else type(error).__name__
    where = _where(error, folder)
    return f"{line} ({where})" if where else line


# -- finding


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a target's module is.

    Attributes:
        target: as the user wrote it.
        attribute: the name after the colon.
        module: the name to import.
        file: its file, where the target names one.
        root: what goes on ``sys.path`` for it.
        name: `Target.name`.
        spec: `Target.spec`, where it is known without loading.
    """

    target: str
    attribute: str | None
    module: str
    file: Path | None
    root: Path | None
    name: str
    spec: str | None


def _find(target: str) -> _Place:
    location, attribute = _split(target)
    if not location:
        raise TargetError(repr(target), "names no environment; the folder you are in is '.'")
    if is_url(target):
        raise TargetError(
            target,
            "is the URL of a server, and the environment itself is needed here: "
            "a folder, a file.py, a module:Class or the name of an installed one",
        )
    try:
        path = Path(location).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
        has_module = is_folder and (path / MODULE_FILE).is_file()
    except (OSError, RuntimeError) as error:  # a name too long, a ~user that is not there
        raise TargetError(target, getattr(error, "strerror", None) or str(error)) from error
    if has_module:
        return _of_file(target, _absolute(path) / MODULE_FILE, _absolute(path), attribute)
    if is_folder and (path / MANIFEST).is_file():
        folder = _absolute(path)
        spec = str(folder) if attribute is None else f"{folder}:{attribute}"
        return _Place(target, attribute, MANIFEST, folder / MANIFEST, folder, _slug(folder.name), spec)
    if path.suffix == ".py" and is_file:
        return _of_file(target, _absolute(path), _absolute(path), attribute)
    if attribute is None:
        entry = _entry_points().get(location)
        if entry is not None:
            return _Place(
                target, entry.attr, entry.module, None, None, _slug(entry.name), f"{entry.module}:{entry.attr}"
            )
    if is_folder:
        others = sorted(file.name for file in path.glob("*.py") if file.name != "__init__.py")
        hint = f"; name one of its files: {', '.join(others)}" if others else ""
        raise TargetError(target, f"the folder has no {MODULE_FILE}{hint}")
    if is_file:
        raise TargetError(target, "is not a Python file")
    if path.suffix == ".py" or os.sep in location or "/" in location:
        raise TargetError(target, "there is no such file or folder")
    if attribute is not None and all(part.isidentifier() for part in location.split(".")):
        return _Place(target, attribute, location, None, None, _slug(_kebab(attribute)), None)
    installed = ", ".join(sorted(_entry_points())) or "none"
    raise TargetError(
        target,
        f"is no folder with {MODULE_FILE}, no .py file, no module:Class and no installed environment "
        f"(installed: {installed})",
    )


def _split(target: str) -> tuple[str, str | None]:
    location, colon, name = target.rpartition(":")
    # Anything else after a colon is a path: C:\\envs.
    return (location, name) if colon and location and name.isidentifier() else (target, None)


def _of_file(target: str, file: Path, named: Path, attribute: str | None) -> _Place:
    module, root = _import_name(file)
    named_by = file.parent.name if file.name == MODULE_FILE else file.stem
    name = named_by if attribute is None else _kebab(attribute)
    spec = str(named) if attribute is None else f"{named}:{attribute}"
    return _Place(target, attribute, module, file, root, _slug(name), spec)


def _import_name(file: Path) -> tuple[str, Path]:
    """The dotted name of a file, and the folder that has its topmost package or, outside of any, the file."""
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder.name and "." not in folder.name:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts) or file.stem, folder


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _absolute(path: Path) -> Path:
    # Not resolve(): beside a link stand other siblings than beside the file that it points to.
    return Path(os.path.abspath(path))


def _kebab(name: str) -> str:
    """``MCPEcho`` as ``mcp-echo``; a name in snake case stays as it is."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:_MAX_NAME] or "environment"


def _module_spec(place: _Place, module: ModuleType) -> str:
    """A module that was found in the working directory only is named by its file."""
    if getattr(module, "__file__", None):
        file = _absolute(Path(str(module.__file__)))
        depth = place.module.count(".") + (file.name == "__init__.py")
        if depth < len(file.parents) and file.parents[depth] == Path.cwd():
            return f"{file}:{place.attribute}"
    return f"{place.module}:{place.attribute}"


def _readme(folder: Path | None) -> str | None:
    if folder is None:
        return None
    try:
        return (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


# -- loading


def _load(place: _Place) -> ModuleType:
    if place.file is not None and "." not in place.module and place.file.name != "__init__.py":
        return _load_file(place, place.file)
    if place.file is None:
        _put_first(Path.cwd())
    else:
        assert place.root is not None
        _refuse_taken_package(place)
        _put_first(place.root)
    try:
        return importlib.import_module(place.module)
    except (Exception, SystemExit) as error:  # the author's module may raise anything
        if isinstance(error, ModuleNotFoundError) and place.file is None and _is_part(error.name, place.module):
            raise TargetError(place.target, f"there is no module {error.name!r}") from error
        folder = place.file.parent if place.file is not None else _folder_of_module(place.module)
        raise _not_loaded(place, error, folder) from error


def _load_file(place: _Place, file: Path) -> ModuleType:
    name = place.module
    loaded = sys.modules.get(name)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(file):
            return loaded
        name = f"{name}_{zlib.crc32(os.fsencode(file)):08x}"
        if name in sys.modules:
            return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _put_first(file.parent)
    sys.modules[name] = module  # dataclasses and pydantic look their module up while it runs
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the author's module may raise anything
        del sys.modules[name]
        raise _not_loaded(place, error, file.parent) from error
    return module


def _not_loaded(place: _Place, error: BaseException, folder: Path | None) -> TargetError:
    return TargetError(place.target, f"cannot be loaded: {describe(error, folder)}")


def _refuse_taken_package(place: _Place) -> None:
    assert place.root is not None
    top = place.module.partition(".")[0]
    loaded = sys.modules.get(top)
    if loaded is not None and str(place.root / top) not in map(str, getattr(loaded, "__path__", ())):
        raise TargetError(
            place.target, f"its package is called as the module {top!r}, which mcpenv uses; rename the folder"
        )


def _put_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _is_part(missing: str | None, module: str) -> bool:
    return missing is not None and (module == missing or module.startswith(f"{missing}."))


def _folder_of_module(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _where(error: BaseException, folder: Path | None) -> str | None:
    """``file:line`` of the author's file: the place of a syntax error, or the last frame in their folder."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(Path(error.filename))}:{error.lineno}"
    found = None
    traceback = error.__traceback__
    while traceback is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if folder is not None and file.is_relative_to(folder) and "site-packages" not in file.relative_to(folder).parts:
            found = f"{_shown(file)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found


def _shown(file: Path) -> str:
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)


# -- picking


def _pick(place: _Place, module: ModuleType) -> Any:
    """The class or factory that the target means.

    Raises:
        TargetError: none, several, or something that makes no environments.
    """
    own = {name: value for name, value in _classes(module).items() if value.__module__ == module.__name__}
    if place.attribute is None:
        return _only(place, module, own)
    missing = object()
    made = getattr(module, place.attribute, missing)
    if made is missing:
        known = f"; it has {', '.join(own)}" if own else ""
        raise TargetError(place.target, f"there is no {place.attribute!r} in {_called(place)}{known}")
    if isinstance(made, MCPEnvironment):
        raise TargetError(
            place.target,
            f"{place.attribute} is an instance of {type(made).__name__}; name the class or a factory, "
            "because every session gets an instance of its own",
        )
    if isinstance(made, FastMCP):
        raise TargetError(
            place.target,
            f"{place.attribute} is a FastMCP server; hand it to an environment: super().__init__({place.attribute})",
        )
    if isinstance(made, type) and (not issubclass(made, MCPEnvironment) or made is MCPEnvironment):
        raise TargetError(place.target, f"{place.attribute} is a class, but no subclass of MCPEnvironment")
    if not callable(made):
        raise TargetError(
            place.target, f"{place.attribute} is a {type(made).__name__}, no MCPEnvironment class and no factory"
        )
    if inspect.iscoroutinefunction(made):
        raise TargetError(place.target, f"{place.attribute} is an async function; a factory is a plain one")
    return made


def _only(place: _Place, module: ModuleType, own: Mapping[str, type[MCPEnvironment]]) -> type[MCPEnvironment]:
    classes = {name: cls for name, cls in own.items() if not name.startswith("_") and not inspect.isabstract(cls)}
    if len(set(classes.values())) == 1:
        return next(iter(classes.values()))
    if classes:
        raise TargetError(
            place.target,
            f"has several environments: {', '.join(classes)}; say which one: {place.target}:{next(iter(classes))}",
        )
    imported = [name for name in _classes(module) if name not in own]
    hint = f"; to use one that it imports ({', '.join(imported)}), say {place.target}:{imported[0]}" if imported else ""
    raise TargetError(place.target, f"{_called(place)} defines no MCPEnvironment subclass{hint}")


def _classes(module: ModuleType) -> dict[str, type[MCPEnvironment]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, MCPEnvironment) and value is not MCPEnvironment
    }


def _called(place: _Place) -> str:
    return place.file.name if place.file is not None else f"module {place.module}"
