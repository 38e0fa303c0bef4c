"""Collect the texts that an agent can read before it acts: observation, tools, instructions, resources, prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastmcp import Client
from mcp import MCPError

from mcpenv.environment import MCPEnvironment
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.values import to_plain

MAX_RESOURCES = 20
MAX_TEXT = 256 * 1024
"""Maximum characters of one resource to search."""
READ_S = 10.0
"""Seconds for reading all resources and prompts."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value in plain data, with its place.

    Attributes:
        where: the place, as displayed to a reader.
        key: its key in an object; empty in a list.
        value: a text, a number, a bool or None.
    """

    where: str
    key: str
    value: Any


def leaves_of(data: Any, where: str, key: str = "") -> Iterator[Leaf]:
    """Yield all values in plain data."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from leaves_of(value, f"{where}.{name}", str(name))
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from leaves_of(value, f"{where}[{index}]", key)
    else:
        yield Leaf(where, key, data)


def of_observation(observation: Observation) -> list[Leaf]:
    """Return the content of an observation, without the prompt and fields of the framework."""
    data = to_plain(observation, "observation", exclude={"info"})
    data.get("metadata", {}).pop("prompt", None)
    return [leaf for leaf in leaves_of(data, "the first observation") if leaf.value is not None]


def of_listings(env: MCPEnvironment) -> list[Leaf]:
    """Return the texts in tools, instructions, resources and prompts, which are the same in every episode."""
    found: list[Leaf] = []
    for tool in env.list_tools():
        found += leaves_of(tool.description, f"the description of {tool.name}")
        found += leaves_of(tool.input_schema, f"the schema of {tool.name}")
    if env._execution.mounted is not None or env.mcp_provider is not None:
        found += asyncio.run(_of_components(env))
    return found


async def _of_components(env: MCPEnvironment) -> list[Leaf]:
    found: list[Leaf] = []
    try:
        async with asyncio.timeout(READ_S), Client(env.mcp) as client:
            found += leaves_of(client.instructions or "", "the instructions")
            for resource in (await client.list_resources())[:MAX_RESOURCES]:
                for content in await client.read_resource(resource.uri):
                    text = getattr(content, "text", "")
                    found += leaves_of(text[:MAX_TEXT], f"the resource {resource.uri}")
            for prompt in await client.list_prompts():
                found += leaves_of(prompt.description or "", f"the prompt {prompt.name}")
    except (MCPError, TimeoutError):  # it offers none, or they cannot be read without a client
        return found
    return found
