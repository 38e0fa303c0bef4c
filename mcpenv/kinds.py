"""Tool kinds: a tool as FastMCP parsed it, once for all the instances that define it alike."""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any

from fastmcp.server.dependencies import without_injected_parameters
from fastmcp.tools.function_tool import FunctionTool
from fastmcp.utilities.types import get_cached_typeadapter

from mcpenv_client.tools import Tool

from .errors import InvalidTool
from .signatures import docstring_of, names_in, resolved_signature, same, same_signature, twin_of

RESERVED_NAMES = frozenset({"reset", "step", "state", "close"})
"""The orchestrator's words: an agent must not find a tool of such a name."""


def check_name(name: str) -> None:
    """Refuse a reserved or unusable tool name.

    Raises:
        InvalidTool: with the reason.
    """
    if name in RESERVED_NAMES:
        raise InvalidTool(name, "the name is reserved for the orchestrator; choose another")
    if not name or name == "<lambda>":
        raise InvalidTool(name, "a tool needs a name; give name=")


@dataclasses.dataclass(frozen=True, slots=True)
class ToolOptions:
    """What ``@self.tool(...)`` was given beside the mode: ours, and FastMCP's own as ``fastmcp``."""

    name: str | None = None
    description: str | None = None
    timeout_s: float | None = None
    terminal: bool = False
    concurrent: bool = False
    fastmcp: dict[str, Any] = dataclasses.field(default_factory=dict)


PLAIN = ToolOptions()
"""Those of ``@self.tool`` without arguments."""

