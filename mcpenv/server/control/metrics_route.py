"""The route ``/metrics``, for a scraper."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from mcpenv.server.metrics.collection import Collection
from mcpenv.server.metrics.exposition import CONTENT_TYPE, added, exposition
from mcpenv.server.sessions.membership import Membership


class MetricsRoute:
    """The handler."""

    def __init__(self, collection: Collection, membership: Membership) -> None:
        self._collection = collection
        self._membership = membership

    async def metrics(self, request: Request) -> Response:
        """Answer the metrics of the whole server as Prometheus' text."""
        of_processes = await self._membership.metrics(self._collection.of_process())
        of_server = await self._collection.of_server()
        text = await asyncio.to_thread(lambda: exposition({**of_server, **added(of_processes)}))
        return Response(text, media_type=None, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
