"""Parse tools with FastMCP, once for all instances that define them alike."""

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

from mcpenv.errors import InvalidTool
from mcpenv_client.types.tools import Tool

from .signatures import docstring_of, names_in, resolved_signature, same, same_signature, twin_of


@dataclasses.dataclass(frozen=True, slots=True)
class ToolOptions:
    """The arguments of ``@self.tool(...)`` except the mode.

    Attributes:
        name: the tool's name; None for the function's name.
        description: the description that agents read; None for the function's docstring.
        timeout_s: maximum seconds of a call, if the caller sets no shorter limit. A call that takes longer is cancelled
            and fails with a timeout. None, the default, sets no limit of the tool's own.
        terminal: True if a successful call ends the episode. False by default.
        concurrent: True if calls may run at the same time as other concurrent calls. False by default.
        fastmcp: the further arguments for FastMCP's ``FunctionTool``, passed on unchanged.
    """

    name: str | None = None
    description: str | None = None
    timeout_s: float | None = None
    terminal: bool = False
    concurrent: bool = False
    fastmcp: dict[str, Any] = dataclasses.field(default_factory=dict)


PLAIN = ToolOptions()
"""The options of ``@self.tool`` without arguments."""

Validate = Callable[[dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


class ToolKind:
    """The part of a tool that instances share: schema, validator, flags.

    It refers to no instance, so that caches that keep it do not keep instances.

    Attributes:
        name: the tool's name.
        spec: the tool as agents see it.
        component: FastMCP's parse of the twin. It lists tools and converts results, and is never called.
        is_async: True for a coroutine function or an async generator function.
        is_coroutine: True for a coroutine function.
        timeout_s: maximum seconds of a call; None for no limit of its own.
        terminal: True if a successful call ends the episode.
        concurrent: True if calls may run at the same time (declared, or MCP's ``readOnlyHint``).
        injected: True if the function takes `Context` or other dependencies.
        validate: returns the arguments in the types of the parameters, or raises ``pydantic.ValidationError``.
    """

    __slots__ = (
        "_annotations",
        "_code",
        "_defaults",
        "_doc",
        "_kwdefaults",
        "_loose_spec",
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
            # The wrapper would close its dependencies before the tool runs, so use only its signature.
            bare = twin_of(self.twin, inspect.signature(bare), name)
        self.validate: Validate = get_cached_typeadapter(bare).validator.validate_python
        wraps = bool((component.output_schema or {}).get("x-fastmcp-wrap-result"))
        returns = signature.return_annotation
        self.plain_return = returns if wraps and returns in (str, int, bool) else None
        function = fn.__func__ if inspect.ismethod(fn) else fn
        # Hints resolved with names of the instance's constructor may differ in another instance.
        self._code = function.__code__ if _plain_function(function) and not local else None
        if self._code is not None:
            self._defaults, self._kwdefaults = function.__defaults__, function.__kwdefaults__
            self._annotations, self._doc = function.__annotations__, function.__doc__
            self._names = names_in(function.__annotations__)
            self._meanings = [function.__globals__.get(word) for word in self._names]

    @property
    def loose_spec(self) -> Tool:
        """The tool as agents see it where long results are cut. The same object each time."""
        loose: Tool | None = getattr(self, "_loose_spec", None)
        if loose is None:
            loose = self._loose_spec = without_output_schema(self.spec)
        return loose

    def matches_quickly(self, fn: Callable[..., Any], name: str, options: ToolOptions) -> bool:
        """Return True if the code object proves that ``fn`` is of this kind. On False, call `matches`."""
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
        """Return True if ``fn`` with this resolved signature is of this kind."""
        function = _innermost(fn)
        return (
            name == self.name
            and (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)) == self.is_async
            and docstring_of(fn) == self.twin.__doc__
            and same_signature(signature, self.signature)
            and _same_options(options, self.options)
        )


class KindCache:
    """The kinds of one environment class. It is only read and appended to, so that threads may share it."""

    MAX_PER_NAME = 64
    """Maximum kinds cached per tool name. Further ones are parsed for each instance."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[ToolKind]] = {}

    def known(self, fn: Callable[..., Any], name: str, options: ToolOptions) -> ToolKind | None:
        """Return the kind of ``fn`` if `ToolKind.matches_quickly` finds one, else None."""
        for kind in self._kinds.get(name, ()):
            if kind.matches_quickly(fn, name, options):
                return kind
        return None

    def kind_of(
        self, fn: Callable[..., Any], name: str, options: ToolOptions, scope: Callable[[], dict[str, Any]]
    ) -> ToolKind:
        """Return the kind of ``fn`` if `known` has not found it; parse a new one if needed.

        Raises:
            InvalidTool: if FastMCP cannot make a tool of it.
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


def without_output_schema(spec: Tool) -> Tool:
    """Return a tool without its output schema, which a cut result would not fit. One that wraps a text stays."""
    schema = spec.output_schema
    wrapped = (schema or {}).get("x-fastmcp-wrap-result") and schema["properties"]["result"].get("type") == "string"  # type: ignore[index]
    return spec if schema is None or wrapped else spec.model_copy(update={"output_schema": None})


def spec_of(component: Any) -> Tool:
    """Return the `Tool` for a FastMCP component: its entry in ``tools/list``, with mcpenv's field names."""
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
    """Return True if the code object determines the parameters: no decorator, no ``__signature__``."""
    return isinstance(fn, FunctionType) and not hasattr(fn, "__wrapped__") and not hasattr(fn, "__signature__")


def _same_options(one: ToolOptions, other: ToolOptions) -> bool:
    if one is other:
        return True
    if not one.fastmcp and not other.fastmcp:
        return one == other
    return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(ToolOptions))
