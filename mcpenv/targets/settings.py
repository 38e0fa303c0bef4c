"""Settings of a target: bind ``--set name=value`` to the parameters of its constructor or factory."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from pydantic import ConfigDict, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import from_json

from mcpenv.environment import MCPEnvironment
from mcpenv.errors import TargetError, meant
from mcpenv.redaction import hide
from mcpenv_client.wire.faults import describe_fault, faults

_SECRET_NAME = re.compile(r"(?i)(token|secret|passw(or)?d|credential|api_?key|private_?key)s?$")
_SECRET_TYPES = {SecretStr, SecretBytes}


def bind(target: str, made: Any, settings: Iterable[str], values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return keyword arguments from ``name=value`` texts. Values of secrets are kept out of the logs.

    A setting is secret if its type is `SecretStr` or `SecretBytes`, or if its name indicates a secret (``api_key``,
    ``password``). The annotation of ``**settings`` applies to settings without a parameter of their own.

    Args:
        values: further arguments as Python values, which are passed unchanged.

    Raises:
        TargetError: a name is unknown, a value is invalid, or a required argument has no value.
    """
    parameters, others = _parameters(made)
    bound: dict[str, Any] = dict(values or {})
    known = f"there are: {', '.join(parameters) or 'none'}"
    for name in bound:
        if name not in parameters and others is None:
            raise TargetError(target, f"there is no setting {name!r} ({known}){meant(name, parameters)}")
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise TargetError(target, f"--set {setting}: write name=value")
        annotation = parameters[name].annotation if name in parameters else others
        shown = setting
        if is_secret(name, annotation):
            shown = f"{name}=***"
            if not text.isdecimal():
                hide(text)
        if name not in parameters and others is None:
            raise TargetError(target, f"--set {shown}: there is no setting {name!r} ({known}){meant(name, parameters)}")
        try:
            bound[name] = _value(Any if annotation is inspect.Parameter.empty else annotation, text)
        except ValidationError as error:
            problems = "; ".join(dict.fromkeys(describe_fault(fault, "") for fault in faults(error)))
            raise TargetError(target, f"--set {shown}: {problems}") from error
    missing = [name for name, p in parameters.items() if p.default is p.empty and name not in bound]
    if missing:
        raise TargetError(target, f"needs {' '.join(f'--set {name}=VALUE' for name in missing)}")
    return bound


def is_secret(name: str, annotation: Any = Any) -> bool:
    """Return True if the value of a setting of that name and type is kept out of logs."""
    return _SECRET_NAME.search(name) is not None or bool({annotation, *typing.get_args(annotation)} & _SECRET_TYPES)


def _parameters(made: Any) -> tuple[dict[str, inspect.Parameter], Any]:
    """Return the named parameters with their hints resolved, and the hint of others; None if there may be no others."""
    function: Any = inspect.getattr_static(made, "__init__") if isinstance(made, type) else made
    if function is MCPEnvironment.__init__:
        return {}, None
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return {}, Any
    if isinstance(made, type):
        parameters = parameters[1:]
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        hints = {}  # names defined only for type checkers: read such values as JSON or plain text
    named = {
        p.name: p.replace(annotation=hints.get(p.name, Any))
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    others = [hints.get(p.name, Any) for p in parameters if p.kind is p.VAR_KEYWORD]
    return named, others[0] if others else None


def _value(annotation: Any, text: str) -> Any:
    """Return ``text`` as a value of the annotation: read as JSON if that fits, else as plain text.

    For ``str`` and paths, ``text`` is never read as JSON.

    Raises:
        ValidationError: neither fits.
    """
    adapter = _adapter(annotation)
    base = annotation.__origin__ if typing.get_origin(annotation) is typing.Annotated else annotation
    if base is str or (isinstance(base, type) and issubclass(base, PurePath)):
        return adapter.validate_python(text)
    try:
        value = from_json(text)
    except ValueError:
        return adapter.validate_python(text)
    try:
        return adapter.validate_python(value)
    except ValidationError as as_json:
        try:
            return adapter.validate_python(text)
        except ValidationError:
            raise as_json from None


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation)
    except PydanticSchemaGenerationError:
        pass
    except (PydanticUserError, NameError, TypeError):
        return TypeAdapter(Any)
    try:
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticUserError, NameError, TypeError):
        return TypeAdapter(Any)
