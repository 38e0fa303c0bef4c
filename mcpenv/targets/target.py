"""Targets: find and load the environment that TARGET on the command line names.

TARGET is ``folder``, ``file.py``, ``folder:Class``, ``file.py:Class``, ``module:Class``, ``module:factory`` or the name
of an installed environment. A folder with ``mcpenv.yaml`` is the environment that this manifest describes. A folder
with ``openenv.yaml`` and an environment class of OpenEnv are accepted too, and MCP servers: a JSON file with
``mcpServers``, ``mcp:COMMAND`` or ``mcp:URL``, and records of them: ``cassette:RECORD``.
``harbor:PATH`` and the other prefixes of `mcpenv.targets.imported` name what comes from other formats.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError, TargetError
from mcpenv.extensions.mcp_proxy.target import load_servers
from mcpenv.extensions.mcp_proxy.target_text import RECORDED, file_of, names_servers, with_absolute_paths
from mcpenv.extensions.openenv import MANIFEST
from mcpenv.extensions.openenv.adapter import OpenEnvEnvironment
from mcpenv.extensions.openenv.target import (
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
from .manifest_file import place_in
from .named_object import pick
from .place import Place, absolute, find_place, slug, split_target
from .requirements import refuse_unmet
from .settings import bind
from .tasks import with_tasks
from .user_error import describe
from .user_module import is_part, load_module


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
    place = find_place(target)
    if place.manifest is not None:
        return _described(place, place.manifest, settings, task_set)
    if place.file is not None and place.file.name == MANIFEST:
        return _openenv(place, load_folder(target, place.file.parent, place.attribute), settings, task_set)
    try:
        module = load_module(place)
    except TargetError as error:
        if place.attribute is None or not _may_be_openenvs(place, error.__cause__):
            raise
        return _openenv(place, load_attribute(target, place.module, place.file, place.attribute), settings, task_set)
    if place.attribute is not None and is_openenvs(getattr(module, place.attribute, None)):
        return _openenv(place, load_attribute(target, place.module, place.file, place.attribute), settings, task_set)
    file = getattr(module, "__file__", None)
    folder = place.file.parent if place.file is not None else Path(file).parent if file else None
    made = pick(place, module)
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


def _described(place: Place, manifest: Manifest, settings: Sequence[str], tasks: TaskSet | None) -> Target:
    """Return the target of a folder with a manifest."""
    assert place.root is not None and place.folder is not None
    refuse_unmet(place.target, manifest)
    module = load_module(place)
    if is_openenvs(getattr(module, place.attribute or "", None)):
        raise TargetError(
            place.target, f"the entry of {OWN_MANIFEST} is an environment of OpenEnv; see: mcpenv import-openenv --help"
        )
    file = place.folder / OWN_MANIFEST
    named_by_manifest = split_target(place.target)[1] is None
    blamed = replace(place, target=place_in(file, "entry")) if named_by_manifest else place
    made = with_manifest(pick(blamed, module), manifest)
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


def _servers(target: str, settings: Sequence[str], tasks: TaskSet | None) -> Target:
    """Return the target of MCP servers."""
    cls = load_servers(target, settings)
    made: Any = cls if tasks is None else with_tasks(cls, tasks)
    named = file_of(target)
    file = None if named is None else absolute(named)
    prefix = RECORDED if target.startswith(RECORDED) else ""
    return Target(
        name=slug(cls.exposed_name()),
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
    return Target(slug(cls.exposed_name()), made, made, folder=None, readme=None, spec=target)


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
        name=slug(cls.exposed_name()),
        factory=made,
        environment_class=made,
        folder=path if path is None or path.is_dir() else path.parent,
        readme=_readme(path) if path is not None and path.is_dir() else None,
        spec=target if path is None else f"{prefix}:{path}",
    )


def _openenv(place: Place, cls: type[OpenEnvEnvironment], settings: Sequence[str], tasks: TaskSet | None) -> Target:
    """Return the target of an OpenEnv environment. Its constructor in the OpenEnv process checks the settings."""
    made: Any = cls if tasks is None else with_tasks(cls, tasks)
    bound = bind(place.target, made, settings)
    folder = None if place.file is None else place.file.parent
    return Target(
        name=slug(made.exposed_name()),
        factory=functools.partial(made, **bound) if bound else made,
        environment_class=made,
        folder=folder,
        readme=_readme(folder),
        spec=place.spec or f"{place.module}:{place.attribute}",
    )


def _may_be_openenvs(place: Place, cause: BaseException | None) -> bool:
    """Return True if the code that failed to load may be an OpenEnv environment for the Python that has OpenEnv."""
    missing = isinstance(cause, ModuleNotFoundError) and is_part(cause.name, place.module)
    return needs_openenv(cause) or (missing and has_openenv_elsewhere())


def _module_spec(place: Place, module: ModuleType) -> str:
    """Return `Target.spec` of a module: its file if it was found in the working directory, else its dotted name."""
    if getattr(module, "__file__", None):
        file = absolute(Path(str(module.__file__)))
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


__all__ = ["Target", "load_target"]
