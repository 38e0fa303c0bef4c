"""Starlette applications as this server makes them, and what joins them to applications of others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Lifespan


def application(
    routes: list[BaseRoute], lifespan: Lifespan[Any] | None = None, middleware: Sequence[Callable[..., ASGIApp]] = ()
) -> Starlette:
    """Return an application of these routes, without redirects, which would repeat a request's Host."""
    app = Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(each) for each in middleware])
    app.router.redirect_slashes = False
    return app


def add_lifespan(app: Starlette, lifespan: Lifespan[Any]) -> None:
    """Run another lifespan around the one that an application has."""
    own = app.router.lifespan_context

    @asynccontextmanager
    async def both(app: Any) -> AsyncIterator[Any]:
        async with lifespan(app), own(app) as state:
            yield state

    app.router.lifespan_context = both


@contextmanager
def serving_also(app: Any, routes: Sequence[BaseRoute]) -> Iterator[None]:
    """Add routes to an application while the block runs."""
    app.router.routes.extend(routes)
    try:
        yield
    finally:
        for route in routes:
            app.router.routes.remove(route)


def around(route: BaseRoute, middleware: Sequence[Callable[..., ASGIApp]]) -> BaseRoute:
    """Put middleware around the application of a route, the first one outermost; return the route."""
    assert isinstance(route, Route | WebSocketRoute)
    for wrap in reversed(middleware):
        route.app = wrap(route.app)
    return route
