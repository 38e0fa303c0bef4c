"""Parse tools with FastMCP, once for all instances that define them alike."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from types import FrameType
from typing import Any

from fastmcp.server.dependencies import without_injected_parameters
from fastmcp.tools.function_tool import FunctionTool
from fastmcp.utilities.types import get_cached_typeadapter
from pydantic import PydanticSchemaGenerationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo

from mcpenv.errors import InvalidTool
from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.json_types import reader_of, with_base64
from mcpenv_client.types.tools import Tool
from mcpenv_client.types.values import to_plain

from .returns import Returns
from .signatures import ToolSource, same, twin_of


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


class ToolDefinition:
    """The part of a tool that instances share: schema, validator, flags.

    It refers to no instance, so that caches that keep it do not keep instances.

    Attributes:
        name: the tool's name.
        options: the arguments of ``@self.tool(...)``.
        spec: the tool as agents see it.
        component: FastMCP's parse of the twin. It is used to list tools and convert results, and is never called.
        is_async: True for a coroutine function or an async generator function.
        timeout_s: maximum seconds of a call; None for no limit of its own.
        terminal: True if a successful call ends the episode.
        concurrent: True if calls may run at the same time (declared, or MCP's ``readOnlyHint``).
        injected: True if the function takes `Context` or other dependencies.
        parameter_names: the names of the parameters for which the agent gives arguments.
        plain_return: the type of return values that MCP wraps: ``str``, ``int`` or ``bool``; None for all others.
        twin: a function with the tool's signature.
        validate: returns the arguments in the types of the parameters, or raises ``pydantic.ValidationError``. The
            values share no list or dict with the arguments.
        returns: writes return values as JSON, and checks them against the output schema.
    """

    __slots__ = (
        "_loose_spec",
        "component",
        "concurrent",
        "injected",
        "is_async",
        "name",
        "options",
        "parameter_names",
        "plain_return",
        "returns",
        "spec",
        "terminal",
        "timeout_s",
        "twin",
        "validate",
    )

    def __init__(self, name: str, options: ToolOptions, source: ToolSource) -> None:
        self.name = name
        self.options = options
        self.timeout_s, self.terminal = options.timeout_s, options.terminal
        self.is_async = inspect.iscoroutinefunction(source.outer) or inspect.isasyncgenfunction(source.outer)
        try:
            signature = source.signature()
            if next(iter(signature.parameters), None) == "self":
                raise TypeError("parameter 'self': no instance is passed. Leave it out, or register self.method")
            self.twin = twin_of(source, signature, name)
            description = options.description or None
            component = FunctionTool.from_function(self.twin, name=name, description=description, **options.fastmcp)
            bare = without_injected_parameters(component.fn)
            self.injected = bare is not component.fn
            if self.injected:
                # The wrapper would close its dependencies before the tool runs, so use only its signature.
                bare = twin_of(source, inspect.signature(bare), name)
            self.validate: Validate = _validator_of(bare)
        except Exception as error:  # hints are evaluated here, and code of their types runs
            raise InvalidTool(name, _why(error, source)) from error
        parameters = with_base64(component.parameters)
        _true_defaults(parameters, signature)
        update = {
            "parameters": parameters,
            "output_schema": with_base64(component.output_schema),
            "description": component.description or name.replace("_", " ").strip().capitalize() + ".",
        }
        self.component = component = component.model_copy(update=update)
        read_only = component.annotations is not None and component.annotations.read_only_hint
        self.concurrent = options.concurrent or bool(read_only)
        self.spec = spec_of(component)
        self.parameter_names = tuple(inspect.signature(bare).parameters)
        given = "output_schema" in options.fastmcp
        self.returns = Returns(component.return_type, component.output_schema, given=given)
        returns = signature.return_annotation
        self.plain_return = returns if self.returns.wraps and not given and returns in (str, int, bool) else None

    @property
    def loose_spec(self) -> Tool:
        """The tool as agents see it where long results are cut. The same object each time."""
        loose: Tool | None = getattr(self, "_loose_spec", None)
        if loose is None:
            loose = self._loose_spec = without_output_schema(self.spec)
        return loose


class DefinitionCache:
    """The kinds of one environment class. It is only read and appended to, so that threads may share it."""

    MAX_PER_NAME = 64
    """Maximum kinds cached per tool name. Further ones are parsed for each instance."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[_Known]] = {}

    def kind_of(
        self, fn: Callable[..., Any], name: str, options: ToolOptions, frame: FrameType | None = None
    ) -> ToolDefinition:
        """Return the kind of ``fn``. Parse the function if no equal kind is known.

        Args:
            frame: the frame that registers the tool. Textual hints may use its local names.

        Raises:
            InvalidTool: FastMCP cannot make a tool of it.
        """
        source = ToolSource(fn, frame)
        kinds = self._kinds.setdefault(name, [])
        for known in kinds:
            if known.is_of(source, options):
                return known.kind
        known = _Known(ToolDefinition(name, options, source), source)
        if len(kinds) < self.MAX_PER_NAME:
            kinds.append(known)
        return known.kind


class _Known:
    """A kind and the facts about its source, without the source, which may refer to an instance."""

    __slots__ = ("_facts", "_local", "_meanings", "kind")

    def __init__(self, kind: ToolDefinition, source: ToolSource) -> None:
        self.kind = kind
        self._facts, self._local = source.facts, source.local
        self._meanings = source.meanings(local=self._local)

    def is_of(self, source: ToolSource, options: ToolOptions) -> bool:
        """Return True if a source and its options are of this kind."""
        return (
            same(self._facts, source.facts)
            and same(self.kind.options, options)
            and same(self._meanings, source.meanings(local=self._local))
        )


def _validator_of(fn: Callable[..., Any]) -> Validate:
    """Return pydantic's validator for the arguments of a function, without the call that would follow."""
    schema: Any = get_cached_typeadapter(fn).core_schema
    if schema["type"] == "definitions":
        return reader_of({**schema, "schema": schema["schema"]["arguments_schema"]})
    return reader_of(schema["arguments_schema"])


def _why(error: Exception, source: ToolSource) -> str:
    """Return the reason why no tool can be made of a function, with the parameter whose hint is the cause."""
    culprit = source.culprit()
    where = "" if culprit is None else "the return value: " if culprit == "return" else f"parameter {culprit!r}: "
    if isinstance(error, PydanticSchemaGenerationError):
        found = re.search(r"schema for (.*?)\. Set `arbitrary", str(error))
        kind = "its type" if found is None else found[1]
        return f"{where}{kind} has no JSON Schema. Use a type of JSON, a dataclass or a pydantic model"
    if isinstance(error, PydanticInvalidForJsonSchema):
        return f"{where}its type has no JSON Schema ({str(error).partition(chr(10))[0]})"
    lines = [line.strip() for line in str(error).splitlines() if "https://errors.pydantic.dev" not in line]
    return where + (" ".join(filter(None, lines)) or type(error).__name__)


def _true_defaults(schema: dict[str, Any], signature: inspect.Signature) -> None:
    """Correct the defaults in an input schema: bytes are base64 text, and infinity has no JSON form (not null)."""
    for name, parameter in signature.parameters.items():
        listed = schema.get("properties", {}).get(name, {})
        default = parameter.default.default if isinstance(parameter.default, FieldInfo) else parameter.default
        if "default" not in listed:
            continue
        try:
            plain = to_plain(default, name)
        except NotSerializable:
            del listed["default"]
        else:
            if isinstance(default, bytes):
                listed["default"] = plain


def without_output_schema(spec: Tool) -> Tool:
    """Return a tool without its output schema, which a cut result would not fit. The schema of a wrapped text stays."""
    schema = spec.output_schema
    wrapped = (schema or {}).get("x-fastmcp-wrap-result") and schema["properties"]["result"].get("type") == "string"  # type: ignore[index]
    return spec if schema is None or wrapped else spec.model_copy(update={"output_schema": None})


def spec_of(component: Any) -> Tool:
    """Return the `Tool` for a FastMCP component: its entry in ``tools/list``, with mcpenv's field names."""
    listed = component.to_mcp_tool(name=component.name)
    return Tool.from_mcp(listed.model_dump(mode="json", by_alias=True, exclude_none=True))
