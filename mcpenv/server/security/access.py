"""The checks around routes: who may use which (`Access`), built from the settings of a server."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from starlette.routing import BaseRoute, Route, WebSocketRoute, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from mcpenv.server.config import ServerConfig
from mcpenv.server.control.traced import Traced
from mcpenv.server.control.version_check import VersionCheck
from mcpenv.server.extension import Access, ServerRoute
from mcpenv.server.mcp.endpoint import OtherOrMCP, SharedRoute

from .control_auth import AgentTokens, ControlGate
from .host_check import Guard

API_KEY = b"x-api-key"
"""The header in which clients of ORS send the control token."""


class AccessChecks:
    """The checks of one server.

    Args:
        admits: functions that return True for requests with a credential that is as good as the control token.
        agents: the static tokens of agents, which refusals tell from wrong ones; None: there are none.
    """

    def __init__(
        self,
        config: ServerConfig,
        admits: Sequence[Callable[[Scope], bool]] = (),
        agents: AgentTokens | None = None,
    ) -> None:
        self._config = config
        self._agents = agents
        self._admits = tuple(admits)

    def routes(self, table: Iterable[ServerRoute]) -> list[BaseRoute]:
        """Return Starlette's routes. Paths that begin with a parameter come last."""
        return [self._route(route) for route in sorted(table, key=_generality)]

    def shared_routes(self, table: Iterable[ServerRoute], mcp: ASGIApp) -> list[BaseRoute]:
        """Return the routes that share a path with MCP, for an address that serves agents.

        Args:
            mcp: serves the requests of MCP clients.
        """
        return [
            SharedRoute(
                route.path,
                self.guard(OtherOrMCP(self._gated(route), mcp, self._config.max_message_bytes, self.admitted)),
                methods=list(route.methods),
            )
            for route in table
            if route.shares_mcp
        ]

    def passes(self, scope: Scope) -> bool:
        """Return True if a request presents the control token, or a credential that an extension accepts."""
        return self.gate(_nothing).passes(scope)

    def admitted(self, scope: Scope) -> bool:
        """Return True if a request may use the control plane: it `passes`, or there is no control token."""
        return self._config.control_token is None or self.passes(scope)

    def gate(self, app: ASGIApp, *tokens: str | None, header: bytes | None = None) -> ControlGate:
        """Put the check of the control token before an application.

        Args:
            tokens: other tokens that are as good here.
            header: a further header that may have the token.
        """
        own = self._config.control_token
        return ControlGate(app, own, *tokens, admits=self._admits, header=header, agents=self._agents)

    def guard(self, app: ASGIApp, *, any_origin: bool = False) -> Guard:
        """Put the check of Host and Origin before an application.

        Args:
            any_origin: web pages of every origin may read it.
        """
        hosts, origins = self._config.allowed_hosts, self._config.allowed_origins
        public = urlsplit(self._config.public_url or "")
        if public.hostname:
            # A proxy may send another Host than the one of the console's page.
            hosts, origins = (*hosts, public.hostname), (*origins, f"{public.scheme}://{public.netloc}")
        return Guard(app, allowed_hosts=hosts, allowed_origins=origins, any_origin=any_origin)

    def guarded(self, route: Route) -> Route:
        """Return a route of Starlette's behind the check of Host and Origin."""
        return Route(route.path, self.guard(route.app), methods=list(route.methods or ()))

    def _route(self, route: ServerRoute) -> BaseRoute:
        app, config = self._gated(route), self._config
        # A scraper finds a server by its address, which is a Host that no setting can name beforehand.
        scraped = route.access is Access.SCRAPED and (config.control_token, config.metrics_token) != (None, None)
        if not scraped:
            app = self.guard(app, any_origin=route.access is Access.PUBLIC and config.public_url is not None)
        if route.websocket:
            return WebSocketRoute(route.path, app)
        return Route(route.path, app, methods=list(route.methods))

    def _gated(self, route: ServerRoute) -> ASGIApp:
        app = asgi_of(route.endpoint)
        match route.access:
            case Access.GUARDED | Access.PUBLIC:
                return app
            case Access.TOKEN:
                return self.gate(app)
            case Access.CONTROLLED:
                return self.gate(VersionCheck(app))
            case Access.TRACED:
                return self.gate(VersionCheck(Traced(app, route.path.removeprefix("/"))))
            case Access.KEYED:
                return self.gate(app, header=API_KEY)
            case Access.SCRAPED:
                return self.gate(app, self._config.metrics_token)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand for the application of a gate that is only asked."""


def asgi_of(endpoint: object) -> ASGIApp:
    """Return the ASGI application of an endpoint, which is one already unless it is a function or a method."""
    function = endpoint
    while isinstance(function, functools.partial):
        function = function.func
    return request_response(endpoint) if inspect.isroutine(function) else endpoint  # type: ignore[arg-type, return-value]


def _generality(route: ServerRoute) -> int:
    """Return 0 for a path that begins with a name, 1 for a parameter and more, 2 for a parameter alone."""
    if not route.path.startswith("/{"):
        return 0
    return 1 if "/" in route.path[1:] else 2
