"""Read the source of a tool: its function, its resolved type hints, and the facts that decide about its schema.

Tools are often defined again for every instance. The caches of FastMCP and uncalled_for keep every function they parse.
So a tool is parsed once for equal facts, through a twin that does not refer to the instance. If in doubt, the
comparison finds a difference: a false difference costs a parse, a false match would give one instance the schema of
another.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable
from typing import Any

from fastmcp import Context
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

_SCALARS = (type(None), bool, int, float, complex, str, bytes)


class ToolSource:
    """The facts about the function of a tool that decide about its schema.

    Args:
        fn: the function, or another callable.
        frame: the frame that registers the tool, in the framework or in the author's code. Textual hints may use the
            local names of the author's frame besides the module's.

    Attributes:
        facts: equal (`same`) for functions with the same schema, validation and kind of call, if `meanings` are equal.
        doc: the docstring of the function, of a partial's function, or of a callable object's class.
        outer: the function that is called.
        function: the function inside decorators, which has the annotations.
    """

    __slots__ = ("_fn", "_frame", "_words", "doc", "facts", "function", "outer")

    def __init__(self, fn: Callable[..., Any], frame: types.FrameType | None) -> None:
        self._fn, self._frame = fn, frame
        bound: list[Any] = []
        while isinstance(fn, functools.partial):
            bound += (len(fn.args), fn.keywords)
            fn = fn.func
        self.doc = docstring_of(fn)
        if isinstance(fn, types.MethodType):
            bound.append("method")
            fn = fn.__func__
        elif not isinstance(fn, types.FunctionType) and not inspect.isroutine(fn) and not inspect.isclass(fn):
            bound.append("object")
            fn = type(fn).__call__
        self.outer = fn
        function: Any = inspect.unwrap(fn) if hasattr(fn, "__wrapped__") else fn
        hints = getattr(function, "__annotations__", None) or {}
        self.function = function
        self._words = _words_of(tuple([hint for hint in hints.values() if isinstance(hint, str)]))
        plain = isinstance(function, types.FunctionType)
        # A built-in method is equal to no other, as it refers to its object.
        of_code = (function.__code__, function.__defaults__, function.__kwdefaults__) if plain else (object(),)
        self.facts = [*of_code, self.doc, *hints, *hints.values(), getattr(fn, "__code__", None), *bound]
        given = getattr(fn, "__signature__", None)
        if given is not None:
            parameters = ((each.name, each.kind, each.default, each.annotation) for each in _all(given))
            self.facts.append((given.return_annotation, *parameters))

    def signature(self) -> inspect.Signature:
        """Return the signature with its hints resolved, without ``self``.

        Raises:
            NameError: a hint uses an unknown name.
            TypeError, ValueError: the function has no signature.
        """
        signature = inspect.signature(self._fn)
        meanings = zip(self._words, self.meanings(local=self.local), strict=True)
        names = {word: meaning for word, meaning in meanings if meaning is not None}
        try:
            hints = typing.get_type_hints(self.function, localns=names or None, include_extras=True)
        except NameError:  # a name inside of nested quotes
            hints = typing.get_type_hints(self.function, localns=self._around(), include_extras=True)
            self.facts = [object(), *self.facts]  # equal to no others
        parameters = [
            p if p.annotation is p.empty else p.replace(annotation=hints.get(p.name, p.annotation))
            for p in _all(signature)
        ]
        returns = hints.get("return", signature.return_annotation)
        return signature.replace(parameters=parameters, return_annotation=returns)

    def culprit(self) -> str | None:
        """Return the parameter, or "return", whose hint has no JSON Schema; None if every hint alone has one."""
        for name, hint in (getattr(self.function, "__annotations__", None) or {}).items():
            alone = types.SimpleNamespace(__annotations__={name: hint})
            try:
                read = typing.get_type_hints(alone, self.function.__globals__, self._around(), include_extras=True)[
                    name
                ]
                if not (isinstance(read, type) and issubclass(read, Context)):
                    TypeAdapter(read).json_schema()
            except Exception:  # noqa: BLE001 - evaluating a hint, and the schema of its type, run code of the author
                return str(name)
        return None

    @property
    def local(self) -> bool:
        """True if textual hints may use names of the enclosing function, or of the frame that registers the tool."""
        if not self._words:
            return False
        frame = self._author_frame()
        code = self.function.__code__ if frame is None else frame.f_code
        around = {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *self.function.__code__.co_freevars}
        return not around.isdisjoint(self._words)

    def meanings(self, *, local: bool) -> list[Any]:
        """Return the objects that names in textual hints refer to; None for unknown names.

        Args:
            local: as `local`. Names of an enclosing function take precedence over names of the module, which take
                precedence over names of any other frame.
        """
        if not self._words:
            return []
        names = self.function.__globals__
        if local:
            encloses = self.function.__qualname__.rpartition(".")[0].endswith("<locals>")
            names = {**names, **self._around()} if encloses else {**self._around(), **names}
        return list(map(names.get, self._words))

    def _author_frame(self) -> types.FrameType | None:
        """Return the author's frame: neither of `MCPEnvironment`, nor of an override of its ``_register``."""
        frame = self._frame
        while frame is not None and (
            frame.f_globals.get("__name__") == "mcpenv.environment" or frame.f_code.co_name == "_register"
        ):
            frame = frame.f_back
        return frame

    def _around(self) -> dict[str, Any]:
        frame = self._author_frame()
        local = {} if frame is None else frame.f_locals
        return {**local, **inspect.getclosurevars(self.function).nonlocals}


