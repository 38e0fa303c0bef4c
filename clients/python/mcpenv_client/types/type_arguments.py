"""The arguments of a generic class, given by ``G[A, B]()`` or by ``class C(G[A, B])``."""

from __future__ import annotations

from typing import Any, get_args, get_origin


def type_arguments(instance: object, generic: type[Any]) -> tuple[Any, ...]:
    """Return the arguments of ``generic`` for ``instance``. A parameter without an argument remains a `TypeVar`."""
    alias = getattr(instance, "__orig_class__", None)  # set by typing after __init__
    return _of_class(type(instance), generic) if alias is None else _of_alias(alias, generic)


def _of_alias(alias: Any, generic: type[Any]) -> tuple[Any, ...]:
    origin, given = get_origin(alias), get_args(alias)
    if origin is generic:
        return given
    named = dict(zip(origin.__parameters__, given, strict=False))
    return tuple(named.get(argument, argument) for argument in _of_class(origin, generic))


def _of_class(cls: type[Any], generic: type[Any]) -> tuple[Any, ...]:
    if cls is not generic:
        for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
            origin = get_origin(base) or base
            if isinstance(origin, type) and issubclass(origin, generic):
                return _of_class(base, generic) if origin is base else _of_alias(base, generic)
    parameters: tuple[Any, ...] = generic.__parameters__
    return parameters
