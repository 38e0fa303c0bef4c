"""The worlds of recorded episodes: the state at a step, what the step changed, and the environment's view."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from fastmcp import Client
from mcp import MCPError
from starlette.requests import Request

from mcpenv import MCPEnvironment
from mcpenv.errors import DamagedRecord
from mcpenv.extensions.records.record_index import RecordIndex
from mcpenv.extensions.records.replay import CannotBranch, look_at, refuse_other_steps
from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import answered
from mcpenv.server.extension import Doc, object_of
from mcpenv.server.sessions.session import Origin
from mcpenv.trajectories import Blobs, RecordedEpisode
from mcpenv_client.errors import CapacityReached, InvalidMessage
from mcpenv_client.types.tools import Tool
from mcpenv_client.types.values import to_plain

VIEW_S = 10.0
"""Seconds for reading the environment's view."""

LOOK_S = 60.0
"""Maximum seconds of a look."""


class Worlds:
    """The handler. Each request has a free session while it runs, one request after the other.

    Args:
        index, blobs: the server's record.
    """

    def __init__(self, server: EnvServer, index: RecordIndex, blobs: Blobs) -> None:
        self._source = server.source
        self._pool = server.pool
        self._control = server.control
        self._index, self._blobs = index, blobs
        self._alone = asyncio.Lock()

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
        episode = await asyncio.to_thread(self._read, name)
        refuse_other_steps(episode.trajectory, step)
        looking = asyncio.ensure_future(self._look(episode, step))
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({looking, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not looking.done():
                looking.cancel()
                await asyncio.wait({looking})
        if looking.cancelled():
            raise InvalidMessage("the client has left")  # which nobody reads
        return await looking

    def _read(self, name: str) -> RecordedEpisode:
        cls = self._source.environment_class
        if cls is not None and cls.DURABILITY == "restart":
            raise CannotBranch("the environment says that its episodes cannot be played again")
        try:
            found = self._index.read(name)
        except DamagedRecord as error:
            raise NoSuchEpisode("this episode cannot be read any more") from error
        if found is None:
            raise NoSuchEpisode(f"there is no episode {name[:80]!r} in this server's record")
        return self._blobs.restored(found[1])

    async def _look(self, episode: RecordedEpisode, step: int) -> dict[str, Any]:
        async with self._alone:
            if self._pool.slots.full:  # nobody's session ends for a look
                raise CapacityReached("a look at a world needs a free session of this server; try again")
            session = await self._pool.open(Origin.HTTP)
            session.execution.sink = None
            session.played_by("console")

            async def reset(seed: int | None, episode_id: str | None, wanted: Any) -> Any:
                await session.reset(seed, episode_id, wanted, None)
                return session.execution

            try:
                async with asyncio.timeout(LOOK_S):
                    execution, states = await look_at(session.execution, episode, step, reset)
                    before, after = [None, *(to_plain(each, "state") for each in states)][-2:]
                    return {
                        "before": before,
                        "after": after,
                        "view": await _view_of(execution.env, (await execution.listing()).tools),
                    }
            except TimeoutError:
                raise CannotBranch(f"the calls up to step {step} take longer than {LOOK_S:g} s") from None
            finally:
                await self._pool.close(session, "looked_at")


async def _left(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _view_of(env: MCPEnvironment, tools: Iterable[Tool]) -> str | None:
    found = (ui.get("resourceUri") for tool in tools if isinstance(ui := (tool.meta or {}).get("ui"), dict))
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
    "The world of a recorded episode at a step: its calls are made again, but for those to the outside",
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
