"""The routes ``/evaluations``: the evaluations in a folder, for the console."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from mcpenv.server.control.http import answered
from mcpenv_client.errors import InvalidMessage

from .record_routes import RecordRoutes, unknown


class Evaluations(Protocol):
    """The evaluations in a folder. Its methods block, and raise `InvalidMessage` for what they refuse."""

    def rows(self) -> dict[str, Any]:
        """Return ``runs`` and ``left_out``."""

    def report(self, name: str) -> dict[str, Any]:
        """Return the figures and tasks of one of them."""

    def record(self, name: str) -> Path | None:
        """Return the folder of its record; None if there is none."""

    def compare(self, baseline: str, candidate: str, pass_threshold: float | None) -> dict[str, Any]:
        """Return the comparison of two of them."""


class EvaluationRoutes:
    """The handlers. Reading files is done in threads."""

    def __init__(self, evaluations: Evaluations) -> None:
        self._evaluations = evaluations
        self._records: dict[Path, RecordRoutes] = {}

    @answered
    async def rows(self, request: Request) -> dict[str, Any]:
        """Answer the evaluations."""
        return await asyncio.to_thread(self._evaluations.rows)

    @answered
    async def report(self, request: Request) -> dict[str, Any]:
        """Answer the figures and tasks of one evaluation."""
        return await asyncio.to_thread(self._evaluations.report, request.path_params["run"])

    async def of_record(
        self, handler: Callable[[RecordRoutes, Request], Awaitable[Response]], request: Request
    ) -> Response:
        """Answer as a handler of records does, from the record of one evaluation."""
        folder = await asyncio.to_thread(self._evaluations.record, request.path_params["run"])
        if folder is None:
            return unknown("there is no such evaluation, or its folder has no record")
        if folder not in self._records:
            self._records[folder] = RecordRoutes(folder)
        return await handler(self._records[folder], request)

    @answered
    async def comparison(self, request: Request) -> dict[str, Any]:
        """Answer two evaluations compared."""
        query = request.query_params
        text = query.get("pass_threshold")
        try:
            threshold = float(text) if text else None
        except ValueError:
            raise _wrong("pass_threshold", "it must be a number") from None
        for name in ("baseline", "candidate"):
            if not query.get(name):
                raise _wrong(name, "name an evaluation")
        return await asyncio.to_thread(self._evaluations.compare, query["baseline"], query["candidate"], threshold)


def _wrong(name: str, message: str) -> InvalidMessage:
    return InvalidMessage(f"{name}: {message}", errors=[{"loc": [name], "msg": message, "type": "value_error"}])
