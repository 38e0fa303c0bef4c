"""The files of the console, served from the installed package."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
from collections.abc import Iterator, Sequence
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

PAGE, FRAME = "index.html", "frame.html"

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src data: blob:; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}"
)

_FRAME_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; media-src data: blob:; font-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'{ancestors}"
)
"""The policy of an environment's own view: its inline scripts run, without an origin, a connection or a form."""


class ConsoleFiles:
    """The handlers of the console's page and its files, which hold nothing secret and need no token.

    Args:
        frame_ancestors: the origins whose pages may show the console in a frame.
    """

    def __init__(self, frame_ancestors: Sequence[str] = ()) -> None:
        self._headers = {
            "Cache-Control": "no-cache",
            "Content-Security-Policy": _POLICY.format(ancestors=" ".join(frame_ancestors) or "'none'"),
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        # A page that shows the console is an ancestor of the frame too.
        policy = _FRAME_POLICY.format(ancestors="".join(f" {origin}" for origin in frame_ancestors))
        self._frame_headers = {
            **self._headers,
            "Content-Security-Policy": policy,
            "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
            "X-DNS-Prefetch-Control": "off",
            "Connection-Allowlist": "()",  # holds for what policies do not: hints, navigation, WebRTC (Chromium)
        }

    async def folder(self, request: Request) -> Response:
        """Redirect to the folder, so that the page's relative names mean its files. The target is relative too."""
        return Response(None, 307, {"Location": "console/"})

    async def frame(self, request: Request) -> Response:
        """Answer the page that becomes an environment's own view (a resource of MCP Apps) inside of the console."""
        content = (importlib.resources.files(__package__) / FRAME).read_bytes()
        return Response(content, 200, self._frame_headers, MEDIA_TYPES[".html"])

    async def file(self, request: Request) -> Response:
        """Answer a file; the page for a path that is no file's, which is one of the page's own."""
        name = request.path_params["path"]
        # A name is looked up among those of the package: no path is made of it that could leave the folder.
        if name not in _files():
            if PurePosixPath(name).suffix in MEDIA_TYPES:
                return JSONResponse({"message": "the console has no such file", "code": "NOT_FOUND"}, 404)
            name = PAGE
        content = _files()[name].read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {**self._headers, "ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        return Response(content, 200, headers, MEDIA_TYPES[PurePosixPath(name).suffix])


@functools.cache
def _files() -> dict[str, Traversable]:
    """Return the files by their names, which have slashes where they are in folders."""
    folder = importlib.resources.files(__package__) / "static"
    return {name: file for name, file in _walk(folder, "") if PurePosixPath(name).suffix in MEDIA_TYPES}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry
