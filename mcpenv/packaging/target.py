"""Targets: find and load the environment that TARGET on the command line names.

TARGET is ``folder``, ``file.py``, ``folder:Class``, ``file.py:Class``, ``module:Class``, ``module:factory`` or the name
of an installed environment. A folder with ``mcpenv.yaml`` is the environment that this manifest describes. A folder
with ``openenv.yaml`` and an environment class of OpenEnv are accepted too, and MCP servers: a JSON file with
``mcpServers``, ``mcp:COMMAND`` or ``mcp:URL``, and records of them: ``cassette:RECORD``.
``harbor:PATH`` and the other prefixes of `mcpenv.packaging.imported` name what comes from other formats.
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
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from fastmcp import FastMCP

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError, TargetError
from mcpenv.integrations.mcp_proxy.target import (
    PREFIX,
    RECORDED,
    file_of,
    load_servers,
    names_servers,
    with_absolute_paths,
)
from mcpenv.integrations.openenv.adapter import OpenEnvEnvironment
from mcpenv.integrations.openenv.target import (
    MANIFEST,
    has_openenv_elsewhere,
    is_openenvs,
    load_attribute,
    load_folder,
    needs_openenv,
)
from mcpenv.tasks import TaskSet
from mcpenv_client.types.tools import Mode

from .derived import with_manifest
from .external import external_class, names_external
from .imported import loader_of, path_of, prefix_of
from .manifest import MANIFEST as OWN_MANIFEST
from .manifest import Manifest
from .manifest_file import manifest_in, place_in
from .requirements import refuse_unmet
from .settings import bind
from .tasks import with_tasks

ENTRY_POINTS = "mcpenv.environments"
"""The entry-point group under which installed packages register environments."""

MODULE_FILE = "environment.py"
"""The file that a folder must have to be an environment."""

_MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class Target:
    """The loaded environment of a target.

    Attributes:
        name: a short name of letters, digits, ``-`` and ``_``, for the configuration of hosts.
        factory: makes an instance, with the settings bound.
        environment_class: the class that ``factory`` makes; None if the target is a plain factory.
        folder: the folder of its code; None if the code is not in a file.
        readme: the text of README.md in that folder; None if there is none.
        spec: a TARGET that names the same environment from any working directory.
        manifest: the manifest of its folder; None if it has none.
    """

    name: str
    factory: Callable[[], MCPEnvironment]
    environment_class: type[MCPEnvironment] | None
    folder: Path | None
    readme: str | None
    spec: str
    manifest: Manifest | None = None

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes in which it may be served."""
        return tuple(Mode) if self.manifest is None else tuple(map(Mode, self.manifest.modes))

    def refuse_other(self, mode: Mode) -> None:
        """Raise if it may not be served in a mode.

        Raises:
            TargetError: with the modes of its manifest.
        """
        if mode not in self.modes:
            allowed = " and ".join(each.value for each in self.modes)
            raise TargetError(
                self.name, f"its {OWN_MANIFEST} allows {allowed}, not {mode.value}; add {mode.value} to modes there"
            )

    def make(self) -> MCPEnvironment:
        """Return an instance for use in this process.

        Raises:
            TargetError: the constructor or the factory raised (``__cause__``), or returned something else.
        """
        what = "the constructor" if self.environment_class is not None else "the factory"
        try:
            env = self.factory()
        except (Exception, SystemExit) as error:  # user code may raise anything
            raise TargetError(self.name, f"{what} raised {describe(error, self.folder)}") from error
        if not isinstance(env, MCPEnvironment):
            raise TargetError(self.name, f"{what} returned a {type(env).__name__}, not an MCPEnvironment")
        return env


def is_url(target: str) -> bool:
    """Return True if ``target`` is the URL of a server, not an environment's code."""
    return target.startswith(("http://", "https://"))


