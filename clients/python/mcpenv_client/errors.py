"""The error tree: one class per cause, data in attributes, the text built from the data. All of them pickle.

McpenvError
├── WireError                      a refusal by the environment's side; ``code`` is its name on the wire
│   ├── InvalidJSON                INVALID_JSON
│   ├── UnknownType                UNKNOWN_TYPE
│   ├── InvalidMessage             VALIDATION_ERROR, ``errors`` has the locations
│   ├── ExecutionError             EXECUTION_ERROR, the author's code failed; ``incident`` finds it in the log
│   ├── CapacityReached            CAPACITY_REACHED, ``retry_after_s``
│   ├── RateLimited                RATE_LIMITED, too many calls at once or per second, ``retry_after_s``
│   ├── FactoryError               FACTORY_ERROR, the environment could not be made
│   ├── SessionError               SESSION_ERROR
│   ├── EpisodeDone                EPISODE_DONE, a step after the end
│   ├── OperationTimeout           TIMEOUT, a reset, state or own action passed its deadline
│   ├── OperationCancelled         CANCELLED
│   ├── SessionLost                SESSION_LOST, also when the socket ends or a reply does not come in time
│   ├── Unauthorized               UNAUTHORIZED
│   ├── ReplyGone                  REPLY_GONE, the request ran once, its answer has been dropped
│   ├── NotSupported               NOT_SUPPORTED, this environment cannot do that, for example be saved in a snapshot
│   └── UnsupportedVersion         UNSUPPORTED_VERSION
├── ConnectionFailed               no connection could be made
├── NotSerializable                a value has no JSON form; ``path`` names the field
├── ListingFailed                  tools could not be listed (an empty listing is no error)
├── ToolCallFailed                 ``MCPToolClient.call_tool``: the tool answered with an error
├── ToolNotExpressible             a format of a model's API cannot express a tool; ``problems`` has the reasons
├── MalformedToolCall              a model's tool call cannot be read; ``reason``
├── ProviderUnavailable            a provider cannot start servers here; ``missing`` has the reasons
└── InstanceFailed                 a server of a provider did not become ready, or is not usable; ``log``
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from .types.status import Stage, Status, StatusCode, read_status
from .types.texts import well_formed

AGENTS_TOKEN = "; the one that was sent is an agent's"
"""The end of a refusal by the control plane if it was sent the token of an agent."""


class ErrorCode(str, Enum):
    """The ``code`` of an error frame, and of the body of a refused HTTP request."""

    INVALID_JSON = "INVALID_JSON"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    CAPACITY_REACHED = "CAPACITY_REACHED"
    RATE_LIMITED = "RATE_LIMITED"
    FACTORY_ERROR = "FACTORY_ERROR"
    SESSION_ERROR = "SESSION_ERROR"
    EPISODE_DONE = "EPISODE_DONE"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"
    SESSION_LOST = "SESSION_LOST"
    UNAUTHORIZED = "UNAUTHORIZED"
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
    REPLY_GONE = "REPLY_GONE"
    NOT_SUPPORTED = "NOT_SUPPORTED"


class McpenvError(Exception):
    """The base of all errors that mcpenv raises deliberately. Most others are dataclasses, so that all pickle."""

    def __post_init__(self) -> None:
        """Set the arguments of the exception, which its pickled form has, to the fields of the dataclass."""
        self.args = tuple(vars(self).values())


class WireError(McpenvError):
    """The refusal that has a wire code, raised alike in process and by a client.

    Attributes:
        code: the name of the cause on the wire.
        message: one line for people.
        data: further fields of the error frame (``errors``, ``incident``, ``retry_after_s``, ``status``, ...).
        usual_status: the `status` of an error if its data has none.
    """

    code: ErrorCode = ErrorCode.SESSION_ERROR
    http_status: ClassVar[int] = 500
    usual_status: ClassVar[Status | None] = None

    def __init__(self, message: str, /, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data: dict[str, Any] = {name: value for name, value in data.items() if value is not None}

    @property
    def status(self) -> Status | None:
        """The status of the step or episode; None for a refusal, after which nothing has changed."""
        return read_status(self.data.get("status")) or self.usual_status

    @property
    def incident(self) -> str | None:
        """The id of the traceback in the server's log; None without one."""
        return self.data.get("incident")

    @property
    def retry_after_s(self) -> float | None:
        """The seconds after which to retry; None if the server does not know."""
        seconds = self.data.get("retry_after_s")
        return seconds if isinstance(seconds, int | float) else None

    def to_wire(self) -> dict[str, Any]:
        """Return the ``data`` object of the error frame."""
        data = {"message": well_formed(self.message), "code": self.code.value, **self.data}
        if self.usual_status is not None:
            data.setdefault("status", self.usual_status.to_plain())
        return data


