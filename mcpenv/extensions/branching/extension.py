"""The frame ``branch`` of ``/ws``: begin an episode that continues a recorded one after a step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mcpenv.extensions.records.record_index import RecordIndex
from mcpenv.extensions.records.replay import CannotBranch, open_start
from mcpenv.server.app import EnvServer
from mcpenv.server.extension import Access, Extension, ServerRoute
from mcpenv.server.sessions.operations import Operation
from mcpenv.trajectories import Blobs
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.starts import Start
from mcpenv_client.types.status import Stage
from mcpenv_client.types.tools import Mode
from mcpenv_client.wire.protocol import FrameType

from .worlds import WORLD, Worlds

if TYPE_CHECKING:
    from mcpenv.server.sessions.session import Session


@dataclass(slots=True)
class Branch(Operation):
    """Begin an episode that continues a recorded one.

    Attributes:
        index, blobs: the server's own record; None if it does not record.
    """

    frame = FrameType.BRANCH
    stage = Stage.RESET
    index: ClassVar[RecordIndex | None] = None
    blobs: ClassVar[Blobs | None] = None

    start: Start
    timeout_s: float | None = None

    @classmethod
    def from_wire(cls, data: Mapping[str, Any], session: Session, timeout_s: float | None = None) -> Branch:
        """Decode a branch."""
        return cls(Start.from_wire(data), timeout_s)

    async def run(self, session: Session) -> Observation:
        """Reset the session, and run the recorded calls up to the step. Return the observation of that step."""
        start = self.start
        if isinstance(start.record, str):
            sink, own = session.execution.sink, session.execution.episode
            if sink is not None and own.id == start.record and own.done:
                await sink.written(start.record)
            start = await asyncio.to_thread(self._read, start.record, start.step)

        async def reset(seed: int | None, episode_id: str | None, wanted: Any) -> Any:
            await session.reset(seed, episode_id, wanted, self.timeout_s)
            return session.execution

        observation = (await open_start(session.execution, start, reset)).episode.latest()
        return observation.model_copy(update={"info": {**observation.info, "mcp_url": session.mcp_url}})

    def _read(self, episode_id: str, step: int) -> Start:
        if self.index is None or self.blobs is None:
            raise InvalidMessage("this server has no record; send the trajectory of the episode")
        found = self.index.read(episode_id)
        if found is None:
            raise InvalidMessage(f"there is no episode {episode_id[:80]!r} in this server's record")
        try:
            return Start(self.blobs.restored(found[1]), step)
        except ValueError as error:
            raise CannotBranch(str(error)) from error


class Branching(Extension):
    """The extension of a server in simulation. Its sockets take the frame ``branch``."""

    def __init__(self, server: EnvServer) -> None:
        directory = server.config.record
        own: dict[str, Any] = {"__slots__": ()}
        self._routes: list[ServerRoute] = []
        if directory is not None:
            own |= {"index": RecordIndex(directory), "blobs": Blobs(directory)}
        if server.config.mode is Mode.SIMULATION:
            server.pool.operations[Branch.frame] = type("Branch", (Branch,), own)
            if directory is not None:
                worlds = Worlds(server, own["index"], own["blobs"])
                path = "/records/{episode_id:path}/world"
                self._routes = [ServerRoute(path, worlds.world, Access.CONTROLLED, ("POST",), docs=WORLD)]

    def routes(self) -> list[ServerRoute]:
        """Return the route of recorded worlds, if the server records and plays."""
        return self._routes
