"""One MCP endpoint of an instance: it lists tools, calls them, and reports the delivery of calls."""

from __future__ import annotations

from typing import Any

from mcpenv_client.errors import ConnectionFailed, ListingFailed, OperationTimeout, SessionLost, Unauthorized
from mcpenv_client.mcp_client import MCPToolClient
from mcpenv_client.types.tools import Tool, ToolResult

from .delivery import CURRENT, Call, Delivery, NotingClient
from .errors import CallNotDelivered, OutcomeUnknown

ABSENT = 404
"""The HTTP status of an endpoint that an environment does not have."""

_FINAL = frozenset({401, 403, ABSENT})
"""Statuses of refusals that a repeated call would also get."""


class Refused(CallNotDelivered):
    """Raised if the endpoint refused a call permanently: it does not exist, or the key has no access."""


class Endpoint:
    """A connection to one endpoint. The connection is opened on first use, and reopened after a loss.

    Args:
        name: the endpoint's path, for messages.
        url: its address.
        api_key: the API key.
        timeout_s: seconds to connect, to list tools, and for a call.
    """

    def __init__(self, name: str, url: str, api_key: str, timeout_s: float) -> None:
        self.name = name
        self._client = MCPToolClient(
            url,
            headers={"Authorization": f"Bearer {api_key}"},
            http_client=NotingClient,
            connect_timeout_s=timeout_s,
            message_timeout_s=timeout_s,
        )

    async def list_tools(self) -> list[Tool]:
        """Return the endpoint's tools.

        Raises:
            ConnectionFailed: no connection could be made. ``http_status`` is 404 if there is no such endpoint.
            ListingFailed: it did not list them.
            Unauthorized: the API key is refused.
            SessionLost: the connection ended.
        """
        await self._client.connect()
        return await self._client.list_tools()

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool once. An error answer of the endpoint is a result with ``is_error``.

        Raises:
            CallNotDelivered: the tool cannot have run.
            Refused: the same, and the call would be refused again.
            OutcomeUnknown: the tool may have run.
        """
        call = Call()
        token = CURRENT.set(call)
        try:
            await self._client.connect()
            result = await self._client.call_tool(name, arguments, raise_on_error=False)
        except Unauthorized as error:
            raise Refused(f"{name}: {error}") from error
        except ConnectionFailed as error:
            raise _not_delivered(error.http_status)(f"{name}: {error}") from error
        except (SessionLost, OperationTimeout) as error:
            if call.delivery is Delivery.NOT_SENT:
                raise CallNotDelivered(f"{name}: {error}") from error
            raise OutcomeUnknown(f"{name}: {error}") from error
        finally:
            CURRENT.reset(token)
        if call.fault is None:
            return result
        if call.delivery is Delivery.SENT:
            raise OutcomeUnknown(f"{name}: {call.fault}")
        raise _not_delivered(call.http_status)(f"{name}: {call.fault}")

    async def disconnect(self) -> None:
        """End the session. The next use begins another one."""
        await self._client.close()


def _not_delivered(http_status: int | None) -> type[CallNotDelivered]:
    return Refused if http_status in _FINAL else CallNotDelivered


OF_LISTING = (ConnectionFailed, ListingFailed, OperationTimeout, SessionLost, Unauthorized)
"""The errors that `Endpoint.list_tools` raises."""

__all__ = ["ABSENT", "OF_LISTING", "Endpoint", "Refused"]
