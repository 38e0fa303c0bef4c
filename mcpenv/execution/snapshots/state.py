"""Save the author's state of an instance for a snapshot, and load it into an instance."""

from __future__ import annotations

import re
import sqlite3
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NoReturn

from mcpenv.rewards.rubrics.rubric import Rubric
from mcpenv.tools.registry import BOTH_MODES, ToolRegistry
from mcpenv.worlds import World
from mcpenv_client.errors import NotSupported

from .hidden_state import hidden_state
from .pickling import CannotFreeze, CannotThaw, freeze, thaw, with_places
from .references import PLAIN, Known
from .snapshot import HeldState

if TYPE_CHECKING:
    from mcpenv.environment import MCPEnvironment
    from mcpenv.execution.instance import Instance

OF_THE_FRAMEWORK = frozenset({"_execution", "_mcp_server", "rubric", "world"})
"""Attributes of an instance that are not state of the author."""


class InstanceState:
    """The author's state of one instance, to be saved as bytes or replaced.

    Use it in the thread of user code, because worlds and attributes are the author's objects.

    Args:
        instance: the instance.
        rubrics: the episode's rubric and all of its parts; empty without a rubric.
    """

    def __init__(self, instance: Instance, rubrics: list[Rubric]) -> None:
        self._instance = instance
        self._env = instance.env
        self._tools = instance.tools
        self._rubrics = rubrics
        self._worlds = worlds_of(instance.env)
        self._known = Known()
        for name, known in self._belongings():
            self._known.add(name, known)

    # -- save

    def hold(self, save_state: Callable[[], Any], kept: dict[str, Any]) -> HeldState:
        """Return the state as bytes.

        Args:
            save_state: returns the environment's state.
            kept: the values of ``ctx.set_state``.

        Raises:
            NotSupported: if some part cannot be saved; the text names the part and the remedy.
        """
        if not self._instance.hooks.saves_state:
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

    # -- restore

    def read(self, held: HeldState) -> dict[str, Any]:
        """Load the parts for this instance, without changing the instance.

        Raises:
            NotSupported: if the state does not fit the instance.
        """
        if held.worlds.keys() != self._worlds.keys():
            raise NotSupported(
                f"the snapshot has {_listed(held.worlds)}, and this instance {_listed(self._worlds)}. Set the same "
                "worlds in __init__ or in reset"
            )
        if held.rubrics != rubric_classes(self._rubrics):
            raise NotSupported("the snapshot's rubric has other classes than this instance's rubric")
        try:
            return thaw(held.parts, self._known)
        except CannotThaw as error:
            raise NotSupported(f"the snapshot does not fit this instance: {error}") from error

    def put(self, held: HeldState, parts: dict[str, Any]) -> None:
        """Restore everything except the part of ``load_state``. If this fails, the instance needs a reset."""
        for name, world in self._worlds.items():
            world.load(held.worlds[name])
        for name, value in attributes_of(self._env):
            if name not in held.attributes and not stays(value, self._known):
                delattr(self._env, name)  # not set when the snapshot was taken
        for rubric, state in zip(self._rubrics, parts["rubric"], strict=True):
            rubric.load_state(state)

    def arrange_tools(self, held: HeldState) -> None:
        """Restore the set of tools.

        Raises:
            NotSupported: with the tools that only the author can register.
        """
        for mode in BOTH_MODES:
            missing = self._tools.arrange(mode, held.tools[mode.value])
            if missing:
                raise NotSupported(
                    f"{', '.join(map(repr, missing))} was registered during the episode, and this instance has no such "
                    "tool. Register it in load_state, after super().load_state(state)"
                )

    # -- inside

    def _belongings(self) -> Iterator[tuple[str, object]]:
        yield "environment", self._env
        yield "instance", self._instance
        yield "server", self._instance.server
        yield from _shared_with_all(self._instance.shared)
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
                        f"{type(self._env).__name__} cannot be saved: its tool {tool.kind.name!r} keeps state in "
                        f"{found}. Keep it in an attribute of self, and read it from there, or define save_state "
                        "and load_state"
                    )

    def _refuse_unpicklable(self, error: CannotFreeze) -> NoReturn:
        advice = "Leave it out in save_state and make it again in load_state, or keep it elsewhere"
        if isinstance(error.part, sqlite3.Connection):
            advice = "Make it the environment's world: self.world = SQLiteWorld(connection)"
        raise NotSupported(
            f"{type(self._env).__name__} cannot be saved: {_in_words(error.path)} cannot be pickled ({error.reason}). "
            f"{advice}"
        ) from error


