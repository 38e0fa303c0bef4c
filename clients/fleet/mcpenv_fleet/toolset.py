"""The tools of an instance: the union over its MCP endpoints."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from mcpenv_client.errors import ConnectionFailed, ListingFailed
from mcpenv_client.types.tools import Tool, ToolResult

from .endpoint import ABSENT, OF_LISTING, Endpoint, Refused
from .errors import CallNotDelivered, UnknownTool
from .retries import OF_CALLS, Retries

logger = logging.getLogger("mcpenv_fleet")

PATHS = ("api/v1/mcp", "mcp")
"""The paths of the endpoints below the root of an instance, in the order in which they are asked."""


class ToolSet:
    """The tools of one instance. If several endpoints have a tool, the first of them in `PATHS` owns it.

    Args:
        root: the root address of the instance.
        api_key: the API key.
        timeout_s: seconds of a listing, and of a call.
        retries: the tries of listings, and of calls that were not delivered.
    """

    def __init__(self, root: str, api_key: str, timeout_s: float, retries: Retries = OF_CALLS) -> None:
        base = root if root.endswith("/") else f"{root}/"
        self._root = base
        self._endpoints = [Endpoint(path, base + path, api_key, timeout_s) for path in PATHS]
        self._retries = retries
        self._owners: dict[str, Endpoint] = {}
        self.tools: Sequence[Tool] = ()

    async def discover(self) -> Sequence[Tool]:
        """List the tools of all endpoints, and keep them and their owners.

        Raises:
            ListingFailed: no try found a tool.
        """
        try:
            found = await self._retries.run(f"list the tools of {self._root}", self._listed, _may_list_again)
        except _Incomplete as incomplete:
            found = incomplete.found
        self._owners = {tool.name: endpoint for endpoint, tool in found}
        self.tools = [tool for _, tool in found]
        return self.tools

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool. Only a call that was not delivered is sent again.

        Raises:
            UnknownTool: there is no such tool.
            CallNotDelivered: no try reached the environment.
            OutcomeUnknown: the tool may have run.
        """
        owner = self._owners.get(name)
        if owner is None:
            raise UnknownTool(f"there is no tool {name!r}; there are: {', '.join(self._owners) or 'none'}")
        return await self._retries.run(f"call {name}", partial(owner.call, name, arguments), _may_call_again)

    async def disconnect(self) -> None:
        """End the sessions with the endpoints. The tools and their owners are kept."""
        for endpoint in self._endpoints:
            await endpoint.disconnect()

    async def _listed(self) -> list[tuple[Endpoint, Tool]]:
        found: dict[str, tuple[Endpoint, Tool]] = {}
        failures: list[Exception] = []
        for endpoint in self._endpoints:
            try:
                tools = await endpoint.list_tools()
            except OF_LISTING as error:
                failures.append(error)
                continue
            for tool in tools:
                found.setdefault(tool.name, (endpoint, tool))
        if not found:
            reason = "; ".join(map(str, failures)) or "the endpoints answer, and have no tools"
            raise ListingFailed(self._root, reason) from (failures[0] if failures else None)
        for failure in failures:
            logger.warning("the tools of %s are not complete: %s", self._root, failure)
        if any(not _is_absent(failure) for failure in failures):
            raise _Incomplete(list(found.values()), failures)
        return list(found.values())


class _Incomplete(Exception):
    """Raised if one endpoint listed its tools, and another one could not be asked."""

    def __init__(self, found: list[tuple[Endpoint, Tool]], failures: Sequence[Exception]) -> None:
        super().__init__("; ".join(map(str, failures)))
        self.found = found


def _is_absent(error: Exception) -> bool:
    return isinstance(error, ConnectionFailed) and error.http_status == ABSENT


def _may_list_again(error: Exception) -> bool:
    return isinstance(error, ListingFailed | _Incomplete)


def _may_call_again(error: Exception) -> bool:
    return isinstance(error, CallNotDelivered) and not isinstance(error, Refused)


__all__ = ["PATHS", "ToolSet"]
