"""The messages between the watcher, the fork server and its generations: objects over `multiprocessing.Pipe`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TypeAlias

from .failure import Failure

# -- of the watcher


@dataclass(frozen=True)
class Load:
    """Reload the code.

    Attributes:
        changed: the names of the changed files; empty at the start.
    """

    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class End:
    """End after running steps have finished. The fork server forwards it to its generations."""


# -- of the fork server to a generation


@dataclass(frozen=True)
class Admit:
    """Accept connections."""


@dataclass(frozen=True)
class StopAccepting:
    """Stop accepting connections, confirm with `Stopped`, and end."""


# -- of a generation to the fork server


@dataclass(frozen=True)
class Ready:
    """The code is loaded and its environment started; connections are not accepted yet."""


@dataclass(frozen=True)
class Serving:
    """Connections are accepted.

    Attributes:
        name: the environment's.
        addresses: URLs by purpose.
        took_s: seconds since the change was reported.
        sources: the author's files that were imported.
        modules: the imported library modules, which the fork server can import in advance.
    """

    name: str
    addresses: dict[str, str]
    took_s: float
    sources: list[str]
    modules: list[str]


@dataclass(frozen=True)
class Stopped:
    """Confirms that connections are refused."""


@dataclass(frozen=True)
class Failed:
    """The code does not load, or its environment does not start. The process waits for `Admit` or `End`.

    Attributes:
        url: the URL at which the process would serve the failure.
    """

    failure: Failure
    url: str


# -- of the fork server to the watcher, and to the currently serving generation


@dataclass(frozen=True)
class Loading:
    """Code is being loaded."""

    generation: int
    changed: list[str]


@dataclass(frozen=True)
class Reloaded:
    """A generation accepts connections. The other fields are the same as in `Loading` and `Serving`.

    Attributes:
        first: True if no generation has served before.
    """

    generation: int
    changed: list[str]
    first: bool
    name: str
    addresses: dict[str, str]
    took_s: float
    sources: list[str]


@dataclass(frozen=True)
class Broken:
    """A generation does not load, or ended without a request.

    Attributes:
        serving: True if an earlier generation continues to serve.
        url: the URL at which the failure is served if no generation serves; None if it is not served.
    """

    generation: int
    changed: list[str]
    failure: Failure
    serving: bool
    url: str | None = None


Message = Load | End | Admit | StopAccepting | Ready | Serving | Stopped | Failed | Loading | Reloaded | Broken
Pipe: TypeAlias = "Connection[Message, Message]"
"""One end of the connection between two of the processes. It closes itself when its process ends."""


def send(pipe: Pipe, message: Message) -> None:
    """Send a message. It is lost if the other process has ended, which `received` reports."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        pipe.send(message)


def received(pipe: Pipe, *, wait: bool = False) -> list[Message] | None:
    """Return the messages that have arrived; None once the other process has ended.

    Args:
        wait: True to wait for one if there are none.
    """
    messages: list[Message] = []
    try:
        while pipe.poll(None if wait and not messages else 0):
            messages.append(pipe.recv())
    except (EOFError, OSError):
        return messages or None
    return messages