def load_target(target: str, settings: Sequence[str] = (), tasks: str | Path | None = None) -> Target:
    """Find and load the environment that ``target`` names.

    A file in a folder with ``__init__.py`` is loaded as part of its package, so that relative imports work. For any
    other file, its folder is put on ``sys.path``, so that it can import its siblings. Call this once per process: two
    environments with siblings of the same name would share the first one's.

    Args:
        target: as the user wrote it.
        settings: ``name=value`` each, for the constructor or factory. The parameter's annotation decides whether a
            value is read as JSON or as plain text. If a name is given twice, the last value is used.
        tasks: a file or folder of tasks, instead of those of the class.

    Raises:
        TargetError: the target is not found, it does not load (``__cause__``), the settings do not fit, or what its
            manifest needs is missing.
        InvalidTasks: the tasks cannot be read.
    """
    task_set = None if tasks is None else TaskSet.from_path(tasks)
    if names_external(target):
        return _external(target, settings, task_set)
    if names_servers(target):
        return _servers(target, settings, task_set)
    if prefix_of(target) is not None:
        return _imported(target, settings, task_set)
    place = _find(target)
    if place.manifest is not None:
        return _described(place, place.manifest, settings, task_set)
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


def _described(place: _Place, manifest: Manifest, settings: Sequence[str], tasks: TaskSet | None) -> Target:
    """Return the target of a folder with a manifest."""
    assert place.root is not None and place.folder is not None
    refuse_unmet(place.target, manifest)
    module = _load(place)
    if is_openenvs(getattr(module, place.attribute or "", None)):
        raise TargetError(
            place.target, f"the entry of {OWN_MANIFEST} is an environment of OpenEnv; see: mcpenv import-openenv --help"
        )
    file = place.folder / OWN_MANIFEST
    named_by_manifest = _split(place.target)[1] is None
    blamed = replace(place, target=place_in(file, "entry")) if named_by_manifest else place
    made = with_manifest(_pick(blamed, module), manifest)
    if tasks is None and manifest.tasks is not None:
        if not (place.folder / manifest.tasks).exists():
            at = place_in(file, "tasks")
            raise TargetError(at, f"tasks: there is no file or folder {manifest.tasks} in its folder")
        tasks = TaskSet.from_path(place.folder / manifest.tasks)
    if tasks is not None:
        made = with_tasks(made, tasks)
    bound = bind(place.target, made, settings)
    return Target(
        name=place.name,
        factory=functools.partial(made, **bound) if bound else made,
        environment_class=made if isinstance(made, type) else None,
        folder=place.folder,
        readme=_readme(place.folder),
        spec=place.spec or str(place.folder),
        manifest=manifest,
    )


def manifest_of(target: str) -> Manifest | None:
    """Return the manifest of the folder that a target names; None if it names something else. No code is loaded.

    Raises:
        TargetError: the manifest cannot be used.
    """
    if names_servers(target) or is_url(target):
        return None
    folder = _folder_with_manifest(_split(target)[0])
    return None if folder is None else manifest_in(folder)


def _servers(target: str, settings: Sequence[str], tasks: TaskSet | None) -> Target:
    """Return the target of MCP servers."""
    cls = load_servers(target, settings)
    made: Any = cls if tasks is None else with_tasks(cls, tasks)
    named = file_of(target)
    file = None if named is None else _absolute(named)
    prefix = RECORDED if target.startswith(RECORDED) else ""
    return Target(
        name=_slug(cls.exposed_name()),
        factory=made,
        environment_class=made,
        folder=None if file is None else file.parent,
        readme=None,
        spec=with_absolute_paths(target) if file is None else f"{prefix}{file}",
    )


def _external(target: str, settings: Sequence[str], tasks: TaskSet | None) -> Target:
    """Return the target that another distribution resolves."""
    cls = external_class(target, settings)
    made: Any = cls if tasks is None else with_tasks(cls, tasks)
    return Target(_slug(cls.exposed_name()), made, made, folder=None, readme=None, spec=target)


