"""The command ``mcpenv call``: call one tool once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from mcp import MCPError

from mcpenv.errors import ConfigurationError
from mcpenv.targets.place import is_url
from mcpenv.targets.target import Target, load_target
from mcpenv_client.errors import ConnectionFailed
from mcpenv_client.mcp_client import tool_result
from mcpenv_client.types.observations import CallToolObservation, Observation
from mcpenv_client.types.records import StepResult
from mcpenv_client.types.tools import Mode, ToolErrorType, ToolFailure, ToolResult

from .instance import instance
from .output import author_output, note, print_json, quiet_logs, report, shown_parts
from .remote import Bearer, connected, list_tools
from .run_request import mode_for
from .tokens import AgentToken
from .tool_arguments import Given, find_tool, given_arguments, tool_arguments

FAILED = 1


def call(
    target: str,
    tool: str,
    /,
    *arguments: str,
    json_arguments: str | None = None,
    mode: Literal["simulation", "production"] | None = None,
    timeout_s: float | None = None,
    seed: int | None = None,
    task: str | None = None,
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
        mode: The mode that determines the available tools. Default: MCPENV_MODE, or simulation. A server at a URL has
            its own.
        timeout_s: Timeout of the call, in seconds.
        seed: Seed of the episode in which the tool is called.
        task: Id of the task of that episode.
        settings: name=value for the environment's constructor; may be given several times.
        as_json: Print the whole result as one JSON document.
        debug: Show logs, and the traceback when something fails.
    """
    quiet_logs(debug)
    given = given_arguments(arguments, json_arguments)
    if timeout_s is not None and timeout_s <= 0:
        raise ConfigurationError(f"--timeout-s is {timeout_s:g}; it must be a number of seconds above 0")
    token = agent.read(target)
    if is_url(target):
        if mode is not None or settings:
            raise ConfigurationError("--mode and --set are for an environment's code; a running server has its own")
        if seed is not None or task is not None:
            raise ConfigurationError("--seed and --task need an episode, which an MCP server has not: see mcpenv play")
        return _print_result(asyncio.run(_call_server(target, Bearer(token), tool, given, timeout_s)), as_json)
    with author_output():
        loaded = load_target(target, settings or ())
        chosen = mode_for(mode, loaded.manifest)
        episode = {name: value for name, value in (("seed", seed), ("task", task)) if value is not None}
        if episode and chosen is not Mode.SIMULATION:
            raise ConfigurationError("--seed and --task need an episode, which production mode has not")
        observation = _call_target(loaded, chosen, tool, given, timeout_s, episode)
    return _print_result(observation, as_json)


# -- calling


def _call_target(
    target: Target, mode: Mode, name: str, given: Given, timeout_s: float | None, episode: Mapping[str, Any]
) -> CallToolObservation:
    with instance(target, mode) as env:
        if episode:
            env.reset(**episode)
        arguments = tool_arguments(given, find_tool(env.list_tools(), name, f"in {mode.value} mode"))
        observation = env.call_tool(name, arguments, timeout_s=timeout_s)
        assert isinstance(observation, CallToolObservation)
        return observation


async def _call_server(
    url: str, bearer: Bearer, name: str, given: Given, timeout_s: float | None
) -> CallToolObservation:
    async with connected(url, bearer) as client:
        arguments = tool_arguments(given, find_tool(await list_tools(client, url, bearer), name, f"at {url}"))
        try:
            result = await client.call_tool_mcp(name, arguments, timeout=timeout_s)
        except MCPError as error:
            if bearer.refused:
                raise bearer.refusal(url) from error
            return _failed(name, bearer.reason or str(error))
        except (RuntimeError, OSError) as error:
            raise ConnectionFailed(url, str(error)) from error
    answer = tool_result(result)
    return _failed(name, answer.text, answer) if answer.is_error else CallToolObservation(tool_name=name, result=answer)


def _failed(name: str, message: str, result: ToolResult | None = None) -> CallToolObservation:
    failure = ToolFailure(error_type=ToolErrorType.EXECUTION_ERROR, message=message)
    return CallToolObservation(tool_name=name, result=result, error=failure)


# -- output


def _print_result(observation: CallToolObservation, as_json: bool) -> int:
    """Print the outcome of the call and return the exit status."""
    result, failure = observation.result, observation.error
    if as_json:
        print_json(observation.model_dump(mode="json"))
    elif failure is None and result is not None and not result.is_error:
        for block in result.content:
            print(block_text(block))
        if observation.reward is not None or observation.done:
            note(f"{reward_text(observation)}{', the episode is over' if observation.done else ''}")
    if failure is not None:
        report(failure.message)
        return FAILED
    if result is not None and result.is_error:
        report(result.text)
        return FAILED
    return 0


def reward_text(observation: Observation | StepResult[Any]) -> str:
    """Return the reward of a step and its parts, as text."""
    if observation.reward is None:
        return "not scored"
    parts = observation.info.get("reward", {})
    return f"reward {observation.reward:g}{f' ({shown_parts(parts)})' if parts else ''}"


def block_text(block: Mapping[str, Any]) -> str:
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
