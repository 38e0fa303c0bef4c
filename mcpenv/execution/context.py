"""The implementation of FastMCP's `Context` for tools, on every plane.

With an MCP client, progress and logs go to that client. Without one, they go to the step's record. State belongs to the
environment's episode on every plane. FastMCP keys it by the MCP session instead, which is new for every call in the
2026-07-28 era.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.context import Context
from mcp.server.session import ServerSession
from mcp_types import ClientCapabilities, LoggingLevel, RequestId, ServerNotification
from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from mcpenv_client.errors import NotSerializable
from mcpenv_client.types.records import LogEntry
from mcpenv_client.types.texts import well_formed
from mcpenv_client.types.values import to_plain

from .current_step import Step
from .notifications import Subscribers

_OFFLINE = FastMCP("mcpenv")
"""The server of contexts without an MCP request."""


class RecordSession(ServerSession):
    """A session without a client: messages go to the step's record, requests to the client are refused."""

    def __init__(self, session_id: str, logs: list[LogEntry], changes: Subscribers) -> None:
        # ServerSession's constructor needs a connection. The methods below override all of its uses.
        self._fastmcp_state_prefix = session_id
        self._logs = logs
        self._changes = changes

    @property
    def client_params(self) -> None:
        """The parameters of the client: None, as there is no client."""
        return

    @property
    def client_capabilities(self) -> None:
        """The capabilities of the client: None, as there is no client."""
        return

    @property
    def can_send_request(self) -> bool:
        """Always False, as there is no client to send a request to."""
        return False

    @property
    def protocol_version(self) -> str:
        """The version of a client that has connected by handshake."""
        return LATEST_HANDSHAKE_VERSION

    def check_client_capability(self, capability: ClientCapabilities) -> bool:
        """Return False, as there is no client."""
        return False

    async def send_log_message(
        self, level: LoggingLevel, data: Any, logger: str | None = None, related_request_id: RequestId | None = None
    ) -> None:
        """Log to the record."""
        self._logs.append(LogEntry(level, str(getattr(data, "msg", data))))

    async def send_progress_notification(
        self,
        progress_token: str | int,
        progress: float,
        total: float | None = None,
        message: str | None = None,
        related_request_id: str | None = None,
    ) -> None:
        """Report progress to the record."""
        await self.report_progress(progress, total, message)

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress to the record."""
        self._logs.append(LogEntry("progress", message, progress, total))

    async def send_notification(
        self, notification: ServerNotification, related_request_id: RequestId | None = None
    ) -> None:
        """Notify subscribers of changes; drop other notifications."""
        self._changes.announce(notification)

    async def send_request(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse the request, as there is no client to ask.

        Raises:
            ToolError: always.
        """
        raise ToolError("This call did not come from an MCP client, so there is nobody to ask for input.")


NOT_ASKED = "mcpenv-not-asked"
"""The progress token of requests that have none. With it `Context` reports progress, for the record only."""


_LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
"""The levels of messages, the least severe first."""

_LEVEL_KEY = "_fastmcp_client_log_level"
"""The key of the client's minimum level in the state of its connection."""


