"""Make rubrics from plain data. Names are looked up among the given ones and those of extensions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mcpenv.entry_points import entries_of, load_entry
from mcpenv.errors import ConfigurationError, InvalidRubric, meant

from .composites import Gate, Sequence, WeightedSum
from .discounting import Discounted, OverSteps
from .rubric import FunctionRubric, Rubric, signature_of
from .verified import Verified

BUILT_IN: tuple[type[Rubric], ...] = (
    WeightedSum,
    Gate,
    Sequence,
    OverSteps,
    Discounted,
    FunctionRubric,
    Verified,
)

ENTRY_POINTS = "mcpenv.rubrics"
"""The entry-point group of further classes of rubrics, by the names of the classes."""

_FIELDS = {"rubric", "name", "arguments"}


def rubric_from_config(config: Mapping[str, Any], known: Iterable[Callable[..., Any]] = ()) -> Rubric:
    """Return the rubric that `Rubric.to_config` described.

    Args:
        config: plain data, as read from JSON or YAML.
        known: the classes of rubrics and the functions that it may name, besides those of mcpenv and of entry points.

    Raises:
        InvalidRubric: if a name is unknown, its entry point cannot be loaded, or arguments do not fit.
    """
    names: dict[str, Any] = {cls.__name__: cls for cls in BUILT_IN}
    for each in known:
        name = getattr(each, "__name__", None)
        if name is None:
            raise InvalidRubric("known", f"a {type(each).__name__} has no name. Give classes and named functions")
        if _named(names, name) not in (None, each):
            raise InvalidRubric(name, "two classes or functions have this name. Rename one")
        names[name] = each
    return _rubric(config, names, "rubric")


def _named(names: Mapping[str, Any], name: str) -> Any:
    """Return the class or function of a name; None if there is none.

    Raises:
        InvalidRubric: its entry point cannot be loaded.
    """
    entry = entries_of(ENTRY_POINTS).get(name)
    if name in names or entry is None:
        return names.get(name)
    try:
        return load_entry(entry, "the rubric")
    except ConfigurationError as error:
        raise InvalidRubric(name, str(error)) from error


def _rubric(config: Any, names: Mapping[str, Any], path: str) -> Rubric:
    if not isinstance(config, Mapping) or not isinstance(config.get("rubric"), str):
        raise InvalidRubric(path, "it must be an object with the name of a class under 'rubric'")
    if unknown := sorted(map(str, config.keys() - _FIELDS)):
        raise InvalidRubric(path, f"unknown fields: {', '.join(unknown)}")
    name, arguments = config["rubric"], config.get("arguments", {})
    cls = _named(names, name)
    if not (isinstance(cls, type) and issubclass(cls, Rubric)):
        classes = {each for each, found in names.items() if isinstance(found, type)} | entries_of(ENTRY_POINTS).keys()
        known = ", ".join(sorted(classes)) + meant(name, sorted(classes))
        raise InvalidRubric(path, f"there is no rubric {name!r}; known: {known}")
    if not isinstance(arguments, Mapping):
        raise InvalidRubric(path, "'arguments' must be an object")
    given = {key: _value(value, names, f"{path}.{key}") for key, value in arguments.items()}
    positional: list[Any] = []
    for parameter in signature_of(cls).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            # Parameters before *args can only be passed by position.
            positional.extend(given.pop(parameter.name, ()))
        elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY and parameter.name in given:
            positional.append(given.pop(parameter.name))
    try:
        rubric: Rubric = cls(*positional, **given)
    except (TypeError, ValueError) as error:
        raise InvalidRubric(path, f"{name}: {error}") from error
    called = config.get("name")
    if called is not None and not isinstance(called, str):
        raise InvalidRubric(path, "'name' must be text")
    return rubric if called is None else rubric.called(called)


def _value(value: Any, names: Mapping[str, Any], path: str) -> Any:
    if isinstance(value, Mapping):
        if "rubric" in value:
            return _rubric(value, names, path)
        if "function" in value:
            function = names.get(value["function"]) if len(value) == 1 else None
            if function is None or isinstance(function, type):
                raise InvalidRubric(path, f"there is no function {value['function']!r} among those known")
            return function
        return {name: _value(item, names, f"{path}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_value(item, names, f"{path}[{index}]") for index, item in enumerate(value)]
    return value
