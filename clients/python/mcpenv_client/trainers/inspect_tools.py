"""The tools of the episode of each sample of Inspect AI, with whole schemas."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from inspect_ai.tool import MCPServer, Tool, ToolDef, ToolParams, mcp_server_http
from inspect_ai.util import store
from pydantic import PrivateAttr, model_serializer

from .hosted import HostedEpisode

LEFT_OUT = ("pattern", "minLength", "maxLength", "minimum", "maximum", "examples")
"""Keywords that Inspect's providers for OpenAI's chat completions omit from requests."""

TOKEN = "MCPENV_AGENT_TOKEN"
"""The variable with the agent's token for a server that requires one.

Arguments of a task would appear in Inspect's log.
"""

KEY = "mcpenv"
"""The entry of a sample's store that names its episode."""


class WholeParams(ToolParams):
    """The schema of a tool's arguments as the environment has it. Inspect's own class keeps only some keywords."""

    _whole: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> WholeParams:
        """Return the parameters for a schema."""
        # Inspect requires a description of each; these appear in its log, the whole schema goes to the model.
        named = {
            name: {"description": inner.get("description") or name}
            for name, inner in schema.get("properties", {}).items()
        }
        made: WholeParams = cls.model_validate({"properties": named, "required": schema.get("required", [])})
        made._whole = dict(schema)
        return made

    @model_serializer(mode="plain")
    def _serialized(self) -> dict[str, Any]:
        return self._whole


class SampleEpisode:
    """The episode of a sample, its schemas, and Inspect's own client for its tools."""

    by_sample: dict[str, SampleEpisode] = {}

    def __init__(self, url: str, client: Mapping[str, Any], *, mask_failed_steps: bool = True) -> None:
        self.hosted = HostedEpisode(url, client, mask_failed_steps=mask_failed_steps)
        self.schemas: dict[str, Mapping[str, Any]] = {}
        self.server: MCPServer | None = None

    async def begin(self, row: Mapping[str, Any]) -> str:
        """Begin the episode, and return its prompt."""
        opening = await self.hosted.begin(row)
        self.schemas = {listed["function"]["name"]: listed["function"]["parameters"] for listed in opening.tools}
        self.server = mcp_server_http(url=self.hosted.mcp_url, authorization=os.environ.get(TOKEN) or None)
        return str(opening.messages[-1]["content"])


class EpisodeTools(MCPServer):
    """The tools of the sample's episode, for ``tools=`` of any agent. They have the environment's whole schemas.

    Args:
        user_as_tool: True: the model speaks to the episode's user through a tool. False: it does not get that tool.
    """

    def __init__(self, *, user_as_tool: bool = True) -> None:
        self._user_as_tool = user_as_tool

    async def tools(self) -> list[Tool]:
        """Return the tools."""
        episode = current()
        assert episode.server is not None
        hidden = None if self._user_as_tool else episode.hosted.user_tool
        listed = [tool for tool in map(ToolDef, await episode.server.tools()) if tool.name != hidden]
        return [ToolDef(each.tool, parameters=WholeParams.of(episode.schemas[each.name])).as_tool() for each in listed]

    async def __aenter__(self) -> EpisodeTools:
        server = current().server
        assert server is not None
        await server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server = current().server
        assert server is not None
        await server.__aexit__(kind, error, trace)


def left_out(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of omitted keywords. Definitions are sent whole."""
    yield from (f"{path}.{name}" for name in LEFT_OUT if name in schema)
    inner = {**schema.get("properties", {}), "[]": schema.get("items"), "*": schema.get("additionalProperties")}
    inner.update((f"anyOf[{at}]", each) for at, each in enumerate(schema.get("anyOf", ())))
    for name, each in inner.items():
        if isinstance(each, Mapping):
            yield from left_out(each, f"{path}.{name}")


def current() -> SampleEpisode:
    """Return the episode of the running sample."""
    return SampleEpisode.by_sample[store().get(KEY)]