Validate = Callable[[dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


class ToolKind:
    """What instances share of a tool: schema, validator, flags. Holds no instance, so that no cache can.

    Attributes:
        name: the tool's name.
        spec: the tool as agents see it.
        component: FastMCP's parse of the twin; lists and converts results, is never called.
        is_async: the function is a coroutine function (or an async generator).
        is_coroutine: it is a coroutine function.
        timeout_s: seconds that a call may take; None: no limit of its own.
        terminal: a call that succeeds ends the episode.
        concurrent: calls need not wait for each other (declared, or MCP's ``readOnlyHint``).
        injected: the function takes `Context` or other dependencies.
        validate: gives the arguments as the tool takes them, or raises ``pydantic.ValidationError``.
    """

    __slots__ = (
        "_annotations",
        "_code",
        "_defaults",
        "_doc",
        "_kwdefaults",
        "_meanings",
        "_names",
        "component",
        "concurrent",
        "injected",
        "is_async",
        "is_coroutine",
        "name",
        "options",
        "parameter_names",
        "plain_return",
        "signature",
        "spec",
        "terminal",
        "timeout_s",
        "twin",
        "validate",
    )

    def __init__(
        self, fn: Callable[..., Any], name: str, options: ToolOptions, signature: inspect.Signature, local: bool
    ) -> None:
        self.name = name
        self.options = options
        self.timeout_s, self.terminal = options.timeout_s, options.terminal
        self.signature = signature
        self.is_coroutine = inspect.iscoroutinefunction(_innermost(fn))
        self.is_async = self.is_coroutine or inspect.isasyncgenfunction(_innermost(fn))
        self.twin = twin_of(fn, signature, name)
        description = options.description or None
        try:
            component = FunctionTool.from_function(self.twin, name=name, description=description, **options.fastmcp)
        except (TypeError, ValueError, NameError) as error:
            raise InvalidTool(name, str(error)) from error
        if not component.description:
            component = component.model_copy(update={"description": name.replace("_", " ").strip().capitalize() + "."})
        self.component = component
        read_only = component.annotations is not None and component.annotations.read_only_hint
        self.concurrent = options.concurrent or bool(read_only)
        self.spec = spec_of(component)
        bare = without_injected_parameters(component.fn)
        self.parameter_names = tuple(inspect.signature(bare).parameters)
        self.injected = bare is not component.fn
        if self.injected:
            # The wrapper would close its dependencies before the tool runs: take only its signature.
            bare = twin_of(self.twin, inspect.signature(bare), name)
        self.validate: Validate = get_cached_typeadapter(bare).validator.validate_python
        wraps = bool((component.output_schema or {}).get("x-fastmcp-wrap-result"))
        returns = signature.return_annotation
        self.plain_return = returns if wraps and returns in (str, int, bool) else None
        function = fn.__func__ if inspect.ismethod(fn) else fn
        # Hints that were resolved with names of the instance's constructor say nothing about another instance.
        self._code = function.__code__ if _plain_function(function) and not local else None
        if self._code is not None:
            self._defaults, self._kwdefaults = function.__defaults__, function.__kwdefaults__
            self._annotations, self._doc = function.__annotations__, function.__doc__
            self._names = names_in(function.__annotations__)
            self._meanings = [function.__globals__.get(word) for word in self._names]

    def matches_quickly(self, fn: Callable[..., Any], name: str, options: ToolOptions) -> bool:
        """Whether ``fn`` is surely of this kind, told by its code object (microseconds); False: look closer."""
        function = getattr(fn, "__func__", fn)
        if self._code is None or getattr(function, "__code__", None) is not self._code:
            return False
        return (
            _plain_function(function)
            and name == self.name
            and function.__doc__ == self._doc
            and same(function.__defaults__, self._defaults)
            and same(function.__kwdefaults__, self._kwdefaults)
            and same(function.__annotations__, self._annotations)
            and all(map(operator.is_, map(function.__globals__.get, self._names), self._meanings))
            and _same_options(options, self.options)
        )

    def matches(self, fn: Callable[..., Any], name: str, options: ToolOptions, signature: inspect.Signature) -> bool:
        """Whether ``fn`` with this resolved signature is of this kind."""
        function = _innermost(fn)
        return (
            name == self.name
            and (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)) == self.is_async
            and docstring_of(fn) == self.twin.__doc__
            and same_signature(signature, self.signature)
            and _same_options(options, self.options)
        )


class KindCache:
    """The kinds of one environment class. Reads and appends only, so that threads may share it."""

    MAX_PER_NAME = 64
    """Kinds kept per tool name; instances beyond parse for themselves."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[ToolKind]] = {}

    def known(self, fn: Callable[..., Any], name: str, options: ToolOptions) -> ToolKind | None:
        """The kind of ``fn``, if a glance tells it."""
        for kind in self._kinds.get(name, ()):
            if kind.matches_quickly(fn, name, options):
                return kind
        return None

    def kind_of(
        self, fn: Callable[..., Any], name: str, options: ToolOptions, scope: Callable[[], dict[str, Any]]
    ) -> ToolKind:
        """The kind of ``fn``, which `known` does not know: parsed if it is new.

        Raises:
            InvalidTool: FastMCP cannot make a tool of it.
        """
        kinds = self._kinds.setdefault(name, [])
        try:
            signature, local = resolved_signature(fn, scope)
        except (NameError, TypeError, ValueError) as error:
            raise InvalidTool(name, str(error)) from error
        for kind in kinds:
            if kind.matches(fn, name, options, signature):
                return kind
        kind = ToolKind(fn, name, options, signature, local)
        if len(kinds) < self.MAX_PER_NAME:
            kinds.append(kind)
        return kind


def spec_of(component: Any) -> Tool:
    """The contract's `Tool` for a FastMCP component: what ``tools/list`` says of it, under the contract's names."""
    listed = component.to_mcp_tool(name=component.name).model_dump(mode="json", by_alias=True, exclude_none=True)
    return Tool(
        name=listed["name"],
        title=listed.get("title"),
        description=listed.get("description", ""),
        input_schema=listed["inputSchema"],
        output_schema=listed.get("outputSchema"),
        annotations=listed.get("annotations"),
        meta=listed.get("_meta"),
    )


def _innermost(fn: Callable[..., Any]) -> Any:
    while hasattr(fn, "func") and not inspect.isroutine(fn):
        fn = fn.func
    return fn if inspect.isroutine(fn) else type(fn).__call__


def _plain_function(fn: Any) -> bool:
    """A function whose code object tells its parameters: not decorated, no signature of its own."""
    return isinstance(fn, FunctionType) and not hasattr(fn, "__wrapped__") and not hasattr(fn, "__signature__")


def _same_options(one: ToolOptions, other: ToolOptions) -> bool:
    if one is other:
        return True
    if not one.fastmcp and not other.fastmcp:
        return one == other
    return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(ToolOptions))
