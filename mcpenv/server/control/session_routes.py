"""``/sessions`` and ``/capacity``: what runs here, for the orchestrator."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mcpenv.execution.episode import Episode
from mcpenv.server.sessions.membership import Membership
from mcpenv.server.sessions.pool import SessionPool
from mcpenv.server.sessions.session import Origin, Session
from mcpenv_client.errors import SessionLost

from .http import ControlRoutes, answered, plain_json


class SessionRoutes:
    """The handlers. Times are seconds since the epoch, UTC."""

    def __init__(self, pool: SessionPool, control: ControlRoutes, membership: Membership) -> None:
        self._pool = pool
        self._control = control
        self._membership = membership

    async def capacity(self, request: Request) -> Response:
        """How many sessions there are and may be."""
        slots = await self._pool.slots.occupancy()
        active, most = slots.taken, slots.limit
        return plain_json(
            {
                "active_sessions": active,
                "max_sessions": most,
                "available_slots": max(most - active, 0),
                "waiting": slots.waiting,
                "quarantined": slots.quarantined,
                "ready": slots.open,
            }
        )

    async def sessions(self, request: Request) -> Response:
        """List the sessions, or open one (POST) without resetting it."""
        if request.method == "POST":
            return await answered(self._open, request)
        own = [info_of(session) for session in self._pool.sessions()]
        return plain_json({"sessions": await self._membership.sessions(own)})

    async def session(self, request: Request) -> Response:
        """One session: what it is, or end it (DELETE)."""
        return await answered(self._end if request.method == "DELETE" else self._info, request)

    async def _open(self, request: Request) -> dict[str, Any]:
        await self._control.body(request)
        session = await self._pool.open(Origin.HTTP)
        session.claimed = True
        return info_of(session)

    async def _info(self, request: Request) -> dict[str, Any]:
        return info_of(self._find(request))

    async def _end(self, request: Request) -> dict[str, Any]:
        session = self._find(request)
        await self._pool.end(session)
        return {"session_id": session.id, "closed": True}

    def _find(self, request: Request) -> Session:
        session = self._pool.peek(request.path_params["session_id"])
        if session is None:
            raise SessionLost("no such session; it was closed, timed out, or never was")
        return session


def info_of(session: Session) -> dict[str, Any]:
    """What an orchestrator may know of a session."""
    execution = session.execution
    planes = {Origin.SOCKET: "control", Origin.HTTP: "control"}.get(session.origin, "agent")
    attached = [planes] if session.held or session.origin is not Origin.SOCKET else []
    if session.handle is not None and session.handle.used:
        attached.append("agent")
    return {
        "session_id": session.id,
        "created_at": session.created_at,
        "last_activity_at": session.created_at + (session.last_activity - session.created_monotonic),
        "step_count": execution.episode.step_count,
        "environment_type": execution.environment_type,
        "origin": session.origin.value,
        "mode": execution.mode.value,
        "planes": attached,
        "episode_id": execution.episode.id if execution.episode.orchestrated else None,
        "state": execution.episode.state.value,
        "busy": execution.busy,
        **_worth(execution.episode),
    }


def _worth(episode: Episode) -> dict[str, Any]:
    """What the episode is about and what it has earned: nothing where nobody owns episodes."""
    trajectory = episode.trajectory if episode.orchestrated else None
    if trajectory is None:
        return {"task": None, "return": None, "reward": None}
    rewards = (trajectory.end_reward, *(record.reward for record in reversed(trajectory.steps)))
    last = next((reward for reward in rewards if reward is not None), None)
    return {
        "task": None if trajectory.task is None else trajectory.task.name,
        "return": episode.earned if trajectory.fault is None else None,
        "reward": None if last is None else {"value": last.value, "components": dict(last.components)},
    }
