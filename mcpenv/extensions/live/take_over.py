"""Act in a session of somebody else's: take an agent's episode over, make calls in it, and hand it back.

The session is paused while a person has it: the calls of its agent and of its orchestrator wait. The calls of the
person are steps of the same episode. The record names their caller as ``call.principal``.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import answered
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import InvalidMessage
from mcpenv_client.types.records import Plane
from mcpenv_client.types.values import to_plain
from mcpenv_client.wire.protocol import observation_data

LEASE_S = 150.0
"""Seconds after which an episode is handed back, if the page that has it does not renew. Browsers run the timers of
hidden pages once a minute."""

MAX_NAME = len("person ") + 100
"""Maximum characters of a caller's name: the console writes "person" before that of a reviewer."""


@dataclass
class _Holding:
    """The person who has a session. ``turn`` lets the calls of that person run one after the other."""

    holder: str
    by: str
    pause: Any = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class TakeOver:
    """The handlers. A page names itself by ``holder``, a text that only it knows."""

    def __init__(self, server: EnvServer) -> None:
        self._pool = server.pool
        self._control = server.control
        self._holdings: dict[str, _Holding] = {}

    @answered
    async def take(self, request: Request) -> dict[str, Any]:
        """Take a session over (POST), renew (PUT), or hand it back (DELETE). Answer who has it.

        The body has ``holder``; that of POST also ``by``, the name for the record, and its answer has ``tools``. PUT
        changes nothing unless the session is this page's.
        """
        session = self._session(request)
        body = await self._control.body(request)
        holder, method = _name(body, "holder"), request.method
        holding = self._holding(session)
        mine = holding is not None and holding.holder == holder
        if method == "PUT":
            if mine:
                session.hold_up(time.time() + LEASE_S)
            return self._told(session, holder)
        self._refuse_others(session, holder)
        if method == "DELETE":
            if mine:
                session.resume()
            return self._told(session, holder)
        if session.execution.episode.state.value != "running":
            raise _Refused("no episode runs in this session")
        if session.closing is not None or self._pool.ending:
            raise _Refused("the session is being closed")
        tools = await session.execution.list_tools()
        if holding is None:
            session.resume()
            holding = _Holding(holder, _name(body, "by"))
        holding.pause = session.hold_up(time.time() + LEASE_S)
        kept = {key: each for key, each in self._holdings.items() if not each.pause.over}
        self._holdings = {**kept, session.id: holding}
        return {**self._told(session, holder), "tools": to_plain(tools)}

    @answered
    async def call(self, request: Request) -> dict[str, Any]:
        """Make a call in a session, and answer as ``/step`` does.

        The body has ``action``, and ``holder`` if the session is taken over, else ``by``.
        """
        session = self._session(request)
        body = await self._control.body(request)
        action, holding = body.get("action"), self._refuse_others(session, str(body.get("holder")))
        if not isinstance(action, dict):
            raise InvalidMessage("action is needed: a JSON object")
        parsed = session.actions.parse(dict(action))
        by = _name(body, "by") if holding is None else holding.by
        if holding is None:
            return observation_data(await session.execution.step(parsed, plane=Plane.CONTROL, principal=by))
        async with holding.turn:
            if not holding.pause.begun:
                raise _Refused("the episode is handed back, or a call of the agent still runs")
            step = session.execution.step(parsed, plane=Plane.CONTROL, principal=by)
            return observation_data(await holding.pause.lend(step))

    @answered
    async def cancel(self, request: Request) -> dict[str, Any]:
        """Cancel the call that runs in a session, whoever made it. Its status is ``cancelled``; the episode goes on."""
        return {"cancelled": self._session(request).execution.lock.cancel()}

    def _session(self, request: Request) -> Session:
        session = self._pool.seen(request.path_params["session_id"])
        if not session.origin.orchestrated:
            raise _Refused("an agent opened this session, and no orchestrator: it has no episodes")
        return session

    def _refuse_others(self, session: Session, holder: str) -> _Holding | None:
        """Return who has the session; None if nobody has. Raise if another one has it."""
        holding = self._holding(session)
        if holding is not None and holding.holder != holder:
            raise _Refused(f"{holding.by} has taken this session over")
        return holding

    def _holding(self, session: Session) -> _Holding | None:
        holding = self._holdings.get(session.id)
        return None if holding is None or holding.pause.over or holding.pause is not session.pause else holding

    def _told(self, session: Session, holder: str) -> dict[str, Any]:
        holding, told = self._holding(session), None
        if holding is not None:
            told = {"by": holding.by, "begun": holding.pause.begun, "mine": holding.holder == holder}
        busy, until = session.execution.lock.running, session.paused_until
        return {"session_id": session.id, "busy": busy, "paused_until": until, "held": told}


class _Refused(InvalidMessage):
    """The error for a session that is not to be acted in now."""

    http_status = 409


def _name(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not value.isprintable():
        raise InvalidMessage(f"{key} is needed: a text of 1 to {MAX_NAME} characters without control characters")
    return value
