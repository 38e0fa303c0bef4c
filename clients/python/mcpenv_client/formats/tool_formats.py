"""The tools of an environment in the format of a model's API: `tools_for`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

from mcpenv_client.errors import MalformedToolCall, NotSerializable, ToolNotExpressible
from mcpenv_client.types.actions import CallToolAction
from mcpenv_client.types.tools import Tool
from mcpenv_client.types.values import decode, to_recorded

from .names import GEMINI, WORDS, NameMap, NameRule
from .references import Unresolvable, inlined
from .strict import NotStrict, StrictSchema

ToolFormat = Literal["openai", "openai-strict", "anthropic", "gemini", "hf"]
"""The formats: OpenAI's chat completions, the same in strict mode, Anthropic's and Gemini's API, chat templates of
Hugging Face."""

_RULES: dict[str, NameRule | None] = {
    "openai": WORDS,
    "openai-strict": WORDS,
    "anthropic": WORDS,
    "gemini": GEMINI,
    "hf": None,
}

MAX_QUOTED = 1000
"""Maximum characters of unreadable arguments that an error quotes."""


class ProviderTools:
    """The tools of an environment in one format. `tools_for` makes it.

    Attributes:
        format: the format.
        listed: the tools as the API takes them in ``tools=``, in the order of the environment.
        names: the tools' names by the names in ``listed``.
    """

    def __init__(self, form: ToolFormat, tools: Iterable[Tool], *, inline: bool = False) -> None:
        if form not in get_args(ToolFormat):
            raise ValueError(f"there is no tool format {form!r}. Use one of: {', '.join(get_args(ToolFormat))}")
        tools = list(tools)
        own = [tool.name for tool in tools]
        twice = sorted({name for name in own if own.count(name) > 1})
        if twice:
            raise ValueError(f"two tools have the name {twice[0]!r}, so that a call would not say which is meant")
        self.format = form
        self._map = NameMap(own, _RULES[form])
        self._strict: dict[str, StrictSchema] = {}
        self._schemas: dict[str, Mapping[str, Any]] = {tool.name: tool.input_schema for tool in tools}
        problems: dict[str, str] = {}
        entries = []
        for tool in tools:
            try:
                entries.append(self._entry(tool, inline))
            except (NotStrict, Unresolvable) as error:
                problems[tool.name] = str(error)
        if problems:
            raise ToolNotExpressible(form, problems)
        self.names = {self._map.legal(name): name for name in own}
        self.listed: list[dict[str, Any]] = entries
        if form == "gemini" and entries:
            self.listed = [{"functionDeclarations": entries}]

    def _entry(self, tool: Tool, inline: bool) -> dict[str, Any]:
        name, schema = self._map.legal(tool.name), tool.input_schema
        if inline:
            schema = inlined(schema)
        if self.format == "openai-strict":
            self._strict[tool.name] = StrictSchema(schema)
            schema = self._strict[tool.name].schema
        if self.format == "anthropic":
            for keyword in ("oneOf", "allOf", "anyOf"):
                if keyword in schema:
                    raise NotStrict(f"the schema has {keyword} at the top, which Anthropic's API refuses")
            return {"name": name, "description": tool.description, "input_schema": schema}
        if self.format == "gemini":
            return {"name": name, "description": tool.description, "parametersJsonSchema": schema}
        entry = tool.model_copy(update={"name": name, "input_schema": schema}).to_openai()
        if self.format == "openai-strict":
            entry["function"]["strict"] = True
        return entry

    def action(self, name: str, arguments: str | bytes | Mapping[str, Any] | None = None) -> CallToolAction:
        """Return the action of a model's call.

        Args:
            name: the name in the call. An unlisted name is used unchanged, for the environment to refuse.
            arguments: JSON text or an object; empty or None for a call without arguments.

        Raises:
            MalformedToolCall: the arguments are not a JSON object.
        """
        own = self._map.own(name)
        made = read_arguments(name, arguments)
        if own in self._strict:
            made = self._strict[own].restored(made)
        return CallToolAction(tool_name=own, arguments=made)

    def schema(self, name: str) -> Mapping[str, Any]:
        """Return the own input schema of a tool, by the listed name. Empty for another name."""
        return self._schemas.get(self._map.own(name), {})

    def properties(self, name: str) -> Mapping[str, Any]:
        """Return the properties of a tool's own input schema, by the listed name. Empty for another name."""
        properties: Mapping[str, Any] = self.schema(name).get("properties", {})
        return properties

    def action_of(self, call: Any) -> CallToolAction:
        """Return the action of a tool call as an API answers it: a dictionary, or an object of the API's SDK.

        It may be a call of OpenAI's chat completions or responses, or a ``tool_use`` block of Anthropic. For Gemini it
        is a part with a ``functionCall``, or the function call itself; for Hugging Face, a call in the form of its
        templates.

        Raises:
            MalformedToolCall: it has no name, or its arguments are not a JSON object.
        """
        plain = _plain(call)
        for inner in ("function", "functionCall", "function_call"):
            if isinstance(plain.get(inner), Mapping):
                plain = plain[inner]
                break
        name = plain.get("name")
        if not isinstance(name, str):
            raise MalformedToolCall("a call", "It has no name.")
        return self.action(name, next((plain[key] for key in ("arguments", "input", "args") if key in plain), None))


def tools_for(form: ToolFormat, tools: Iterable[Tool], *, inline: bool = False) -> ProviderTools:
    """Return the tools in the format of a model's API, and the way from its calls back to actions.

    Names that the API does not accept are changed, and changed back in `ProviderTools.action`.

    Args:
        form: the format.
        tools: the tools, as ``list_tools()`` returns them.
        inline: replace each ``$ref`` by its definition, for templates that do not read references.

    Raises:
        ToolNotExpressible: the format cannot express a tool, or ``inline`` a recursive schema.
        ValueError: there is no such format, or two tools have one name.
    """
    return ProviderTools(form, tools, inline=inline)


def read_arguments(name: str, arguments: str | bytes | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a model's call as an object.

    Raises:
        MalformedToolCall: they are not a JSON object, or nested deeper than a call may be.
    """
    if isinstance(arguments, str | bytes):
        if not arguments.strip():
            return {}
        try:
            value = decode(arguments)
        except ValueError as error:
            raise MalformedToolCall(name, f"Its arguments are not JSON ({error}): {_quoted(arguments)}") from error
    else:
        value = {} if arguments is None else arguments
    if not isinstance(value, Mapping):
        raise MalformedToolCall(name, f"Its arguments are not a JSON object: {_quoted(arguments)}")
    made = dict(value)
    try:
        to_recorded(made, "arguments")
    except NotSerializable as error:  # also if they are nested deeper than a step takes
        raise MalformedToolCall(name, f"Its arguments cannot be sent ({error}).") from error
    return made


def _quoted(arguments: object) -> str:
    text = arguments.decode(errors="replace") if isinstance(arguments, bytes) else str(arguments)
    return text[:MAX_QUOTED]


def _plain(call: Any) -> Mapping[str, Any]:
    dump: Callable[[], Any] | None = getattr(call, "model_dump", None)
    plain = call if dump is None else dump()
    if not isinstance(plain, Mapping):
        raise MalformedToolCall("a call", f"It is a {type(call).__name__}, not an object.")
    return plain
