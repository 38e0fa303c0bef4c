"""Targets: find and load the environment that TARGET on the command line names.

TARGET is ``folder``, ``file.py``, ``folder:Class``, ``file.py:Class``, ``module:Class``, ``module:factory`` or the name
of an installed environment. A folder with ``mcpenv.yaml`` is the environment that this manifest describes. Extensions
add others: see `mcpenv.targets.external`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import ConfigurationError, InvalidTasks, TargetError, describe
from mcpenv.failures import is_no_failure
from mcpenv.tasks import TaskSet
from mcpenv.tasks.columns import parse_columns
from mcpenv_client.types.tools import Mode

from .derived import with_manifest, with_tasks
from .external import ExternalTarget, FolderKind, external_target, folder_kind, folder_kinds
from .manifest import MANIFEST, Manifest
from .manifest_file import manifest_in, place_in
from .named_object import pick
from .place import Place, absolute, find_place, folder_with_manifest, is_url, slug, split_target
from .requirements import refuse_unmet
from .settings import bind
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
        given: the arguments of `load_target`, as another process needs them; empty if it was not loaded so.
    """

    name: str
    factory: Callable[[], MCPEnvironment]
    environment_class: type[MCPEnvironment] | None
    folder: Path | None
    readme: str | None
    spec: str
    manifest: Manifest | None = None
    given: tuple[Any, ...] = ()

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
                self.name, f"its {MANIFEST} allows {allowed}, not {mode.value}; add {mode.value} to modes there"
            )

    def make(self) -> MCPEnvironment:
        """Return an instance for use in this process.

        Raises:
            TargetError: the constructor or the factory raised (``__cause__``), or returned something else.
        """
        what = "the constructor" if self.environment_class is not None else "the factory"
        try:
            env = self.factory()
        except BaseException as error:  # user code may raise anything
            if is_no_failure(error, inline=True):
                raise
            raise TargetError(self.name, f"{what} raised {describe(error, self.folder)}") from error
        if not isinstance(env, MCPEnvironment):
            raise TargetError(self.name, f"{what} returned a {type(env).__name__}, not an MCPEnvironment")
        return env


def load_target(
    target: str, settings: Sequence[str] = (), tasks: str | Path | None = None, columns: str | None = None
) -> Target:
    """Find and load the environment that ``target`` names.

    A file in a folder with ``__init__.py`` is loaded as part of its package, so that relative imports work. For any
    other file, its folder is put on ``sys.path``, so that it can import its siblings. A second environment in a process
    is refused if it imports a sibling of the same name as one of the first.

    Args:
        target: as the user wrote it.
        settings: ``name=value`` each, for the constructor or factory. The parameter's annotation decides whether a
            value is read as JSON or as plain text. If a name is given twice, the last value is used.
        tasks: a file or folder of tasks, instead of the class's tasks.
        columns: its columns by the fields of a task: ``prompt=question,answer=solution``.

    Raises:
        ConfigurationError: there are columns, and no tasks.
        TargetError: the target is not found, it does not load (``__cause__``), a setting is invalid, or a requirement
            of its manifest is not met.
        InvalidTasks: the tasks cannot be read.
    """
    if columns is not None and tasks is None:
        raise ConfigurationError("--columns names the columns of a file of tasks; give it with --tasks")
    given = (target, [*settings], None if tasks is None else str(tasks), columns)
    return replace(_loaded(target, settings, tasks, columns), given=given)


def _loaded(target: str, settings: Sequence[str], tasks: str | Path | None, columns: str | None) -> Target:
    named = None if columns is None else parse_columns(columns)
    task_set = None if tasks is None else TaskSet.from_path(tasks, columns=named)
    external = external_target(target)
    if external is not None:
        return _external(external, settings, task_set)
    place = find_place(target)
    if place.manifest is not None:
        return _described(place, place.manifest, settings, task_set)
    if place.format is not None:
        assert place.root is not None
        cls = folder_kind(place.format).load_folder(target, place.root, place.attribute)
        return _foreign(place, cls, settings, task_set)
    try:
        module = load_module(place)
    except TargetError as error:
        kind = _kind_that_explains(place, error.__cause__)
        if kind is None:
            raise
        return _foreign(place, _attribute_of(kind, place), settings, task_set)
    kind = _kind_that_owns(place, module)
    if kind is not None:
        return _foreign(place, _attribute_of(kind, place), settings, task_set)
    file = getattr(module, "__file__", None)
    folder = place.file.parent if place.file is not None else Path(file).parent if file else None
    made = pick(place, module)
    return _bound(target, made, settings, task_set, folder, place.spec or _module_spec(place, module), name=place.name)


def load(target: str | Path, /, *, tasks: str | Path | None = None, **settings: Any) -> MCPEnvironment:
    """Return a new instance of the environment that ``mcpenv run TARGET`` would serve.

    Args:
        target: a folder with environment.py, a .py file, ``folder:Class``, ``module:Class``, ``module:factory``, or an
            installed name.
        tasks: a file or folder of tasks to use instead of the environment's own.
        settings: arguments of the environment's constructor, or options of the target, as ``--set`` has them.

    Raises:
        TargetError: the target is not found or does not load (``__cause__``), or its constructor raised.
        InvalidTasks: the tasks cannot be read.
    """
    external = external_target(str(target))
    if external is not None:
        return _external(external, (), None if tasks is None else TaskSet.from_path(tasks), settings).make()
    loaded = load_target(str(target), (), tasks)
    if settings:
        loaded = replace(loaded, factory=functools.partial(loaded.factory, **settings))
    return loaded.make()


