"""The viewer of a record: the console without an environment, for this machine only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from mcpenv.errors import ConfigurationError
from mcpenv.server.app import application
from mcpenv.server.control.http import Handler, plain_json
from mcpenv.server.security.access import asgi_of
from mcpenv.server.security.host_check import Guard
from mcpenv.server.uvicorn_server import listen, loop_factory, serve_until_signal
from mcpenv.trajectories.reader import PATTERNS, segments_of

from .evaluation_routes import EvaluationRoutes, Evaluations
from .files import ConsoleFiles
from .record_routes import RecordRoutes

HOST = "127.0.0.1"


def has_record(directory: Path) -> bool:
    """Return True if the directory is a record, or has one in it as an evaluation does."""
    return (directory / "record").is_dir() or any(any(directory.glob(pattern)) for pattern in PATTERNS)


def record_in(directory: Path) -> Path:
    """Return the folder of the record, or of several; the record in it if the directory is that of an evaluation.

    Raises:
        ConfigurationError: there is none.
    """
    inside = directory / "record"
    if inside.is_dir():
        directory = inside
    if directory.is_file():
        raise ConfigurationError(f"{directory}: this is a file; name its folder")
    if not any(any(directory.glob(f"*/{pattern}")) for pattern in PATTERNS):
        segments_of(directory)
    return directory


def viewer(record: Path | None, name: str, evaluations: Evaluations | None = None) -> Starlette:
    """Return the application.

    Args:
        record: the folder of the record; None without one.
        name: the title of the pages.
        evaluations: those that can be compared; None without any.
    """
    files = ConsoleFiles()

    async def session(request: Request) -> Response:
        shown = {"records": record is not None, "evaluations": evaluations is not None}
        told = {"signed_in": True, "needs_token": False, "expires_at": None}
        return plain_json({**told, "mode": "records", "name": name, **shown})

    async def health(request: Request) -> Response:
        return plain_json({"status": "healthy"})

    def route(path: str, handler: Handler | ASGIApp, methods: Sequence[str] = ("GET",)) -> Route:
        return Route(path, Guard(asgi_of(handler)), methods=methods)

    routes: list[BaseRoute] = [
        route("/health", health),
        route("/console", files.folder),
        route("/console/frame.html", files.frame),
        route("/console/api/session", session),
        route("/console/{path:path}", files.file),
    ]
    if record is not None:
        routes += [route(each.path, each.endpoint, each.methods) for each in RecordRoutes(record).table()]
    if evaluations is not None:
        of_runs = EvaluationRoutes(evaluations)
        records = "/evaluations/{run:path}/records"
        episode = f"{records}/{{episode_id:path}}"
        routes += [
            route("/evaluations", of_runs.rows),
            route("/evaluations/compare", of_runs.comparison),
            route("/evaluations/{run:path}/report", of_runs.report),
            route(records, partial(of_runs.of_record, RecordRoutes.rows)),
            # Before the episodes, as in the table of records.
            route(f"{records}/overview", partial(of_runs.of_record, RecordRoutes.overview)),
            route(f"{records}/completions", partial(of_runs.of_record, RecordRoutes.completions)),
            route(f"{records}/alignment", partial(of_runs.of_record, RecordRoutes.alignment)),
            route(f"{records}/rollouts", partial(of_runs.of_record, RecordRoutes.rollouts)),
            route(f"{episode}/blobs/{{name}}", partial(of_runs.of_record, RecordRoutes.blob)),
            route(f"{episode}/page.html", partial(of_runs.of_record, RecordRoutes.page)),
            route(f"{episode}/neighbours", partial(of_runs.of_record, RecordRoutes.neighbours)),
            route(f"{episode}/review", partial(of_runs.of_record, RecordRoutes.review), ("PUT",)),
            route(episode, partial(of_runs.of_record, RecordRoutes.episode)),
        ]
    return application(routes)


def serve_viewer(app: Starlette, port: int, on_started: Callable[[int], None]) -> None:
    """Serve the viewer on this machine until a signal comes.

    Args:
        port: 0 for any free one.
        on_started: called with the port once it answers.

    Raises:
        ConfigurationError: the port is in use.
    """
    with listen(HOST, port) as door, asyncio.Runner(loop_factory=loop_factory()) as runner:
        bound: int = door.getsockname()[1]
        runner.run(serve_until_signal(app, door, lambda: on_started(bound)))
