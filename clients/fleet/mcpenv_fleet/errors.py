"""The errors of the Fleet client.

McpenvError (mcpenv_client)
├── FleetFailure              the base of the errors below
│   ├── PlatformFailed        the platform refused, or gave no usable answer; ``transient``, ``http_status``
│   ├── InvalidTask           a task file cannot be read, or a row is not a task
│   ├── VerificationFailed    there is no score: the verifier cannot be read, did not run, or gave no number
│   ├── UnknownTool           no endpoint has a tool of that name; nothing was sent
│   ├── CallNotDelivered      the tool cannot have run
│   └── OutcomeUnknown        the tool may have run
├── ListingFailed             the tools of an instance could not be listed: discovery
└── ToolCallFailed            a tool answered with an error: execution
"""

from __future__ import annotations

from mcpenv_client.errors import McpenvError


class FleetFailure(McpenvError):
    """The base of the errors of the Fleet client."""


class PlatformFailed(FleetFailure):
    """Raised if the platform refused a request, or gave no usable answer. ``__cause__`` is the SDK's error.

    Attributes:
        what: the request.
        reason: the platform's own text, or the error's type.
        http_status: the status of the refusal; None if there was no response.
        transient: True if the same request may succeed later.
    """

    def __init__(self, what: str, reason: str, http_status: int | None = None, transient: bool = False) -> None:
        super().__init__(what, reason, http_status, transient)
        self.what = what
        self.reason = reason
        self.http_status = http_status
        self.transient = transient

    def __str__(self) -> str:
        status = "" if self.http_status is None else f" (HTTP {self.http_status})"
        return f"{self.what} failed{status}: {self.reason}"


class InvalidTask(FleetFailure, ValueError):
    """Raised if a task file cannot be read, or a row of it is not a task."""


class VerificationFailed(FleetFailure):
    """Raised if a verifier gave no score. It is never a score of 0.

    Attributes:
        task_key: the task.
        reason: the reason, such as the syntax error of the verifier's code.
    """

    def __init__(self, task_key: str, reason: str) -> None:
        super().__init__(task_key, reason)
        self.task_key = task_key
        self.reason = reason

    def __str__(self) -> str:
        return f"task {self.task_key!r} is not verified: {self.reason}"


class UnknownTool(FleetFailure):
    """Raised if no endpoint has a tool of that name. Nothing was sent."""


class CallNotDelivered(FleetFailure):
    """Raised if a call did not reach the environment, even after it was sent again. The tool has not run."""


class OutcomeUnknown(FleetFailure):
    """Raised if a call has no answer, and the tool may have run. The call is never sent again."""


__all__ = [
    "CallNotDelivered",
    "FleetFailure",
    "InvalidTask",
    "OutcomeUnknown",
    "PlatformFailed",
    "UnknownTool",
    "VerificationFailed",
]
