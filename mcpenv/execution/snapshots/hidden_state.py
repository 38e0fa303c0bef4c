"""Find state that tools keep outside the environment's attributes, where a snapshot would miss it.

A tool is a closure. A variable of the function that registered it may be a list, or be set by ``nonlocal``. Restoring
attributes would not restore such a variable. So such variables are found and reported before a snapshot is taken.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import dis
import enum
import functools
import logging
import re
import types
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from .references import PLAIN, Known

_FIXED = (
    *PLAIN,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.GenericAlias,
    enum.Enum,
    PurePath,
    re.Pattern,
    range,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    logging.Logger,
)
"""Immutable types."""


def hidden_state(fn: Callable[..., Any], known: Known) -> str | None:
    """Return a description of the state that a tool keeps outside the environment's attributes, or None."""
    return next(_found(fn, known, set()), None)


def _found(fn: Any, known: Known, seen: set[int]) -> Iterator[str]:
    if id(fn) in seen or known.name_of(fn) is not None:
        return
    seen.add(id(fn))
    if isinstance(fn, functools.partial):
        yield from _found(fn.func, known, seen)
        for value in (*fn.args, *fn.keywords.values()):
            if not _is_fixed(value, known):
                yield f"the {type(value).__name__} that it is given by functools.partial"
    elif isinstance(fn, types.MethodType):
        if not _is_fixed(fn.__self__, known):
            yield f"the {type(fn.__self__).__name__} whose method it is"
        yield from _found(fn.__func__, known, seen)
    elif isinstance(fn, types.FunctionType):
        yield from _in_closure(fn, known, seen)
    elif not _is_fixed(fn, known):
        yield f"the {type(fn).__name__} that is called"


def _in_closure(fn: types.FunctionType, known: Known, seen: set[int]) -> Iterator[str]:
    rebound = _rebound(fn.__code__)
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            continue  # the variable is not set, so it has no state
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, types.FunctionType | types.MethodType | functools.partial):
                yield from _found(part, known, seen)
            elif name in rebound or not _is_fixed(part, known):
                yield f"the variable {name!r} of the function around it"


def _is_fixed(value: Any, known: Known) -> bool:
    if isinstance(value, _FIXED) or known.name_of(value) is not None:
        return True
    if isinstance(value, tuple | frozenset):
        return all(_is_fixed(item, known) for item in value)
    if isinstance(value, BaseModel):
        return bool(value.model_config.get("frozen")) and all(_is_fixed(part, known) for _, part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parameters: Any = getattr(value, "__dataclass_params__", None)
        return parameters.frozen and all(_is_fixed(getattr(value, f.name), known) for f in dataclasses.fields(value))
    return False


@functools.lru_cache(maxsize=4096)
def _rebound(code: types.CodeType) -> frozenset[str]:
    """Return the free variables that the code sets (``nonlocal``), including its nested functions."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_DEREF"}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found |= _rebound(inner)
    return frozenset(found & set(code.co_freevars))
