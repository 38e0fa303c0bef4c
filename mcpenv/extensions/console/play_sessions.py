"""The sessions of the page Play. They outlive their socket for a while, so that a reloaded page finds its own again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from starlette.requests import Request

from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import answered
from mcpenv.server.sessions.session import Origin
from mcpenv_client.types.values import to_plain

KEPT_S = 300.0
"""Seconds that a session waits for its page, after its socket was lost or the tab was closed."""

RELOAD_S = 3.0
"""The same while another client waits for a free session."""

LOOK_S = 1.0
"""Seconds between two checks."""


class PlaySessions:
    """Opens sessions of the page, and ends those that it has left. All methods belong to the event loop."""

    def __init__(self, server: EnvServer) -> None:
        self._pool = server.pool
        self._control = server.control
        self._opened: set[str] = set()
        self._watching: asyncio.Task[None] | None = None

    @answered
    async def open(self, request: Request) -> dict[str, Any]:
        """Open a session, which a socket joins by its id. Its slot is free for others while no socket holds it."""
        await self._control.body(request)
        session = await self._pool.open(Origin.HTTP)
        session.played_by("console")
        self._opened.add(session.id)
        if self._watching is None:
            self._watching = asyncio.create_task(self._end_left())
        return {"session_id": session.id}

    @answered
    async def running(self, request: Request) -> dict[str, Any]:
        """Answer the log of the call that runs in a session, so far; an empty one if none runs."""
        execution = self._pool.seen(request.path_params["session_id"]).execution
        return {"logs": to_plain(execution.logs) if execution.busy else []}

    async def stop(self) -> None:
        """Stop the checks."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    async def _end_left(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            kept_s = RELOAD_S if self._pool.slots.waiting else KEPT_S
            for session_id in list(self._opened):
                session = self._pool.peek(session_id)
                if session is None:
                    self._opened.discard(session_id)
                elif session.idle_s >= kept_s:
                    self._pool.close_soon(session_id, "disconnected")
