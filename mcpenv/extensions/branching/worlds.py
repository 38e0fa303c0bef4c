"""The worlds of recorded episodes: the state at a step, what the step changed, and the environment's view."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from fastmcp import Client
from mcp import MCPError
from starlette.requests import Request

from mcpenv import MCPEnvironment
from mcpenv.extensions.records.record_index import RecordIndex
from mcpenv.extensions.records.replay import look_at
from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import answered
from mcpenv.server.extension import Doc, object_of
from mcpenv.server.sessions.session import Origin
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.tools import Tool
from mcpenv_client.types.values import to_plain

VIEW_S = 10.0
"""Seconds for reading the environment's view."""


class Worlds:
    """The handler. Each request has a session of its own while it runs.

    Args:
        index: the server's record.
    """

    def __init__(self, server: EnvServer, index: RecordIndex) -> None:
        self._pool = server.pool
        self._control = server.control
        self._index = index

    @answered
    async def world(self, request: Request) -> dict[str, Any]:
        """Run a recorded episode again up to a step, and answer ``before``, ``after`` and ``view``.

        These are the states before and after the step (``before`` is null for 0), and the HTML of the first view that
        a tool names (null without one).
        """
        body, name = await self._control.body(request), request.path_params["episode_id"]
        step = body.get("step")
        if body.keys() != {"step"} or not isinstance(step, int) or isinstance(step, bool):
            raise InvalidMessage('the body is {"step": ...}, a whole number from 0')
        found = await asyncio.to_thread(self._index.read, name)
        if found is None:
            raise NoSuchEpisode(f"there is no episode {name[:80]!r} in this server's record")
        session = await self._pool.open(Origin.HTTP)
        session.played_by("console")

        async def reset(seed: int | None, episode_id: str | None, wanted: Any) -> Any:
            await session.reset(seed, episode_id, wanted, None)
            return session.execution

        try:
            execution, states = await look_at(session.execution, found[1], step, reset)
            before, after = [None, *(to_plain(each, "state") for each in states)][-2:]
            return {
                "before": before,
                "after": after,
                "view": await _view_of(execution.env, (await execution.listing()).tools),
            }
        finally:
            await self._pool.close(session, "looked_at")


async def _view_of(env: MCPEnvironment, tools: Iterable[Tool]) -> str | None:
    found = (((tool.meta or {}).get("ui") or {}).get("resourceUri") for tool in tools)
    address = next((each for each in found if isinstance(each, str)), None)
    if address is None:
        return None
    try:
        async with asyncio.timeout(VIEW_S), Client(env.mcp) as client:
            contents = await client.read_resource(address)
    except (MCPError, TimeoutError):  # it cannot be read without a client
        return None
    return next((text for each in contents if (text := getattr(each, "text", None)) is not None), None)


class NoSuchEpisode(InvalidMessage):
    """The error for an episode that is not in the record."""

    http_status = 404


WORLD = Doc(
    "The world of a recorded episode at a step: its calls are made again",
    object_of(
        {
            "before": {"type": ["object", "null"]},
            "after": {"type": "object"},
            "view": {"type": ["string", "null"]},
        }
    ),
    body={"type": "object", "required": ["step"], "properties": {"step": {"type": "integer", "minimum": 0}}},
    errors={404: "No such episode", 422: "A step comes out otherwise, or cannot be run again"},
)