def _imported(target: str, settings: Sequence[str], tasks: TaskSet | None) -> Target:
    """Return the target of another format."""
    load = loader_of(target)
    prefix, _, rest = target.partition(":")
    if not rest:
        raise TargetError(target, f"nothing stands after {prefix}:")
    try:
        cls = load(rest, **bind(target, load, settings))
    except ConfigurationError as error:
        raise TargetError(target, str(error)) from error
    made: Any = cls if tasks is None else with_tasks(cls, tasks)
    path = path_of(target)
    return Target(
        name=_slug(cls.exposed_name()),
        factory=made,
        environment_class=made,
        folder=path if path is None or path.is_dir() else path.parent,
        readme=_readme(path) if path is not None and path.is_dir() else None,
        spec=target if path is None else f"{prefix}:{path}",
    )


def load_object(target: str) -> tuple[Any, Path | None]:
    """Return the object that ``module:NAME`` or ``file.py:NAME`` names, of any type, and the folder of its code.

    Raises:
        TargetError: there is no such object, or the code does not load (``__cause__``).
    """
    place = _find(target)
    if place.attribute is None:
        raise TargetError(target, "the name of an object is missing; write MODULE:NAME or FILE.py:NAME")
    module = _load(place)
    try:
        found = getattr(module, place.attribute)
    except AttributeError as error:
        raise TargetError(target, f"there is no {place.attribute!r} in {_called(place)}") from error
    return found, place.file.parent if place.file is not None else None


def _openenv(place: _Place, cls: type[OpenEnvEnvironment], settings: Sequence[str], tasks: TaskSet | None) -> Target:
    """Return the target of an OpenEnv environment. Its constructor in the OpenEnv process checks the settings."""
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
    """Return True if the code that failed to load may be an OpenEnv environment for the Python that has OpenEnv."""
    missing = isinstance(cause, ModuleNotFoundError) and _is_part(cause.name, place.module)
    return needs_openenv(cause) or (missing and has_openenv_elsewhere())


def watched_path(target: str) -> Path:
    """Return the folder or file to watch for changes of the target's code. No code is loaded.

    Raises:
        TargetError: the target is not found.
    """
    if names_external(target):
        raise TargetError(target, "its code is in another package, so that there is nothing to watch for changes")
    if names_servers(target) and not target.startswith(PREFIX):
        file = file_of(target)
        assert file is not None
        return _absolute(file)
    if prefix_of(target) is not None:
        path = path_of(target)
        if path is None or not path.exists():
            raise TargetError(target, "names no file or folder that can be watched")
        return path
    described = _folder_with_manifest(_split(target)[0])
    if described is not None:
        return described  # a manifest that cannot be used yet is watched, too
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
        raise TargetError(target, f"module {top!r} is not a file that can be watched")
    file = Path(spec.origin)
    return file.parent if file.parent == Path.cwd() else file


