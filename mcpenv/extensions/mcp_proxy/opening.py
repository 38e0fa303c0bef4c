"""The calls that an environment makes itself after a reset, such as opening a page and taking a screenshot of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from mcpenv.errors import ConfigurationError
from mcpenv_client.types.observations import Observation

from .config import OpeningCall
from .loop import UPSTREAMS
from .upstream import Upstream
from .workspace import Workspace


class OpeningObservation(Observation):
    """The observation of a reset: the content of the last opening call.

    Attributes:
        content: content blocks under their MCP names, such as a text and a screenshot.
    """

    content: list[dict[str, Any]] = Field(default_factory=list)


class OpeningFailed(Exception):
    """The exception for an opening call that the server answered with an error."""


def check_opening(calls: Sequence[OpeningCall], servers: Mapping[str, Any]) -> None:
    """Raise if a call names no server of the configuration.

    Raises:
        ConfigurationError: a call names an unknown server.
    """
    for call in calls:
        if call.server is None and len(servers) > 1:
            raise ConfigurationError(f"mcpenv.on_reset: there are several servers; say which one has {call.tool!r}")
        if call.server is not None and call.server not in servers:
            raise ConfigurationError(f"mcpenv.on_reset: there is no server {call.server!r}")


async def opened(
    calls: Sequence[OpeningCall], upstreams: Mapping[str, Upstream], workspace: Workspace | None
) -> list[dict[str, Any]]:
    """Make the calls, and return the content of the last one.

    Raises:
        OpeningFailed: a server answered with an error.
        CallFailed: a server did not answer.
    """
    content: list[dict[str, Any]] = []
    for call in calls:
        upstream = upstreams[call.server or next(iter(upstreams))]
        arguments = dict(call.arguments) if workspace is None else workspace.fill(dict(call.arguments))
        answer = await UPSTREAMS.run(upstream.call_alone(call.tool, arguments))
        content = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in answer.content]
        if answer.is_error:
            said = " ".join(str(block.get("text", "")) for block in content)[:500]
            raise OpeningFailed(f"on_reset: tool {call.tool!r} of server {upstream.name!r} failed: {said}")
    return content
