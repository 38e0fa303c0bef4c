"""The routes ``/sessions`` and ``/capacity``, for the orchestrator."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mcpenv.server.sessions.membership import Membership
from mcpenv.server.sessions.pause import MAX_PAUSE_S
from mcpenv.server.sessions.pool import SessionPool
from mcpenv.server.sessions.session import Origin, Session
from mcpenv_client.errors import InvalidMessage, SessionLost
from mcpenv_client.types.records import Reward, Trajectory
from mcpenv_client.types.server import SessionInfo

from .http import ControlRoutes, answered, plain_json

PAUSE_S = 300.0
"""Seconds of a pause that names none."""


class SessionRoutes:
    """The handlers. Times are seconds since the epoch, UTC."""

    def __init__(self, pool: SessionPool, control: ControlRoutes, membership: Membership) -> None:
        self._pool = pool
        self._control = control
        self._membership = membership

    async def capacity(self, request: Request) -> Response:
        """Answer how many sessions the server has and may have: a `ServerCapacityStatus`."""
        return plain_json((await self._pool.slots.status()).to_plain())

    @answered
    async def sessions(self, request: Request) -> dict[str, Any]:
        """List the sessions, or open one (POST) without resetting it."""
        if request.method == "POST":
            await self._control.body(request)
            session = await self._pool.open(Origin.HTTP)
            session.claimed = True
            return info_of(session).to_plain()
        own = [info_of(session) for session in self._pool.sessions()]
        found, partial = await self._membership.sessions(own)
        return {"sessions": [each.to_plain() for each in found], **({"partial": True} if partial else {})}

    @answered
    async def session(self, request: Request) -> dict[str, Any]:
        """Describe one session, or end it (DELETE)."""
        session = self._find(request)
        if request.method == "DELETE":
            await self._pool.end(session)
            return {"session_id": session.id, "closed": True}
        return info_of(session).to_plain()

    @answered
    async def pause(self, request: Request) -> dict[str, Any]:
        """Pause a session: its next calls wait until it is resumed, or the deadline."""
        body = await self._control.body(request)
        timeout_s = body.get("timeout_s", PAUSE_S)
        number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if body.keys() - {"timeout_s"} or not number or not 0 < timeout_s <= MAX_PAUSE_S:
            raise InvalidMessage(
                f'the body is {{"timeout_s": ...}}, seconds above 0 and at most {MAX_PAUSE_S:g}, or {{}}'
            )
        session = self._find(request)
        if session.closing is not None or self._pool.ending:
            raise SessionLost("the session is being closed")
        pause = session.hold_up(time.time() + timeout_s)
        return {"session_id": session.id, "paused_until": pause.until, "begun": pause.begun}

    @answered
    async def resume(self, request: Request) -> dict[str, Any]:
        """End the pause of a session."""
        await self._control.body(request)
        session = self._find(request)
        return {"session_id": session.id, "resumed": session.resume()}

    def _find(self, request: Request) -> Session:
        return self._pool.seen(request.path_params["session_id"])


def info_of(session: Session) -> SessionInfo:
    """Return the description of a session."""
    execution, episode = session.execution, session.execution.episode
    plane = "control" if session.origin in (Origin.SOCKET, Origin.HTTP) else "agent"
    planes = [plane] if session.held or session.origin is not Origin.SOCKET else []
    if session.handle is not None and session.handle.used:
        planes.append("agent")
    # Episodes without an orchestrator have no id, task or rewards for others to see.
    trajectory = episode.trajectory if episode.orchestrated else None
    return SessionInfo(
        session_id=session.id,
        created_at=session.created_at,
        last_activity_at=session.created_at + (session.last_activity - session.created_monotonic),
        step_count=episode.step_count,
        environment_type=execution.environment_type,
        origin=session.origin.value,
        mode=execution.mode,
        planes=planes,
        episode_id=episode.id if episode.orchestrated else None,
        state=episode.state.value,
        busy=execution.busy,
        task=None if trajectory is None or trajectory.task is None else trajectory.task.name,
        total_reward=None if trajectory is None or trajectory.fault is not None else episode.earned,
        reward=None if trajectory is None else _last_reward(trajectory),
        status=None if trajectory is None or trajectory.status is None else trajectory.status.code.value,
        agent=session.agent or (session.handle and session.handle.agent) or _principal(trajectory),
        paused_until=session.paused_until,
        unwritten=None if execution.journal is None else execution.journal.unwritten,
    )


def _principal(trajectory: Trajectory | None) -> str | None:
    return trajectory.steps[-1].call.principal if trajectory is not None and trajectory.steps else None


def _last_reward(trajectory: Trajectory) -> Reward | None:
    rewards = (trajectory.end_reward, *(record.reward for record in reversed(trajectory.steps)))
    return next((reward for reward in rewards if reward is not None), None)