def twin_of(source: ToolSource, signature: inspect.Signature, name: str) -> Callable[..., Any]:
    """Return a function that only carries a signature and a docstring, and refers to no instance."""

    def twin(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a tool is called by its own function")

    twin.__signature__ = signature  # type: ignore[attr-defined]
    twin.__annotations__ = {p.name: Any if p.annotation is p.empty else p.annotation for p in _all(signature)}
    if signature.return_annotation is not signature.empty:
        twin.__annotations__["return"] = signature.return_annotation
    twin.__name__ = name
    twin.__qualname__ = getattr(source.function, "__qualname__", name)
    twin.__module__ = getattr(source.function, "__module__", __name__)
    twin.__doc__ = source.doc
    return twin


def docstring_of(fn: Callable[..., Any]) -> str | None:
    """Return the docstring of a function, of a partial's function, or of a callable object's class."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return (
        fn.__doc__
        if isinstance(fn, types.FunctionType) or inspect.isroutine(fn)
        else type(fn).__doc__ or type(fn).__call__.__doc__
    )


def same(one: Any, other: Any) -> bool:
    """Return True if two facts are equal: by structure if it is known, else by identity."""
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, enum.Enum):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and (all(map(operator.is_, one, other)) or all(map(same, one, other)))
    if isinstance(one, _SCALARS):
        return bool(one == other)
    if isinstance(one, set | frozenset):
        return one == other and all(isinstance(item, _SCALARS) for item in one | other)
    if isinstance(one, dict):
        return list(one) == list(other) and same(list(one.values()), list(other.values()))
    if isinstance(one, BaseModel):  # ToolAnnotations, Icon
        return one.model_fields_set == other.model_fields_set and same(vars(one), vars(other))
    if isinstance(one, FieldInfo):
        return all(same(getattr(one, n), getattr(other, n)) for n in FieldInfo.__slots__ if not n.startswith("_"))
    origin = typing.get_origin(one)
    if origin is not None:
        if typing.get_origin(other) is not origin:
            return False
        if origin is typing.Annotated:
            return same(one.__origin__, other.__origin__) and same(one.__metadata__, other.__metadata__)
        return same(typing.get_args(one), typing.get_args(other))
    if isinstance(one, type | types.CodeType | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
        return False
    return _same_value_object(one, other)


def _same_value_object(one: Any, other: Any) -> bool:
    """Compare all fields of small frozen objects such as ``annotated_types.Gt(0)`` or ``Depends(function)``."""
    slots = [vars(cls).get("__slots__", ()) for cls in type(one).__mro__]
    names = [name for each in slots for name in ([each] if isinstance(each, str) else each)]
    mine, theirs = getattr(one, "__dict__", {}), getattr(other, "__dict__", {})
    if mine.keys() != theirs.keys() or not (names or hasattr(one, "__dict__")):
        return False
    pairs = [(getattr(one, name, None), getattr(other, name, None)) for name in (*names, *mine)]
    return all(a is b or (isinstance(a, (*_SCALARS, tuple, frozenset, list, dict)) and same(a, b)) for a, b in pairs)


@functools.lru_cache(4096)
def _words_of(hints: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that textual hints refer to. `ToolSource.signature` reports hints that are no expressions."""
    words: set[str] = set()
    for hint in hints:
        with contextlib.suppress(SyntaxError):
            words.update(compile(hint, "<hint>", "eval").co_names)
    return tuple(words)


def _all(signature: inspect.Signature) -> typing.ValuesView[inspect.Parameter]:
    return signature.parameters.values()
