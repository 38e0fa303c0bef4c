"""The command ``mcpenv call``: call one tool once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from mcp import MCPError
from mcp_types import CallToolResult

from mcpenv.errors import ConfigurationError
from mcpenv.packaging.target import Target, is_url, load_target
from mcpenv.server.config import mode_from
from mcpenv_client.errors import ConnectionFailed
from mcpenv_client.types.observations import CallToolObservation
from mcpenv_client.types.tools import Mode, Tool, ToolErrorType, ToolFailure, ToolResult

from .instance import instance
from .output import author_output, note, print_json, quiet_logs, report, shown_parts
from .remote import Bearer, connected, list_tools
from .tokens import AgentToken

FAILED = 1


def call(
    target: str,
    tool: str,
    /,
    *arguments: str,
    json_arguments: str | None = None,
    mode: Literal["simulation", "production"] | None = None,
    timeout_s: float | None = None,
    agent: AgentToken = AgentToken(),  # noqa: B008 - frozen
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    debug: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Call one tool of an environment, or of the MCP server at a URL.

    Exit status 0: the tool returned. 1: it failed; its message is on stderr. 2: it was not called.

    Args:
        target: An environment as for run, or the URL of a server, with or without /mcp.
        tool: The tool's name, as listed by inspect.
        arguments: key=value, with JSON values for parameters that are not text: by=2 names='["a", "b"]' text=hello
        json_arguments: All arguments as one JSON object. A key=value argument takes precedence.
        mode: The mode whose tools are available. Default: MCPENV_MODE, or simulation. A server at a URL has its own.
        timeout_s: Timeout of the call, in seconds.
        settings: name=value for the environment's constructor; may be given several times.
        as_json: Print the whole result as one JSON document.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    given = _given(arguments, json_arguments)
    if timeout_s is not None and timeout_s <= 0:
        raise ConfigurationError(f"--timeout-s is {timeout_s:g}; it must be a number of seconds above 0")
    token = agent.read(target)
    if is_url(target):
        if mode is not None or settings:
            raise ConfigurationError("--mode and --set are for an environment's code; a running server has its own")
        return _print_result(asyncio.run(_call_server(target, Bearer(token), tool, given, timeout_s)), as_json)
    with author_output():
        loaded = load_target(target, settings or ())
        observation = _call_target(loaded, mode_from(mode), tool, given, timeout_s)
    return _print_result(observation, as_json)


# -- arguments

Given = tuple[dict[str, Any], dict[str, str]]
"""The arguments given as JSON, and those given as text that is not parsed yet."""


def _given(pairs: Sequence[str], json_arguments: str | None) -> Given:
    values: Any = {}
    if json_arguments is not None:
        try:
            values = json.loads(json_arguments)
        except ValueError as error:
            raise ConfigurationError(f"--json-arguments is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigurationError("--json-arguments is not a JSON object")
    texts = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigurationError(f"argument {pair!r}: write key=value")
        texts[name] = text
    return values, texts


def _arguments(given: Given, tool: Tool) -> dict[str, Any]:
    """Return the call's arguments, with texts parsed by the tool's input schema."""
    values, texts = given
    schema = tool.input_schema
    fields = schema.get("properties", {})
    return {**values, **{name: _value(text, fields.get(name), schema) for name, text in texts.items()}}


def _value(text: str, field: Any, root: Mapping[str, Any]) -> Any:
    kinds = _kinds(field, root)
    if kinds == {"string"} or (kinds == {"string", "null"} and text != "null"):
        return text
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text


def _kinds(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a schema allows; empty if it does not restrict them."""
    if not isinstance(schema, dict):
        return set()
    if "$ref" in schema:
        found: Any = root
        for part in str(schema["$ref"]).lstrip("#/").split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        return _kinds(found, root)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return set().union(*(_kinds(option, root) or {"any"} for option in schema[key]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return {str(one) for one in kind}
    if kind is None and schema.get("enum") and all(isinstance(value, str) for value in schema["enum"]):
        return {"string"}
    return {str(kind)} if kind is not None else set()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _find(tools: Sequence[Tool], name: str, where: str) -> Tool:
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        listed = ", ".join(tool.name for tool in tools) or "none"
        raise ConfigurationError(f"there is no tool {name!r} {where} (there are: {listed})")
    return found


# -- calling


def _call_target(target: Target, mode: Mode, name: str, given: Given, timeout_s: float | None) -> CallToolObservation:
    with instance(target, mode) as env:
        arguments = _arguments(given, _find(env.list_tools(), name, f"in {mode.value} mode"))
        observation = env.call_tool(name, arguments, timeout_s=timeout_s)
        assert isinstance(observation, CallToolObservation)
        return observation


async def _call_server(
    url: str, bearer: Bearer, name: str, given: Given, timeout_s: float | None
) -> CallToolObservation:
    async with connected(url, bearer) as client:
        arguments = _arguments(given, _find(await list_tools(client, url, bearer), name, f"at {url}"))
        try:
            result = await client.call_tool_mcp(name, arguments, timeout=timeout_s)
        except MCPError as error:
            if bearer.refused:
                raise bearer.refusal(url) from error
            return _failed(name, str(error))
        except (RuntimeError, OSError) as error:
            raise ConnectionFailed(url, str(error)) from error
    answer = _result(result)
    return _failed(name, answer.text, answer) if answer.is_error else CallToolObservation(tool_name=name, result=answer)


def _failed(name: str, message: str, result: ToolResult | None = None) -> CallToolObservation:
    failure = ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=message)
    return CallToolObservation(tool_name=name, result=result, error=failure)


def _result(result: CallToolResult) -> ToolResult:
    structured = result.structured_content
    # The protocol's own metadata is not part of the tool's result.
    meta = {key: value for key, value in (result.meta or {}).items() if not key.startswith("io.modelcontextprotocol/")}
    wrapped = bool(meta.get("fastmcp", {}).get("wrap_result"))
    return ToolResult(
        content=[block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content],
        structured_content=structured,
        data=structured["result"] if wrapped and structured is not None else structured,
        is_error=bool(result.is_error),
        meta=meta or None,
    )


# -- output


def _print_result(observation: CallToolObservation, as_json: bool) -> int:
    """Print the outcome of the call and return the exit status."""
    result, failure = observation.result, observation.error
    if as_json:
        print_json(observation.model_dump(mode="json"))
    elif failure is None and result is not None and not result.is_error:
        for block in result.content:
            print(_text(block))
        if observation.reward is not None or observation.done:
            note(f"{_reward(observation)}{', the episode is over' if observation.done else ''}")
    if failure is not None:
        report(failure.message)
        return FAILED
    if result is not None and result.is_error:
        report(result.text)
        return FAILED
    return 0


def _reward(observation: CallToolObservation) -> str:
    if observation.reward is None:
        return "not scored"
    parts = observation.info.get("reward", {})
    return f"reward {observation.reward:g}{f' ({shown_parts(parts)})' if parts else ''}"


def _text(block: Mapping[str, Any]) -> str:
    """Return a content block's text, or one line that describes the block."""
    kind = block.get("type", "content")
    if kind == "text":
        return str(block["text"])
    resource = block.get("resource")
    if isinstance(resource, dict):
        if "text" in resource:
            return str(resource["text"])
        return f"[resource {resource.get('uri')} {resource.get('mimeType', '')}, {_size(resource.get('blob'))}]"
    if kind == "resource_link":
        return f"[resource {block.get('uri')}]"
    return f"[{kind} {block.get('mimeType', '')}, {_size(block.get('data'))}]"


def _size(base64: Any) -> str:
    text = str(base64 or "")
    return f"{len(text) * 3 // 4 - text[-2:].count('=')} bytes"


__all__ = ["call"]