def manifest_of(target: str) -> Manifest | None:
    """Return the manifest of the folder that a target names; None if it names something else. No code is loaded.

    Raises:
        TargetError: the manifest cannot be used.
    """
    if is_url(target) or external_target(target) is not None:
        return None
    folder = folder_with_manifest(split_target(target)[0])
    return None if folder is None else manifest_in(folder)


def _described(place: Place, manifest: Manifest, settings: Sequence[str], tasks: TaskSet | None) -> Target:
    """Return the target of a folder with a manifest."""
    assert place.root is not None and place.folder is not None
    refuse_unmet(place.target, manifest)
    module = load_module(place)
    kind = _kind_that_owns(place, module)
    if kind is not None:
        raise TargetError(
            place.target, f"the entry of {MANIFEST} is an environment of {kind.framework}; see: {kind.advice}"
        )
    file = place.folder / MANIFEST
    named_by_manifest = split_target(place.target)[1] is None
    blamed = replace(place, target=place_in(file, "entry")) if named_by_manifest else place
    made = with_manifest(pick(blamed, module), manifest)
    if tasks is None and manifest.tasks is not None:
        if not (place.folder / manifest.tasks).exists():
            at = place_in(file, "tasks")
            raise TargetError(at, f"tasks: there is no file or folder {manifest.tasks} in its folder")
        tasks = TaskSet.from_path(place.folder / manifest.tasks)
        _warn_of_two_sources(file, getattr(made, "tasks", None), tasks)
    spec = place.spec or str(place.folder)
    return _bound(place.target, made, settings, tasks, place.folder, spec, name=place.name, manifest=manifest)


def _warn_of_two_sources(file: Path, of_class: TaskSet | None, of_manifest: TaskSet) -> None:
    """Warn if the class of a manifest has other tasks than the manifest names, because these count."""
    if of_class is None or Path(of_class.source).resolve() == Path(of_manifest.source).resolve():
        return
    with suppress(InvalidTasks):  # whatever reads them reports it
        if of_class.version == of_manifest.version:
            return
    path, _, line = place_in(file, "tasks").rpartition(":")
    text = (
        f"there are two sources of tasks, and {of_manifest.source} counts, which {MANIFEST} names; the tasks of the "
        f"class ({of_class.source}) have no effect. Remove one of the two"
    )
    warnings.warn_explicit(text, UserWarning, path, int(line))


def _external(
    external: ExternalTarget, settings: Sequence[str], tasks: TaskSet | None, values: Mapping[str, Any] | None = None
) -> Target:
    """Return the target of an extension."""
    cls, path = external.load(settings, values), external.path
    folder = path if path is None or path.is_dir() else path.parent
    target = _bound(external.target, cls, (), tasks, folder, external.spec)
    return target if path is None or path.is_dir() else replace(target, readme=None)


def _foreign(place: Place, cls: type[MCPEnvironment], settings: Sequence[str], tasks: TaskSet | None) -> Target:
    """Return the target of an environment of another framework. Its class takes the settings."""
    folder = None if place.file is None else place.file.parent
    return _bound(place.target, cls, settings, tasks, folder, place.spec or f"{place.module}:{place.attribute}")


def _bound(
    target: str,
    made: Any,
    settings: Sequence[str],
    tasks: TaskSet | None,
    folder: Path | None,
    spec: str,
    *,
    name: str | None = None,
    manifest: Manifest | None = None,
) -> Target:
    """Return the target of a class or factory, with its tasks and settings.

    Args:
        name: None for the name of the class.
    """
    if tasks is not None:
        made = with_tasks(made, tasks)
    bound = bind(target, made, settings)
    return Target(
        name=name or slug(made.exposed_name()),
        factory=functools.partial(made, **bound) if bound else made,
        environment_class=made if isinstance(made, type) else None,
        folder=folder,
        readme=_readme(folder),
        spec=spec,
        manifest=manifest,
    )


def _kind_that_owns(place: Place, module: ModuleType) -> FolderKind | None:
    """Return the framework of the class that a target names; None for environments of mcpenv."""
    found = getattr(module, place.attribute or "", None)
    if not isinstance(found, type) or issubclass(found, MCPEnvironment):
        return None
    return next((kind for kind in folder_kinds() if kind.owns(found)), None)


def _kind_that_explains(place: Place, error: BaseException | None) -> FolderKind | None:
    """Return the framework that a module's environment may belong to after the module failed to load."""
    if place.attribute is None:
        return None
    missing = isinstance(error, ModuleNotFoundError) and is_part(error.name, place.module)
    return next((kind for kind in folder_kinds() if kind.explains(error, missing)), None)


def _attribute_of(kind: FolderKind, place: Place) -> type[MCPEnvironment]:
    assert place.attribute is not None
    return kind.load_attribute(place.target, place.module, place.file, place.attribute)


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