class InvalidJSON(WireError):
    """Raised if the frame or body is not JSON text."""

    code = ErrorCode.INVALID_JSON
    http_status = 400


class UnknownType(WireError):
    """Raised if this protocol version has no frame of that type."""

    code = ErrorCode.UNKNOWN_TYPE
    http_status = 400


class InvalidMessage(WireError):
    """Raised if the frame, body, action or option does not fit its schema."""

    code = ErrorCode.VALIDATION_ERROR
    http_status = 422

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The faults, one entry each: ``loc``, ``msg``, ``type``. Empty if the fault has no location."""
        errors = self.data.get("errors")
        return list(errors) if isinstance(errors, list) else []


class ExecutionError(WireError):
    """Raised if the author's ``reset``, ``score``, ``state``, ``close`` or own action raised.

    In process, ``__cause__`` is the exception that it raised. Over the wire only ``incident`` is sent, which identifies
    the traceback in the server's log.
    """

    code = ErrorCode.EXECUTION_ERROR
    usual_status = Status(StatusCode.ENV_ERROR, None, True)


class CapacityReached(WireError):
    """Raised if all session slots are in use."""

    code = ErrorCode.CAPACITY_REACHED
    http_status = 503


class RateLimited(WireError):
    """Raised if the calls at once, or the requests per second, exceed the server's limit. The request was not run."""

    code = ErrorCode.RATE_LIMITED
    http_status = 429


class FactoryError(WireError):
    """Raised if the environment's constructor or factory raised."""

    code = ErrorCode.FACTORY_ERROR
    usual_status = Status(StatusCode.ENV_ERROR, Stage.RESET, True)


class SessionError(WireError):
    """Raised if the session cannot continue."""

    code = ErrorCode.SESSION_ERROR


class EpisodeDone(WireError):
    """Raised if a step comes after the episode's end. Only a reset begins another episode."""

    code = ErrorCode.EPISODE_DONE
    http_status = 409


class OperationTimeout(WireError):
    """Raised if a reset, a state or an own action passed its deadline.

    The timeout of a tool is data: ``error.error_type``.
    """

    code = ErrorCode.TIMEOUT
    usual_status = Status(StatusCode.ENV_ERROR, None, True, "timeout")
    http_status = 504


class OperationCancelled(WireError):
    """Raised if the step was cancelled by its orchestrator."""

    code = ErrorCode.CANCELLED
    usual_status = Status(StatusCode.CANCELLED, None, True)
    http_status = 409


class SessionLost(WireError):
    """Raised if the session is gone, or the outcome of the last message is unknown.

    Only a reset begins a new episode.
    """

    code = ErrorCode.SESSION_LOST
    usual_status = Status(StatusCode.TRANSPORT_LOST, None, True)
    http_status = 404


class Unauthorized(WireError):
    """Raised if the credential is missing or wrong."""

    code = ErrorCode.UNAUTHORIZED
    http_status = 401


class ReplyGone(WireError):
    """Raised if a request of that id ran exactly once, and the server has dropped its answer."""

    code = ErrorCode.REPLY_GONE
    usual_status = Status(StatusCode.TRANSPORT_LOST, None, True)
    http_status = 410


class NotSupported(WireError):
    """Raised if this environment or instance does not support the operation. The text has the reason and the remedy."""

    code = ErrorCode.NOT_SUPPORTED
    http_status = 501


