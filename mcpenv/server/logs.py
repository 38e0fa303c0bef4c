"""The logs of a server: one handler on stderr with one format, as text or as JSON lines, without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import warnings
from typing import Any

from mcp import MCPDeprecationWarning

from mcpenv.redaction import RedactedRecord, Redacting, redacted_name

from .config import LogFormat

ACCESS = "mcpenv.access"
"""The name of the logger of tool calls."""

_access = logging.getLogger(ACCESS)


class AccessLog:
    """The access log of one session: a line for each tool call, at "info".

    Making a record with its thread and process costs more than a step's other bookkeeping, so that a line copies one.

    Args:
        session: the name of the session in logs.

    Attributes:
        enabled: True if the lines are logged anywhere.
    """

    __slots__ = ("_like", "_session", "enabled")

    def __init__(self, session: str) -> None:
        self.enabled = _access.isEnabledFor(logging.INFO)
        self._session = session
        self._like = vars(_access.makeRecord(ACCESS, logging.INFO, "", 0, "", (), None)) if self.enabled else {}

    def write(self, tool: str, status: str, duration_s: float) -> None:
        """Log a call."""
        session, name = redacted_name(self._session), redacted_name(tool)
        ms, now = round(duration_s * 1000, 2), time.time()
        line = RedactedRecord.__new__(RedactedRecord)
        line.__dict__.update(
            self._like,
            msg=f"session={session} tool={name} status={status} ms={ms}",
            fields={"session": session, "tool": name, "status": status, "ms": ms},
            created=now,
            msecs=float(int(now % 1 * 1000)),
            relativeCreated=self._like["relativeCreated"] + (now - self._like["created"]) * 1000,
        )
        _access.handle(line)


class ServerHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """The handler of a server's logs. Configuring again replaces it.

    Lines of the access log that come in one turn of the event loop are written together, because a write costs more
    than the rest of a line. All other lines are written at once, and after the lines before them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or keep one of the access log until the turn ends."""
        loop = asyncio._get_running_loop() if record.name == ACCESS else None
        if loop is None:
            self._write_kept(record)
            super().emit(record)
            return
        try:
            line = self.format(record) + self.terminator
        except Exception:  # noqa: BLE001 - as in every handler of `logging`: a message must not break its caller
            self.handleError(record)
            return
        if not self._lines:
            loop.call_soon(self._write_kept, record)
        self._lines.append(line)

    def _write_kept(self, record: logging.LogRecord) -> None:
        """Write the lines that are kept. Where that fails, `logging` reports it with ``record``."""
        try:
            self.flush()
        except Exception:  # noqa: BLE001 - as above; stderr may be closed
            self.handleError(record)

    def flush(self) -> None:
        """Write the lines that are kept."""
        self.acquire()
        try:
            if self._lines:
                lines, self._lines = self._lines, []
                self.stream.write("".join(lines))
        finally:
            self.release()
        super().flush()


class TextFormatter(logging.Formatter):
    """The formatter of text, which formats the time once a second."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._second, self._time = -1, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the local time of a record."""
        second = int(record.created)
        if second != self._second:
            self._second, self._time = second, time.strftime(self.default_time_format, self.converter(second))
        return f"{self._time},{int(record.msecs):03d}"


class JSONFormatter(logging.Formatter):
    """The formatter that writes each message as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line. Fields of a message (``extra={"fields": {...}}``) are members of the object."""
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **getattr(record, "fields", {}),
        }
        if record.exc_text:  # `Redacting` sets it
            line["exception"] = record.exc_text
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logging(level: str, log_format: LogFormat = "text", *, access_log: bool = True) -> None:
    """Log to stderr: mcpenv from ``level`` up ("debug", ...), its dependencies from warnings up, unless debugging.

    Handlers that the root logger has already stay, and log no secrets either.

    Args:
        access_log: log each tool call, at "info".
    """
    ours = logging.getLevelNamesMapping()[level.upper()]
    beneath = ours if ours <= logging.DEBUG else max(ours, logging.WARNING)
    root = logging.getLogger()
    for before in [each for each in root.handlers if isinstance(each, ServerHandler)]:
        root.removeHandler(before)
    if not root.handlers:
        stderr: logging.Handler = ServerHandler()
        stderr.setFormatter(JSONFormatter() if log_format == "json" else TextFormatter())
        root.addHandler(stderr)
        root.setLevel(beneath)
    for handler in root.handlers:
        if not any(isinstance(each, Redacting) for each in handler.filters):
            handler.addFilter(Redacting())
    logging.captureWarnings(log_format == "json")
    logging.getLogger("mcpenv").setLevel(ours)
    _access.disabled = not access_log
    # FastMCP has handlers of its own, which draw boxes and would log every message a second time.
    fastmcp = logging.getLogger("fastmcp")
    fastmcp.handlers, fastmcp.propagate = [], True
    fastmcp.setLevel(beneath)
    # One record per message to a client, at DEBUG, whatever FastMCP's level is.
    logging.getLogger("fastmcp.server.context.to_client").setLevel(beneath)
    if beneath > logging.DEBUG:
        warnings.simplefilter("ignore", MCPDeprecationWarning)
