"""The object in a module that a target names: an environment's class, a factory, or a rubric."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fastmcp import FastMCP

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import TargetError
from mcpenv.rewards.rubrics import Rubric
from mcpenv.rewards.rubrics.episode_rubric import refuse_silent

from .place import Place, called, find_place
from .user_error import describe
from .user_module import load_module


def pick(place: Place, module: ModuleType) -> Any:
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
        raise TargetError(place.target, f"there is no {place.attribute!r} in {called(place)}{known}")
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


def _object(target: str) -> tuple[Any, Path | None]:
    """Return the object that ``module:NAME`` or ``file.py:NAME`` names, of any type, and the folder of its code.

    Raises:
        TargetError: there is no such object, or the code does not load (``__cause__``).
    """
    place = find_place(target)
    if place.attribute is None:
        raise TargetError(target, "the name of an object is missing; write MODULE:NAME or FILE.py:NAME")
    module = load_module(place)
    try:
        found = getattr(module, place.attribute)
    except AttributeError as error:
        raise TargetError(target, f"there is no {place.attribute!r} in {called(place)}") from error
    return found, place.file.parent if place.file is not None else None


def load_rubric(target: str) -> Rubric:
    """Return the rubric that ``target`` names, or that the named class or function makes without arguments.

    Raises:
        TargetError: it is not found, its code does not load, it is not a rubric, or the rubric never scores.
    """
    found, folder = _object(target)
    if isinstance(found, Rubric):
        return _scoring(target, found)
    if not callable(found):
        raise TargetError(target, f"it is a {type(found).__name__}, neither a rubric nor a callable that makes one")
    try:
        made = found()
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise TargetError(target, f"it raised {describe(error, folder)}") from error
    if not isinstance(made, Rubric):
        raise TargetError(target, f"it returned a {type(made).__name__}, not a Rubric")
    return _scoring(target, made)


def _scoring(target: str, rubric: Rubric) -> Rubric:
    try:
        refuse_silent(rubric)
    except TypeError as error:
        raise TargetError(target, str(error)) from error
    return rubric


def _only(place: Place, module: ModuleType, own: Mapping[str, type[MCPEnvironment]]) -> type[MCPEnvironment]:
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
    raise TargetError(place.target, f"{called(place)} defines no MCPEnvironment subclass{hint}")


def _classes(module: ModuleType) -> dict[str, type[MCPEnvironment]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, MCPEnvironment) and value is not MCPEnvironment
    }


__all__ = ["load_rubric", "pick"]
