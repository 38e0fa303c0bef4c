"""The console as an extension of a server: its files, its sign-in, and the cookie of a signed-in browser."""

from __future__ import annotations

import os

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import plain_json
from mcpenv.server.extension import Access, Extension, ServerRoute

from . import MODELS
from .console_cookie import ConsoleCookie
from .files import ConsoleFiles
from .play_sessions import PlaySessions
from .played_calls import PlayedCalls
from .sign_in import SignIn


class Console(Extension):
    """The extension. Its pages need no token; what they read does."""

    def __init__(self, server: EnvServer) -> None:
        token = server.config.control_token
        self._cookie = None if token is None else ConsoleCookie(token, server.config.public_url)
        self._files = ConsoleFiles(server.config.frame_ancestors)
        self._sign_in = SignIn(server, self._cookie)
        self._sessions = PlaySessions(server)
        self._calls = PlayedCalls(server)
        self._models: list[str] = []
        self._moves: list[ServerRoute] = []
        if os.environ.get(MODELS):
            # Imported on use: it takes half a second.
            from .model_moves import ModelMoves

            moves = ModelMoves(server, os.environ[MODELS])
            self._models = list(moves.models)
            self._moves = [ServerRoute("/sessions/{session_id:path}/moves", moves.move, Access.CONTROLLED, ("POST",))]

    def routes(self) -> list[ServerRoute]:
        """Return the routes. Paths that no other route has are files, or the page's own."""
        files, sign_in = self._files, self._sign_in
        return [
            ServerRoute("/console", files.folder, Access.GUARDED),
            ServerRoute("/console/frame.html", files.frame, Access.GUARDED),
            ServerRoute("/console/api/session", sign_in.session, Access.GUARDED),
            ServerRoute("/console/api/sign-in", sign_in.sign_in, Access.GUARDED, ("POST",)),
            ServerRoute("/console/api/sign-out", sign_in.sign_out, Access.GUARDED, ("POST",)),
            ServerRoute("/console/api/sessions", self._sessions.open, Access.CONTROLLED, ("POST",)),
            ServerRoute("/console/api/code", self._calls.code, Access.CONTROLLED, ("POST",)),
            ServerRoute("/console/api/evidence", self._calls.evidence, Access.CONTROLLED, ("POST",)),
            ServerRoute("/console/api/task", self._calls.task, Access.CONTROLLED, ("POST",)),
            ServerRoute("/console/api/play", self.play, Access.CONTROLLED),
            *self._moves,
            ServerRoute("/sessions/{session_id:path}/running", self._sessions.running, Access.CONTROLLED),
            ServerRoute("/console/{path:path}", files.file, Access.GUARDED),
        ]

    def admits(self, scope: Scope) -> bool:
        """Return True for a request with the cookie of a signed-in browser."""
        return self._cookie is not None and self._cookie.expiry_of(scope) is not None

    async def play(self, request: Request) -> Response:
        """Answer what the page Play offers: the names of ``models``, and what `PlayedCalls.offered` returns."""
        return plain_json({"models": self._models, **self._calls.offered()})

    async def stop(self) -> None:
        """Stop the checks of the sessions of the page Play."""
        await self._sessions.stop()
