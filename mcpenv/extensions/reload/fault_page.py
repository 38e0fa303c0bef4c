"""The answer of a development server before its code has loaded: the failure, as a page and as JSON."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from mcpenv.extensions.exports.page.markup import FOOT, el, head_of, html_of, policy, pre
from mcpenv.server.app import application
from mcpenv.server.control.http import plain_json
from mcpenv.server.security.host_check import EXEMPT, Guard

from .failure import Failure

CODE = "CODE_NOT_LOADED"

LOOK_S = 2
"""Seconds after which the page reloads, so that it becomes the console once the code is fixed."""

_ELSEWHERE = Failure(message="the environment's code does not load; the terminal of mcpenv dev says why")


def fault_application(failure: Failure, *, local: bool) -> Starlette:
    """Return the application that answers every request with the failure and status 503.

    Args:
        local: True if only this machine can connect. Other machines do not see the author's code.
    """
    # The allowed hosts are known only after the code's settings are loaded; until then other hosts see no details.
    answer = Guard(_Answer(failure)) if local else _Answer(_ELSEWHERE)
    probes = [Route(path, _Answer(_ELSEWHERE)) for path in EXEMPT]  # of any host, so also of a rebound name
    return application([*probes, Route("/{path:path}", answer), WebSocketRoute("/{path:path}", answer)])


class _Answer:
    """The answer to all requests."""

    def __init__(self, failure: Failure) -> None:
        self._failure = failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(self._json())
            return
        wants_page = "text/html" in Request(scope).headers.get("accept", "")
        await (self._page() if wants_page else self._json())(scope, receive, send)

    def _json(self) -> Response:
        failure = self._failure
        place = "" if failure.file is None else f"{failure.file}:{failure.line}: "
        message = f"The environment's code does not load: {place}{failure.message}"
        headers = {"Cache-Control": "no-store", "Retry-After": str(LOOK_S)}
        return plain_json({**vars(failure), "code": CODE, "message": message}, 503, headers)

    def _page(self) -> Response:
        failure = self._failure
        traceback = el("details", el("summary", "Traceback"), pre(failure.traceback, "Traceback"))
        shown = el(
            "section",
            el("p", failure.message, class_="error"),
            None if failure.file is None else el("p", el("code", f"{failure.file}, line {failure.line}")),
            None if failure.source is None else pre(failure.source, "Line"),
            traceback if failure.traceback else None,
            class_="card",
        )
        title = "The environment's code does not load"
        body = html_of(el("h1", title)) + html_of(shown)
        body += html_of(el("p", "Mend the file: it is loaded when you save it, and this page looks again by itself."))
        headers = {
            "Cache-Control": "no-store",
            "Content-Security-Policy": f"{policy()}; frame-ancestors 'none'",
            "Refresh": str(LOOK_S),
            "Retry-After": str(LOOK_S),
            "X-Content-Type-Options": "nosniff",
        }
        return Response(head_of(title) + body + FOOT, 503, headers, "text/html; charset=utf-8")
