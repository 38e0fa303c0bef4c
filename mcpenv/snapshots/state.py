"""The state of an instance: what of the author's objects a snapshot holds, and how it is put into an instance."""

from __future__ import annotations

import re
import sqlite3
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import PurePath
from typing import Any, ClassVar, NoReturn, Protocol

from mcpenv_client.errors import NotSupported

from ..rubrics.rubric import Rubric
from ..toolbox import BOTH_MODES, Toolbox
from ..worlds import FilesWorld, World
from .frozen import CannotFreeze, CannotThaw, freeze, thaw, with_places
from .hidden import hidden_state
from .known import PLAIN, Known
from .snapshot import HeldState

OF_THE_FRAMEWORK = frozenset({"_execution", "_shared", "_arguments", "_mcp_server", "rubric", "world"})
"""Attributes of an instance that are not its author's state."""


class Holder(Protocol):
    """An environment, as far as its state goes."""

    rubric: Rubric | None
    world: World | Mapping[str, World] | None
    _shared: Any
    _own_state: ClassVar[bool]

    def save_state(self) -> Any:
        """What to hold."""
        ...

    def load_state(self, state: Any) -> Any:
        """Be as it was."""
        ...


class InstanceState:
    """The author's state of one instance: held as bytes, or put in the place of what it is.

    In the author's thread: worlds and attributes are the author's objects.

    Args:
        env: the instance.
        tools: its tools.
        rubrics: the episode's rubric and all that it is made of; empty without one.
        others: further objects that belong to the instance, by name.
    """

    def __init__(self, env: Holder, tools: Toolbox, rubrics: list[Rubric], others: Mapping[str, object]) -> None:
        self._env = env
        self._tools = tools
        self._rubrics = rubrics
        self._worlds = worlds_of(env)
        self._known = Known()
        for name, known in self._belongings(others):
            self._known.add(name, known)

    # -- to hold

    def hold(self, save_state: Callable[[], Any], kept: dict[str, Any]) -> HeldState:
        """The state as bytes.

        Args:
            save_state: gives what to hold of the environment.
            kept: what tools kept by ``ctx.set_state``.

        Raises:
            NotSupported: some part of it cannot be held; it says which, and what to do.
        """
        if not self._env._own_state:
            self._refuse_hidden()
        state = save_state()
        if isinstance(state, dict):
            state = {name: with_places(value, self._known) for name, value in state.items()}
        parts = {"state": state, "kept": kept, "rubric": [each.save_state() for each in self._rubrics]}
        try:
            frozen = freeze(parts, self._known)
        except CannotFreeze as error:
            self._refuse_unpicklable(error)
        return HeldState(
            frozen,
            {name: world.save() for name, world in self._worlds.items()},
            frozenset(name for name, _ in attributes_of(self._env)),
            rubric_classes(self._rubrics),
            tool_names(self._tools),
        )

    # -- to put

    def read(self, held: HeldState) -> dict[str, Any]:
        """The parts, made for this instance; nothing in it has changed.

        Raises:
            NotSupported: the instance is not of the kind that the state is of.
        """
        if held.worlds.keys() != self._worlds.keys():
            raise NotSupported(
                f"the snapshot has {_listed(held.worlds)}, and this instance {_listed(self._worlds)}: set the same "
                "worlds in __init__ or in reset"
            )
        if held.rubrics != rubric_classes(self._rubrics):
            raise NotSupported("the snapshot was scored by another rubric than this instance has")
        try:
            return thaw(held.parts, self._known)
        except CannotThaw as error:
            raise NotSupported(f"the snapshot does not fit this instance: {error}") from error

    def put(self, held: HeldState, parts: dict[str, Any]) -> None:
        """Put all but what ``load_state`` does; what fails on the way leaves an instance that needs a reset."""
        for name, world in self._worlds.items():
            world.load(held.worlds[name])
        for name, value in attributes_of(self._env):
            if name not in held.attributes and not stays(value, self._known):
                delattr(self._env, name)
        for rubric, state in zip(self._rubrics, parts["rubric"], strict=True):
            rubric.load_state(state)

    def arrange_tools(self, held: HeldState) -> None:
        """Have the tools that there were.

        Raises:
            NotSupported: naming those that nobody but the author can register.
        """
        for mode in BOTH_MODES:
            missing = self._tools.arrange(mode, held.tools[mode.value])
            if missing:
                raise NotSupported(
                    f"{', '.join(map(repr, missing))} was registered in the course of the episode, and this instance "
                    "has no such tool: register it in load_state, after super().load_state(state)"
                )

    # -- inside

    def _belongings(self, others: Mapping[str, object]) -> Iterator[tuple[str, object]]:
        yield "environment", self._env
        yield from others.items()
        yield from _shared_with_all(self._env._shared)
        for name, world in self._worlds.items():
            yield f"world {name}".rstrip(), world
            for index, held in enumerate(held_by(world)):
                yield f"world {name}/{index}", held
        for index, rubric in enumerate(self._rubrics):
            yield f"rubric {index}", rubric
            for number, given in enumerate(_given_to(rubric)):
                yield f"rubric {index}/{number}", given
        template = self._env.rubric
        if isinstance(template, Rubric):
            for index, rubric in enumerate(template._all()):
                yield f"template {index}", rubric

    def _refuse_hidden(self) -> None:
        for mode in BOTH_MODES:
            for tool in self._tools.listed(mode):
                found = hidden_state(tool.fn, self._known)
                if found is not None:
                    raise NotSupported(
                        f"{type(self._env).__name__} cannot be held: its tool {tool.kind.name!r} remembers something "
                        f"in {found}; keep that in an attribute of self, and read it from there, or define save_state "
                        "and load_state"
                    )

    def _refuse_unpicklable(self, error: CannotFreeze) -> NoReturn:
        advice = "leave it out in save_state and make it anew in load_state, or keep it elsewhere"
        if isinstance(error.part, sqlite3.Connection):
            advice = "say that it is the environment's world: self.world = SQLiteWorld(connection)"
        raise NotSupported(
            f"{type(self._env).__name__} cannot be held: {_in_words(error.path)} cannot be pickled ({error.reason}); "
            f"{advice}"
        ) from error


def default_state(env: Holder) -> dict[str, Any]:
    """What `MCPEnvironment.save_state` gives: the attributes of the author's, by name."""
    held = Known()
    for name, world in worlds_of(env).items():
        for index, each in enumerate(held_by(world)):
            held.add(f"{name}/{index}", each)
    return {name: value for name, value in attributes_of(env) if not stays(value, held)}


def load_default_state(env: Holder, state: dict[str, Any]) -> None:
    """What `MCPEnvironment.load_state` does."""
    for name, value in state.items():
        setattr(env, name, value)


def stays(value: Any, known: Known) -> bool:
    """Whether an attribute is the instance's own: what a world holds, or the temporary folder that it is in."""
    if isinstance(value, tempfile.TemporaryDirectory):
        return known.place_of(PurePath(value.name)) is not None
    return known.name_of(value) is not None


def worlds_of(env: Holder) -> dict[str, World]:
    """The worlds of an environment by name; one alone is called ""."""
    if env.world is None:
        return {}
    return dict(env.world) if isinstance(env.world, Mapping) else {"": env.world}


def held_by(world: World) -> list[object]:
    """What a world holds, and where it is: the folder of files, the file of a database."""
    found = list(world.held())
    if isinstance(world, FilesWorld):
        found.append(world.folder)
    for each in world.held():
        if isinstance(each, sqlite3.Connection):
            with closing(each.cursor()) as cursor:
                cursor.row_factory = None
                found.extend(file for _, _, file in cursor.execute("PRAGMA database_list") if file)
    return found


def attributes_of(env: Holder) -> list[tuple[str, Any]]:
    """The author's attributes, slots among them."""
    found = dict(vars(env))
    for cls in type(env).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType) and hasattr(env, name):
                found[name] = getattr(env, name)
    return [(name, value) for name, value in found.items() if name not in OF_THE_FRAMEWORK]


def rubric_classes(rubrics: list[Rubric]) -> tuple[str, ...]:
    """What has to be the same for their state to fit."""
    return tuple(type(each).__qualname__ for each in rubrics)


def tool_names(tools: Toolbox) -> dict[str, tuple[str, ...]]:
    """The names of the tools of each mode."""
    return {mode.value: tuple(tool.kind.name for tool in tools.listed(mode)) for mode in BOTH_MODES}


def _shared_with_all(shared: Any) -> Iterator[tuple[str, object]]:
    """What ``lifespan`` gave, and its parts, to which authors' attributes point."""
    yield "shared", shared
    parts = shared if isinstance(shared, dict) else getattr(shared, "__dict__", {})
    for name, part in parts.items():
        yield f"shared/{name}", part


def _given_to(rubric: Rubric) -> Iterator[object]:
    """The objects among a rubric's arguments: configuration, which its copies share."""
    args, kwargs = rubric._arguments
    stack: list[Any] = [*kwargs.values(), *args]
    while stack:
        value = stack.pop()
        if isinstance(value, list | tuple | set):
            stack.extend(value)
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif not isinstance(value, (Rubric, *PLAIN)):
            yield value


def _listed(worlds: Mapping[str, Any]) -> str:
    if not worlds:
        return "no world"
    return "a world" if worlds.keys() == {""} else "the worlds " + ", ".join(map(repr, worlds))


_ATTRIBUTE = re.compile(r"^\['state'\](?:\['(\w+)'\])?")


def _in_words(path: str) -> str:
    """Where in the author's code a part stands."""
    if path.startswith("['kept']"):
        return "what was kept by ctx.set_state, " + path.removeprefix("['kept']")
    if path.startswith("['rubric']"):
        return "the state of the rubric, " + path.removeprefix("['rubric']")
    found = _ATTRIBUTE.match(path)
    if found is None:
        return "its state"
    return f"self.{found.group(1)}{path[found.end() :]}" if found.group(1) else f"what save_state gave, {path[9:]}"