class UnsupportedVersion(WireError):
    """Raised if the other end speaks another major version of the protocol."""

    code = ErrorCode.UNSUPPORTED_VERSION
    http_status = 400


@dataclass(eq=False, repr=False)
class ConnectionFailed(McpenvError):
    """Raised if no connection to the server could be made. ``__cause__`` is the reason.

    ``http_status`` is the HTTP status of the refusal; None if there is none, or it is unknown.
    """

    status: ClassVar[Status] = Status(StatusCode.TRANSPORT_LOST, None, True)

    url: str
    reason: str
    http_status: int | None = None

    def __str__(self) -> str:
        return f"cannot connect to {self.url}: {self.reason}"


@dataclass(eq=False, repr=False)
class NotSerializable(McpenvError):
    """Raised if a value has no JSON form. ``path`` locates the field, as in ``arguments.scores[3]``."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(eq=False, repr=False)
class ListingFailed(McpenvError):
    """Raised if the request ``tools/list`` failed. An environment without tools gives an empty list instead."""

    url: str
    reason: str

    def __str__(self) -> str:
        return f"cannot list the tools of {self.url}: {self.reason}"


@dataclass(eq=False, repr=False)
class ToolCallFailed(McpenvError):
    """Raised if a tool answered with an error."""

    tool_name: str
    message: str

    def __str__(self) -> str:
        return f"{self.tool_name}: {self.message}"


@dataclass(eq=False, repr=False)
class ToolNotExpressible(McpenvError):
    """Raised if the format of a model's API cannot express a tool.

    Attributes:
        format: the format.
        problems: the reason by the name of each such tool.
    """

    format: str
    problems: dict[str, str]

    def __str__(self) -> str:
        reasons = "; ".join(f"tool {name!r}: {reason}" for name, reason in self.problems.items())
        return f"the format {self.format!r} cannot express all tools: {reasons}. Leave them out, or use another format"


@dataclass(eq=False, repr=False)
class MalformedToolCall(McpenvError):
    """Raised if the tool call of a model cannot be read.

    Attributes:
        tool_name: the name in the call.
        reason: a sentence that may be shown to the model.
    """

    tool_name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.tool_name}: {self.reason}"


@dataclass(eq=False, repr=False)
class ProviderUnavailable(McpenvError):
    """Raised before a provider starts anything, if a requirement is missing.

    Attributes:
        provider: the name of its class.
        missing: the missing requirements, each a sentence with a remedy.
    """

    provider: str
    missing: list[str]

    def __str__(self) -> str:
        return f"{self.provider} cannot start a server: {'; '.join(self.missing)}"


@dataclass(eq=False, repr=False)
class InstanceFailed(McpenvError):
    """Raised if a server that a provider started did not become ready, or is no longer usable.

    Attributes:
        name: the instance, such as ``container 1f2e3d``.
        reason: the fault.
        log: the end of its output; empty if there is none.
    """

    name: str
    reason: str
    log: str = ""

    def __str__(self) -> str:
        log = self.log.strip()
        return f"{self.name}: {self.reason}; its output ends with:\n{log}" if log else f"{self.name}: {self.reason}"


_BY_CODE = {cls.code.value: cls for cls in WireError.__subclasses__()}


def status_of_code(code: str) -> Status:
    """Return the status of a step or an end that failed with this wire code, without further information."""
    cls = _BY_CODE.get(code)
    usual = None if cls is None else cls.usual_status
    return Status(StatusCode.ENV_ERROR, None, True) if usual is None else usual


def from_wire(data: dict[str, Any]) -> WireError:
    """Return the exception for the ``data`` of an error frame. An unknown code becomes a plain `WireError`."""
    rest = {name: value for name, value in data.items() if name not in ("message", "code")}
    code, message = str(data.get("code", "no code")), str(data.get("message", ""))
    cls = _BY_CODE.get(code)
    if cls is None:
        return WireError(f"{message} ({code})", **rest)
    if cls.usual_status is not None and rest.get("status") == cls.usual_status.to_plain():
        del rest["status"]
    return cls(message, **rest)