def default_state(env: MCPEnvironment) -> dict[str, Any]:
    """Return the default value of `MCPEnvironment.save_state`: the author's attributes by name."""
    held = Known()
    for name, world in worlds_of(env).items():
        for index, each in enumerate(held_by(world)):
            held.add(f"{name}/{index}", each)
    return {name: value for name, value in attributes_of(env) if not stays(value, held)}


def load_default_state(env: MCPEnvironment, state: dict[str, Any]) -> None:
    """Implement the default of `MCPEnvironment.load_state`."""
    for name, value in state.items():
        setattr(env, name, value)


def stays(value: Any, known: Known) -> bool:
    """Return True if an attribute belongs to the instance: an object of a world, or a world's temporary folder."""
    if isinstance(value, tempfile.TemporaryDirectory):
        return known.place_of(PurePath(value.name)) is not None
    return known.name_of(value) is not None


def worlds_of(env: MCPEnvironment) -> dict[str, World]:
    """Return the worlds of an environment by name; the name of a single world is ""."""
    if env.world is None:
        return {}
    return dict(env.world) if isinstance(env.world, Mapping) else {"": env.world}


def held_by(world: World) -> list[object]:
    """Return the objects that a world holds, and its location: the folder of files, the file of a database."""
    found = list(world.held())
    for each in world.held():
        if isinstance(each, sqlite3.Connection):
            with closing(each.cursor()) as cursor:
                cursor.row_factory = None
                found.extend(file for _, _, file in cursor.execute("PRAGMA database_list") if file)
    return found


def attributes_of(env: MCPEnvironment) -> list[tuple[str, Any]]:
    """Return the author's attributes, including slots."""
    found = dict(vars(env))
    for cls in type(env).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType) and hasattr(env, name):
                found[name] = getattr(env, name)
    return [(name, value) for name, value in found.items() if name not in OF_THE_FRAMEWORK]


def rubric_classes(rubrics: list[Rubric]) -> tuple[str, ...]:
    """Return the names of the classes. States of rubrics fit only if they are equal."""
    return tuple(type(each).__qualname__ for each in rubrics)


def tool_names(tools: ToolRegistry) -> dict[str, tuple[str, ...]]:
    """Return the names of the tools of each mode."""
    return {mode.value: tuple(tool.kind.name for tool in tools.listed(mode)) for mode in BOTH_MODES}


def _shared_with_all(shared: Any) -> Iterator[tuple[str, object]]:
    """Yield the value of ``lifespan`` and its parts, to which attributes may refer."""
    yield "shared", shared
    parts = shared if isinstance(shared, dict) else getattr(shared, "__dict__", {})
    for name, part in parts.items():
        yield f"shared/{name}", part


def _given_to(rubric: Rubric) -> Iterator[object]:
    """Yield the objects among a rubric's arguments: configuration, which its copies share."""
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
    """Describe the location of a part in terms of the author's code."""
    if path.startswith("['kept']"):
        return "the value of ctx.set_state, " + path.removeprefix("['kept']")
    if path.startswith("['rubric']"):
        return "the state of the rubric, " + path.removeprefix("['rubric']")
    found = _ATTRIBUTE.match(path)
    if found is None:
        return "its state"
    return f"self.{found.group(1)}{path[found.end() :]}" if found.group(1) else f"the value of save_state, {path[9:]}"
