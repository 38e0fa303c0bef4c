"""The extension of a server that describes its HTTP routes, those of extensions included."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from mcpenv.server.app import EnvServer
from mcpenv.server.control.http import plain_json
from mcpenv.server.extension import Access, Extension, ServerRoute

from .document import document, page


class ApiDocs(Extension):
    """Describes the routes at ``/openapi.json`` for programs, and at ``/docs`` for people."""

    def __init__(self, server: EnvServer) -> None:
        self._server = server

    def routes(self) -> list[ServerRoute]:
        """Return the routes. They need no token: a caller learns there which token the others need."""
        return [
            ServerRoute("/openapi.json", self.openapi, Access.GUARDED),
            ServerRoute("/docs", self.docs, Access.GUARDED),
        ]

    async def openapi(self, request: Request) -> Response:
        """Answer the OpenAPI document of all routes."""
        return plain_json(self._document())

    async def docs(self, request: Request) -> Response:
        """Answer the OpenAPI document as a page."""
        return HTMLResponse(page(self._document()), headers={"Content-Security-Policy": "frame-ancestors 'none'"})

    def _document(self) -> dict[str, Any]:
        server, config = self._server, self._server.config
        tokens = {"controlToken": config.control_token, "metricsToken": config.metrics_token}
        given = [name for name, token in tokens.items() if token is not None]
        about = server.description
        return document(about.metadata(), about.schema([]), server.control.table, given)
