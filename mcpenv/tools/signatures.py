"""Resolve type hints, and compare signatures.

Tools are often defined anew for every instance. The caches of FastMCP and uncalled_for keep every function they parse.
So a tool is parsed once per kind, through a twin that does not refer to the instance. Comparison errs on the side of
"different": a false difference costs a parse, but a false match would give one instance the schema of another.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_SCALARS = (type(None), bool, int, float, complex, str, bytes)


def function_of(fn: Callable[..., Any]) -> Any:
    """Return the plain function inside ``fn`` that has its annotations and its docstring."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.ismethod(fn):
        fn = fn.__func__
    if not inspect.isroutine(fn) and not inspect.isclass(fn):
        fn = type(fn).__call__
    return inspect.unwrap(fn)


def resolved_signature(fn: Callable[..., Any], scope: Callable[[], dict[str, Any]]) -> tuple[inspect.Signature, bool]:
    """Return the signature of ``fn`` with its hints resolved, without ``self``, and True if ``scope`` was needed.

    Args:
        fn: the function.
        scope: returns names that textual hints may use besides the module's, such as the locals of the constructor
            that defines the tool.

    Raises:
        NameError: if a hint uses an unknown name.
    """
    signature = inspect.signature(fn)
    function = function_of(fn)
    names = _shadowing(function, scope)
    local = bool(names)
    try:
        hints = typing.get_type_hints(function, localns=names or None, include_extras=True)
    except NameError:
        local = True
        closure = inspect.getclosurevars(function).nonlocals
        hints = typing.get_type_hints(function, localns={**scope(), **closure}, include_extras=True)
    parameters = []
    for name, parameter in signature.parameters.items():
        if parameter.annotation is inspect.Parameter.empty:
            parameters.append(parameter)
        else:
            parameters.append(parameter.replace(annotation=hints.get(name, parameter.annotation)))
    returns = signature.return_annotation
    return signature.replace(parameters=parameters, return_annotation=hints.get("return", returns)), local


def _shadowing(function: Any, scope: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the names in textual hints that the enclosing function defines; they shadow the module's names."""
    if not getattr(function, "__qualname__", "").rpartition(".")[0].endswith("<locals>"):
        return {}
    words = names_in(getattr(function, "__annotations__", {}))
    around = {**scope(), **inspect.getclosurevars(function).nonlocals} if words else {}
    return {word: around[word] for word in words if word in around}


def names_in(hints: dict[str, Any]) -> tuple[str, ...]:
    """Return the names that textual hints refer to."""
    found: set[str] = set()
    for hint in hints.values():
        if isinstance(hint, str):
            found.update(compile(hint, "<hint>", "eval").co_names)
    return tuple(found)


def twin_of(fn: Callable[..., Any], signature: inspect.Signature, name: str) -> Callable[..., Any]:
    """Return a function that returns its arguments, with this signature and ``fn``'s docstring, but no instance."""

    def twin(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    function = function_of(fn)
    twin.__signature__ = signature  # type: ignore[attr-defined]
    twin.__annotations__ = {
        p.name: Any if p.annotation is inspect.Parameter.empty else p.annotation for p in signature.parameters.values()
    }
    if signature.return_annotation is not inspect.Signature.empty:
        twin.__annotations__["return"] = signature.return_annotation
    twin.__name__ = name
    twin.__qualname__ = getattr(function, "__qualname__", name)
    twin.__module__ = getattr(function, "__module__", __name__)
    twin.__doc__ = docstring_of(fn)
    return twin


def docstring_of(fn: Callable[..., Any]) -> str | None:
    """Return the docstring of a function, of a partial's function, or of a callable object's class."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn):
        return fn.__doc__
    return type(fn).__doc__ or type(fn).__call__.__doc__


def caller_scope(depth: int) -> dict[str, Any]:
    """Return the local names of the frame ``depth`` above the caller, where a tool is being defined."""
    return dict(sys._getframe(depth + 1).f_locals)


def same_signature(one: inspect.Signature, other: inspect.Signature) -> bool:
    """Return True if two resolved signatures give the same schema and the same validation."""
    if not same(one.return_annotation, other.return_annotation) or len(one.parameters) != len(other.parameters):
        return False
    return all(
        p.name == q.name and p.kind is q.kind and same(p.default, q.default) and same(p.annotation, q.annotation)
        for p, q in zip(one.parameters.values(), other.parameters.values(), strict=True)
    )


def same(one: Any, other: Any) -> bool:
    """Return True if two annotations, defaults or options are equal: by structure if it is known, else by identity."""
    if one is other:
        return True
    if type(one) is dict and type(other) is dict:
        return _same_items(one, other)
    if isinstance(one, type) or isinstance(other, type):
        return _same_generic(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, enum.Enum):
        return False
    if isinstance(one, _SCALARS):
        return bool(one == other)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, set | frozenset):
        return one == other and all(isinstance(item, _SCALARS) for item in one | other)
    if isinstance(one, dict):
        return _same_items(one, other)
    if isinstance(one, BaseModel):  # ToolAnnotations, Icon
        return one.model_fields_set == other.model_fields_set and same(vars(one), vars(other))
    if isinstance(one, FieldInfo):
        return all(same(getattr(one, n), getattr(other, n)) for n in FieldInfo.__slots__ if not n.startswith("_"))
    if typing.get_origin(one) is not None:
        return _same_generic(one, other)
    if isinstance(one, types.FunctionType | types.MethodType | types.BuiltinFunctionType | types.ModuleType):
        return False
    return _same_value_object(one, other)


def _same_items(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if list(one) != list(other):
        return False
    # Every instance compares the hints of each of its tools, and nearly always they are identical objects.
    if all(map(operator.is_, one.values(), other.values())):
        return True
    return all(same(a, b) for a, b in zip(one.values(), other.values(), strict=True))


def _same_generic(one: Any, other: Any) -> bool:
    origin = typing.get_origin(one)
    if origin is None or typing.get_origin(other) is not origin or type(one) is not type(other):
        return False
    if origin is typing.Annotated:
        return same(one.__origin__, other.__origin__) and same(one.__metadata__, other.__metadata__)
    return same(typing.get_args(one), typing.get_args(other))


def _same_value_object(one: Any, other: Any) -> bool:
    """Compare all fields of small frozen objects such as ``annotated_types.Gt(0)`` or ``Depends(function)``."""
    names = [name for cls in type(one).__mro__ for name in _slots_of(cls)]
    if hasattr(one, "__dict__"):
        if vars(one).keys() != vars(other).keys():
            return False
        names += vars(one)
    elif not names:
        return False
    mine = [getattr(one, name, None) for name in names]
    theirs = [getattr(other, name, None) for name in names]
    return all(
        a is b or (isinstance(a, (*_SCALARS, tuple, frozenset, list, dict)) and same(a, b))
        for a, b in zip(mine, theirs, strict=True)
    )


def _slots_of(cls: type) -> list[str]:
    slots = cls.__dict__.get("__slots__", ())
    return [slots] if isinstance(slots, str) else list(slots)