def describe(error: BaseException, folder: Path | None) -> str:
    """Return an exception of user code as one line: its type, its text, and its place in files below ``folder``."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    message = " ".join(text.split())
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    where = _where(error, folder)
    return f"{line} ({where})" if where else line


# -- finding


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a target's module.

    Attributes:
        target: as the user wrote it.
        attribute: the name after the colon, if any.
        module: the name to import.
        file: the module's file, if the target names one.
        root: the folder to put on ``sys.path``.
        name: `Target.name`.
        spec: `Target.spec`; None if it is not known before loading.
        folder: the folder of the manifest, if there is one.
        manifest: the manifest.
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


def _find(target: str) -> _Place:
    location, attribute = _split(target)
    described = _folder_with_manifest(location)
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
    except (OSError, RuntimeError) as error:  # a name too long, an unknown ~user
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
        f"is not a folder with {MODULE_FILE}, a .py file, a module:Class or an installed environment "
        f"(installed: {installed})",
    )


def _folder_with_manifest(location: str) -> Path | None:
    """Return the folder at a location if it has a manifest."""
    try:
        folder = Path(location).expanduser()
        return _absolute(folder) if location and (folder / OWN_MANIFEST).is_file() else None
    except (OSError, RuntimeError):  # no path at all: a name too long, an unknown ~user
        return None


def _of_manifest(target: str, folder: Path, attribute: str | None) -> _Place:
    manifest = manifest_in(folder)
    assert manifest is not None
    file = folder / manifest.entry_file
    if not file.is_file():
        at = place_in(folder / OWN_MANIFEST, "entry")
        raise TargetError(at, f"entry: there is no file {manifest.entry_file} in its folder")
    place = _of_file(target, file, folder, attribute or manifest.entry_attribute)
    spec = str(folder) if attribute is None else f"{folder}:{attribute}"
    return replace(place, name=_slug(manifest.name), spec=spec, folder=folder, manifest=manifest)


def _split(target: str) -> tuple[str, str | None]:
    location, colon, name = target.rpartition(":")
    # Any other colon is part of a path: C:\\envs.
    return (location, name) if colon and location and name.isidentifier() else (target, None)


def _of_file(target: str, file: Path, named: Path, attribute: str | None) -> _Place:
    module, root = _import_name(file)
    named_by = file.parent.name if file.name == MODULE_FILE else file.stem
    name = named_by if attribute is None else _kebab(attribute)
    spec = str(named) if attribute is None else f"{named}:{attribute}"
    return _Place(target, attribute, module, file, root, _slug(name), spec)


def _import_name(file: Path) -> tuple[str, Path]:
    """Return the dotted name of a file, and the folder of its topmost package or, without a package, of the file."""
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder.name and "." not in folder.name:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts) or file.stem, folder


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _absolute(path: Path) -> Path:
    # Not resolve(): the siblings of a link are not those of the file that it points to.
    return Path(os.path.abspath(path))


def _kebab(name: str) -> str:
    """Convert ``MCPEcho`` to ``mcp-echo``; keep a name in snake case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:_MAX_NAME] or "environment"


def _module_spec(place: _Place, module: ModuleType) -> str:
    """Return `Target.spec` of a module: its file if it was found in the working directory, else its dotted name."""
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
    except (Exception, SystemExit) as error:  # user code may raise anything
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
    sys.modules[name] = module  # dataclasses and pydantic look up their module while it is executed
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # user code may raise anything
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
            place.target, f"its package has the name of the module {top!r}, which mcpenv uses; rename the folder"
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
    """Return ``file:line`` of a syntax error, or of the last frame in ``folder``; None if there is none."""
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
    """Return the class or factory that the target names.

    Raises:
        TargetError: there is none, there are several, or it does not make environments.
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
            "because every session needs its own instance",
        )
    if isinstance(made, FastMCP):
        raise TargetError(
            place.target,
            f"{place.attribute} is a FastMCP server; pass it to an environment: super().__init__({place.attribute})",
        )
    if isinstance(made, type) and (not issubclass(made, MCPEnvironment) or made is MCPEnvironment):
        raise TargetError(place.target, f"{place.attribute} is a class, but not a subclass of MCPEnvironment")
    if not callable(made):
        raise TargetError(
            place.target, f"{place.attribute} is a {type(made).__name__}, neither an MCPEnvironment class nor a factory"
        )
    if inspect.iscoroutinefunction(made):
        raise TargetError(place.target, f"{place.attribute} is an async function; a factory must be a plain function")
    return made


def _only(place: _Place, module: ModuleType, own: Mapping[str, type[MCPEnvironment]]) -> type[MCPEnvironment]:
    classes = {name: cls for name, cls in own.items() if not name.startswith("_") and not inspect.isabstract(cls)}
    if len(set(classes.values())) == 1:
        return next(iter(classes.values()))
    if classes:
        raise TargetError(
            place.target,
            f"has several environments: {', '.join(classes)}; choose one, such as {place.target}:{next(iter(classes))}",
        )
    imported = [name for name in _classes(module) if name not in own]
    hint = f"; to use an imported one ({', '.join(imported)}), write {place.target}:{imported[0]}" if imported else ""
    raise TargetError(place.target, f"{_called(place)} defines no MCPEnvironment subclass{hint}")


def _classes(module: ModuleType) -> dict[str, type[MCPEnvironment]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, MCPEnvironment) and value is not MCPEnvironment
    }


def _called(place: _Place) -> str:
    return place.file.name if place.file is not None else f"module {place.module}"
