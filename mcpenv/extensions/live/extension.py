"""The extension of a server with whose routes sessions are watched, by the console and by ``mcpenv sessions``."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import answered, plain_json, streaming
from mcpenv.server.extension import Access, Doc, Extension, ServerRoute
from mcpenv.server.sessions.session import Session
from mcpenv_client.errors import InvalidMessage, SessionLost
from mcpenv_client.types.records import Trajectory

from .session_events import Position, begun_trajectory, events_of, key_of, shown_step, without_steps
from .session_feed import SessionFeed
from .take_over import TakeOver

SHOWN_TYPES = frozenset(
    {
        "audio/mpeg",
        "audio/ogg",
        "audio/wav",
        "image/gif",
        "image/jpeg",
        "image/png",
        "image/svg+xml",
        "image/webp",
    }
)
"""The media types that a browser is told. Any other is a download: what a tool returned is never a page."""


_UNKNOWN = {404: "No such session"}
_WATCH = {409: "The session has no episode", 422: "There is no such place in an episode"}
_CHANGES = Doc("The list of sessions, as it changes", "text/event-stream", errors=_WATCH)
_TRAJECTORY = Doc(
    "The episode of a session, and its steps after a number of them",
    query={"after": {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}},
    errors=_UNKNOWN | _WATCH,
)
_EVENTS = Doc("The steps of a session, as they happen", "text/event-stream", errors=_UNKNOWN | _WATCH)
_CONTENT = Doc(
    "An image or sound that a step returned", "*/*", gives="The file", errors={404: "No such content", **_WATCH}
)


class Live(Extension):
    """The handlers. They read what the core has recorded, and neither wait for the environment nor delay it."""

    def __init__(self, server: EnvServer) -> None:
        self._pool = server.pool
        self._feed = SessionFeed(server)
        self._take_over = TakeOver(server)

    def routes(self) -> list[ServerRoute]:
        """Return the routes."""
        one = "/sessions/{session_id:path}"
        block = f"{one}/steps/{{step:int}}/content/{{block:int}}"
        acting = self._take_over
        return [
            ServerRoute("/sessions/events", self.changes, Access.CONTROLLED, docs=_CHANGES),
            ServerRoute(f"{one}/trajectory", self.trajectory, Access.CONTROLLED, docs=_TRAJECTORY),
            ServerRoute(f"{one}/events", self.events, Access.CONTROLLED, docs=_EVENTS),
            ServerRoute(block, self.content, Access.CONTROLLED, docs=_CONTENT),
            ServerRoute(f"{one}/holder", acting.take, Access.CONTROLLED, ("POST", "PUT", "DELETE")),
            ServerRoute(f"{one}/calls", acting.call, Access.CONTROLLED, ("POST",)),
            ServerRoute(f"{one}/cancel", acting.cancel, Access.CONTROLLED, ("POST",)),
        ]

    def end_streams(self) -> None:
        """End the streams of those who watch."""
        self._pool.stop_watching()
        self._feed.close()

    @answered
    async def changes(self, request: Request) -> Response:
        """Answer an event stream of the list of sessions."""
        return streaming(self._feed.events(_last_event(request)))

    @answered
    async def trajectory(self, request: Request) -> dict[str, Any]:
        """Answer the episode, and its steps after the first ``after``."""
        session = self._watchable(request)
        trajectory = self._begun(session)
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdigit()) or len(after) > 15:
            raise InvalidMessage(f"after is a number of steps, 0 or more, and not {after[:80]!r}")
        first = max(int(after), trajectory.dropped)
        key = key_of(trajectory)
        return {
            "session_id": session.id,
            "episode": key,
            "state": session.execution.episode.state.value,
            "step_count": trajectory.dropped + len(trajectory.steps),
            "dropped": trajectory.dropped,
            "trajectory": without_steps(trajectory),
            "steps": [
                shown_step(session.id, key, position, step)
                for position, step in enumerate(trajectory.steps[first - trajectory.dropped :], first + 1)
            ],
        }

    @answered
    async def events(self, request: Request) -> Response:
        """Answer an event stream of the session's episodes."""
        return streaming(events_of(self._watchable(request), _last_event(request)))

    @answered
    async def content(self, request: Request) -> Response:
        """Answer the bytes of an image or audio of a step."""
        block = self._block(request)
        try:
            data = base64.b64decode(block["data"], validate=True)
        except (binascii.Error, ValueError):
            return plain_json({"message": "this content is not base64 text", "code": "VALIDATION_ERROR"}, 422)
        return media(data, str(block.get("mimeType")))

    def _block(self, request: Request) -> dict[str, Any]:
        """Return a block of content that has data.

        Raises:
            SessionLost: there is no such session, episode, step or block.
        """
        trajectory = self._begun(self._watchable(request))
        position = request.path_params["step"] - trajectory.dropped
        asked = request.query_params.get("episode")
        if not 0 < position <= len(trajectory.steps) or asked not in (None, key_of(trajectory)):
            raise _Gone("this step is no longer there: another episode has begun, or it was dropped")
        result = trajectory.steps[position - 1].outcome.result
        blocks: list[dict[str, Any]] = [] if result is None else result.content
        index = request.path_params["block"]
        block = blocks[index] if index < len(blocks) else {}
        if not isinstance(block.get("data"), str):
            raise _Gone("this step has no such image or audio")
        return block

    def _watchable(self, request: Request) -> Session:
        session = self._pool.seen(request.path_params["session_id"])
        if not session.origin.orchestrated:
            raise _NotWatchable("this session has no episodes to watch: an agent opened it, and no orchestrator")
        return session

    def _begun(self, session: Session) -> Trajectory:
        trajectory = begun_trajectory(session)
        if trajectory is None:
            raise _NotWatchable("there is no episode yet; reset first")
        return trajectory


def _last_event(request: Request) -> Position | None:
    text = request.headers.get("last-event-id") or request.query_params.get("after")
    return Position(text) if text else None


class _NotWatchable(InvalidMessage):
    """The error for a session without an episode."""

    http_status = 409


class _Gone(SessionLost):
    """The error for a part of a session that is not there any more."""

    http_status = 404


def media(data: bytes, media_type: str) -> Response:
    """Return what a tool returned, so that a browser shows it as an image or audio and runs nothing of it."""
    headers = {
        "Cache-Control": "private, max-age=3600",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    if media_type not in SHOWN_TYPES:
        media_type = "application/octet-stream"
        headers["Content-Disposition"] = "attachment"
    return Response(data, 200, headers, media_type)
