"""Errors of authors and operators. What crosses the wire is in `mcpenv_client.errors`.

McpenvError (mcpenv_client)
├── StartupError          mcpenv refuses to start: one clear line, exit status 2
│   ├── TargetError       no environment is found where TARGET says, or its code does not load
│   └── ConfigurationError  an unknown mode, more sessions than the environment allows, a host that is not loopback
├── InvalidTasks          a task set that cannot be read: a bad row, an id given twice, a file that is not there
├── InvalidRubric         a saved rubric that cannot be made again: an unknown name, arguments that do not fit
├── DamagedRecord         a record that cannot be read: not a torn end, which is no damage, but something before it
├── EndpointFailed        an endpoint of chat completions refused, or did not answer well
├── JudgeFailed           a judge gave no well-formed answer, or its budget is used up
├── InvalidVerifier       a verifier of a task that cannot be used: an unknown kind, a pattern that is none
├── VerifierFailed        a verifier came to no result: a limit, a crash, no number; there is no score
├── InvalidTool           a tool that cannot be registered: a reserved name, a bad signature, an unknown mode
└── Misuse                a method used where it has no meaning, such as finish() outside a step
"""

from __future__ import annotations

from mcpenv_client.errors import McpenvError


class StartupError(McpenvError):
    """mcpenv refuses to start rather than degrade; the text is one line for the operator."""

    exit_status = 2


class TargetError(StartupError):
    """TARGET names no environment, or its code does not load (``__cause__`` has the traceback)."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(target, reason)
        self.target = target
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.target}: {self.reason}"


class ConfigurationError(StartupError):
    """A setting that cannot be served."""


class InvalidTool(McpenvError, ValueError):
    """A tool that cannot be registered."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"tool {self.name!r}: {self.reason}"


class InvalidTasks(McpenvError, ValueError):
    """A task set that cannot be read.

    Attributes:
        place: the file and its line or row.
        field: the task's field at fault; empty if it is the row, or the file.
    """

    def __init__(self, place: str, reason: str, field: str = "") -> None:
        super().__init__(place, reason, field)
        self.place = place
        self.reason = reason
        self.field = field

    def __str__(self) -> str:
        return f"{self.place}: {self.field}: {self.reason}" if self.field else f"{self.place}: {self.reason}"


class InvalidRubric(McpenvError, ValueError):
    """A saved rubric that cannot be made again; ``path`` names the place in its configuration."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class DamagedRecord(McpenvError, ValueError):
    """A record of episodes that cannot be read; ``place`` names file and place, where they are known."""

    def __init__(self, reason: str, place: str | None = None) -> None:
        super().__init__(reason, place)
        self.reason = reason
        self.place = place

    def __str__(self) -> str:
        return self.reason if self.place is None else f"{self.place}: {self.reason}"


class EndpointFailed(McpenvError, RuntimeError):
    """An endpoint of chat completions refused, or did not answer well.

    Attributes:
        reason: what happened, without a word of the endpoint.
        said: the endpoint's own words, if it gave any.
        status: the HTTP status with which it refused; None if it did not.
    """

    def __init__(self, reason: str, said: str | None = None, status: int | None = None) -> None:
        super().__init__(reason, said, status)
        self.reason = reason
        self.said = said
        self.status = status

    def __str__(self) -> str:
        return self.reason if self.said is None else f"{self.reason}: {self.said}"


class JudgeFailed(McpenvError, RuntimeError):
    """A judge gave no well-formed answer, or its budget is used up: there is no score."""


class InvalidVerifier(McpenvError, ValueError):
    """A verifier of a task that cannot be used; ``path`` names the place in it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class VerifierFailed(McpenvError, RuntimeError):
    """A verifier came to no result: it passed a limit, crashed, or gave no number. There is no score."""


class Misuse(McpenvError, RuntimeError):
    """A call that has no meaning here; the text says what to do instead."""
