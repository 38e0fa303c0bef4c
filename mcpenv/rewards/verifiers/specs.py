"""Define verifiers as plain data, as task files contain them."""

from __future__ import annotations

import ast
import functools
import threading
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from mcpenv.errors import InvalidVerifier

from .paths import Pattern
from .patterns import from_plain

MAX_CODE = 256 * 1024
"""Maximum characters of a Python verifier."""


def _a_pattern(text: str) -> str:
    Pattern(text)
    return text


def _as_pairs(given: Any) -> Any:
    return list(given.items()) if isinstance(given, Mapping) else given


def _an_entry(pair: tuple[str, Any]) -> tuple[str, Any]:
    return pair[0], from_plain(pair[1])


PatternText = Annotated[str, AfterValidator(_a_pattern)]
EntryPair = Annotated[tuple[PatternText, Any], AfterValidator(_an_entry)]
EntryPairs = Annotated[list[EntryPair], BeforeValidator(_as_pairs)]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(_Spec):
    """The resource limits of a Python verifier.

    Attributes:
        time_s: seconds, both wall time and processor time, without the start of the sandbox.
        memory_mb: MiB. For "process" it includes the interpreter's own 30 or so.
        files_mb: MiB that it may write into its folder, which is deleted afterwards; "process" only.
    """

    time_s: float = Field(default=10.0, gt=0, le=600)
    memory_mb: int = Field(default=256, ge=16, le=16_384)
    files_mb: int = Field(default=0, ge=0, le=4_096)


class ExpectExactly(_Spec):
    """The spec of `Changes.expect_exactly`. ``changes`` is an object, or a list of pairs."""

    kind: Literal["expect_exactly"]
    changes: EntryPairs
    ignore: list[PatternText] = []


class ExpectOnly(_Spec):
    """The spec of `Changes.expect_only`."""

    kind: Literal["expect_only"]
    changes: EntryPairs
    require: EntryPairs = []
    ignore: list[PatternText] = []


_READING = threading.RLock()
"""Serializes `ast.parse`. CPython 3.11 counts the depth of a syntax tree in a counter that all threads share, so that
concurrent parses may fail with SystemError (python/cpython#106905)."""


@functools.lru_cache(maxsize=64)
def _fault_in(code: str) -> str | None:
    """Return the fault in the code of a verifier, or None. Cached, because each episode parses the same code."""
    try:
        with _READING:
            body = ast.parse(code).body
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError):
        return "it cannot be read as Python"
    if not any(_defines(each, "verify") for each in body):
        return "it defines no function verify(task, before, after, changes)"
    return None


class PythonVerifier(_Spec):
    """The spec of Python code, run in a sandbox. It defines ``verify(task, before, after, changes)``."""

    kind: Literal["python"]
    code: str = Field(min_length=1, max_length=MAX_CODE)
    sandbox: Literal["monty", "process"] = "monty"
    limits: Limits = Limits()
    ignore: list[PatternText] = []

    @field_validator("code", mode="after")
    @classmethod
    def _readable(cls, code: str) -> str:
        """Parse the code, without running it, so that a mistake is reported when the task is read."""
        fault = _fault_in(code)
        if fault is not None:
            raise ValueError(fault)
        return code


Spec = ExpectExactly | ExpectOnly | PythonVerifier

_KINDS = ("expect_exactly", "expect_only", "python")
_ADAPTER: TypeAdapter[Spec] = TypeAdapter(Annotated[Spec, Field(discriminator="kind")])


def parse(spec: Mapping[str, Any], where: str = "verifier") -> Spec:
    """Return a checked verifier spec.

    Args:
        spec: plain data.
        where: the name of the spec in an error.

    Raises:
        InvalidVerifier: with the name of the field.
    """
    if not isinstance(spec, Mapping):
        raise InvalidVerifier(where, f"is a {type(spec).__name__}; a verifier must be an object with a kind")
    if spec.get("kind") not in _KINDS:
        raise InvalidVerifier(f"{where}.kind", f"is {spec.get('kind')!r}; it must be one of {', '.join(_KINDS)}")
    try:
        return _ADAPTER.validate_python(dict(spec))
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"] if part != spec["kind"]]
        raise InvalidVerifier(".".join([where, *path]), _problem(first["msg"])) from error


def _defines(statement: ast.stmt, name: str) -> bool:
    """Return True if the statement binds ``name``, or may bind it."""
    return any(
        (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name)
        for node in ast.walk(statement)
    )


def _problem(message: str) -> str:
    problem = message.removeprefix("Value error, ")
    return problem[:1].lower() + problem[1:]