class _EveryLevel:
    """A view of a client's connection without the client's minimum level, so that `Context` sends every message."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def state(self) -> dict[str, Any]:
        """The state of the connection, without the level."""
        return {key: value for key, value in self._connection.state.items() if key != _LEVEL_KEY}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class AnnouncingSession(ServerSession):
    """An MCP client's session that also notifies subscribers of changes that user code announces on it.

    Args:
        session: the client's session.
        changes: the subscribers.
        logs: the record of the step, if the tool uses FastMCP's own `Context`. It gets every message, including levels
            that the client does not want. None: the caller has already written to the record.

    Attributes:
        client: the client's session.
    """

    def __init__(self, session: ServerSession, changes: Subscribers, logs: list[LogEntry] | None = None) -> None:
        vars(self).update(vars(session))  # shares all state with the wrapped session
        self.client = session
        self._changes = changes
        self._logs = logs
        self._level: LoggingLevel | None = None
        connection = getattr(session, "_connection", None)
        if logs is not None and connection is not None:
            self._level = connection.state.get(_LEVEL_KEY)
            self._connection: Any = _EveryLevel(connection)

    async def send_log_message(
        self, level: LoggingLevel, data: Any, logger: str | None = None, related_request_id: RequestId | None = None
    ) -> None:
        """Log to the record, and to the client if it wants messages of that level."""
        if self._logs is not None:
            self._logs.append(LogEntry(level, str(getattr(data, "msg", data))))
        if self._level is None or _LEVELS.index(level) >= _LEVELS.index(self._level):
            await super().send_log_message(level, _sent(data), logger, related_request_id)

    async def send_progress_notification(
        self,
        progress_token: str | int,
        progress: float,
        total: float | None = None,
        message: str | None = None,
        related_request_id: str | None = None,
    ) -> None:
        """Report progress to the record, and to the client if it asked for it."""
        message = None if message is None else well_formed(message)
        if self._logs is not None:
            self._logs.append(LogEntry("progress", message, progress, total))
        if progress_token != NOT_ASKED:
            await super().send_progress_notification(progress_token, progress, total, message, related_request_id)

    async def send_notification(
        self, notification: ServerNotification, related_request_id: RequestId | None = None
    ) -> None:
        """Send a notification. Changes go to the subscribers, since 2026-07-28 only to them."""
        if self._changes.announce(notification) and self.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return
        await super().send_notification(notification, related_request_id)


def _sent(data: Any) -> Any:
    """Return the data of a log message as plain JSON data; as a text if it has no JSON form."""
    try:
        return to_plain(data)
    except NotSerializable:
        return well_formed(str(getattr(data, "msg", data)))


class EnvironmentContext(Context):
    """The context of one step.

    Args:
        step: the step.
    """

    def __init__(self, step: Step) -> None:
        super().__init__(step.owner.server or _OFFLINE)
        self._mcpenv_step = step

    @property
    def session(self) -> ServerSession:
        """The MCP client's session; without a client, a session that writes to the step's record."""
        request = self.request_context
        if request is None:
            return RecordSession(self.session_id, self._mcpenv_step.logs, self._mcpenv_step.owner.subscribers)
        if isinstance(request.session, RecordSession):
            return request.session
        # Inside a mounted server, the request's session also writes to the record. Unwrap it, or entries are doubled.
        client = request.session.client if isinstance(request.session, AnnouncingSession) else request.session
        return AnnouncingSession(client, self._mcpenv_step.owner.subscribers)

    @property
    def session_id(self) -> str:
        """The id of the environment's session, the same for all of its calls."""
        return self._mcpenv_step.owner.session_id

    @property
    def _has_client(self) -> bool:
        """True if there is an MCP client, and not only the stand-in for mounted servers."""
        request = self.request_context
        return request is not None and not isinstance(request.session, RecordSession)

    @property
    def request_id(self) -> str:
        """The id of the MCP request, or one derived from the step."""
        if self.request_context is None:
            return f"step-{self._mcpenv_step.call.step}"
        return super().request_id

    async def log(
        self,
        message: str,
        level: LoggingLevel | None = None,
        logger_name: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Log to the step's record, and to the MCP client if there is one."""
        self._mcpenv_step.logs.append(LogEntry(level or "info", message))
        if self._has_client:
            await super().log(well_formed(message), level, logger_name, None if extra is None else _sent(extra))

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress to the step's record, and to the MCP client if it asked for it."""
        message = None if message is None else well_formed(message)
        self._mcpenv_step.logs.append(LogEntry("progress", message, progress, total))
        if self._has_client:
            await super().report_progress(progress, total, message)

    async def elicit(self, *args: Any, **kwargs: Any) -> Any:
        """Ask the MCP client for input.

        Raises:
            ToolError: if there is no MCP client, or its era has no back-channel.
        """
        if not self._has_client:
            raise ToolError("This call did not come from an MCP client, so there is nobody to ask for input.")
        return await super().elicit(*args, **kwargs)

    async def set_state(self, key: str, value: Any, *, serializable: bool = True) -> None:
        """Store a value until the next reset; with ``serializable=False``, until the end of this call."""
        step = self._mcpenv_step
        if not serializable:
            step.own_kept = {**(step.own_kept or {}), key: value}
            return
        if step.own_kept is not None:
            step.own_kept.pop(key, None)
        step.kept[key] = value

    async def get_state(self, key: str) -> Any:
        """Return the value stored under ``key``, or None."""
        step = self._mcpenv_step
        if step.own_kept is not None and key in step.own_kept:
            return step.own_kept[key]
        return step.kept.get(key)

    async def delete_state(self, key: str) -> None:
        """Delete the value stored under ``key``."""
        step = self._mcpenv_step
        if step.own_kept is not None:
            step.own_kept.pop(key, None)
        step.kept.pop(key, None)


class AmbientContext(EnvironmentContext):
    """The context for a tool without a context parameter, which may call ``get_context()``.

    FastMCP's constructor costs as much as a small tool, and few tools use the context. So the constructor runs on first
    use.

    Attributes:
        _mcpenv_step: the step. Set it on the new object.
    """

    __init__ = object.__init__

    def __getattr__(self, name: str) -> Any:
        if "_mcpenv_step" not in vars(self) or "_fastmcp" in vars(self):
            raise AttributeError(name)
        EnvironmentContext.__init__(self, self._mcpenv_step)
        return getattr(self, name)
