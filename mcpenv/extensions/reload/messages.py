"""The messages between the watcher, the fork server and its generations: a JSON object a line, over socket pairs."""

from __future__ import annotations

import contextlib
import socket
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .failure import Failure

PIECE = 65_536
"""Maximum bytes that one read takes."""


class Message(BaseModel):
    """The base of all messages."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


# -- of the watcher


class Load(Message):
    """Reload the code.

    Attributes:
        changed: the names of the changed files; empty at the start.
    """

    type: Literal["load"] = "load"
    changed: list[str] = []


class End(Message):
    """End after running steps have finished. The fork server forwards it to its generations."""

    type: Literal["end"] = "end"


# -- of the fork server to a generation


class Admit(Message):
    """Accept connections."""

    type: Literal["admit"] = "admit"


class StopAccepting(Message):
    """Stop accepting connections, confirm with `Stopped`, and end."""

    type: Literal["stop_accepting"] = "stop_accepting"


# -- of a generation to the fork server


class Ready(Message):
    """The code is loaded and its environment started; connections are not accepted yet."""

    type: Literal["ready"] = "ready"


class Serving(Message):
    """Connections are accepted.

    Attributes:
        name: the environment's.
        addresses: URLs by purpose.
        took_s: seconds since the change was reported.
        sources: the author's files that were imported.
        modules: the imported library modules, which the fork server can import in advance.
    """

    type: Literal["serving"] = "serving"
    name: str
    addresses: dict[str, str]
    took_s: float
    sources: list[str]
    modules: list[str]


class Stopped(Message):
    """Confirms that connections are refused."""

    type: Literal["stopped"] = "stopped"


class Failed(Message):
    """The code does not load, or its environment does not start. The process waits for `Admit` or `End`.

    Attributes:
        url: the URL at which the process would serve the failure.
    """

    type: Literal["failed"] = "failed"
    failure: Failure
    url: str


# -- of the fork server to the watcher, and to the currently serving generation


class Loading(Message):
    """Code is being loaded."""

    type: Literal["loading"] = "loading"
    generation: int
    changed: list[str]


class Reloaded(Message):
    """A generation accepts connections. The other fields are the same as in `Loading` and `Serving`.

    Attributes:
        first: True if no generation has served before.
    """

    type: Literal["reloaded"] = "reloaded"
    generation: int
    changed: list[str]
    first: bool
    name: str
    addresses: dict[str, str]
    took_s: float
    sources: list[str]


class Broken(Message):
    """A generation does not load, or ended without a request.

    Attributes:
        serving: True if an earlier generation continues to serve.
        url: the URL at which the failure is served if no generation serves; None if it is not served.
    """

    type: Literal["broken"] = "broken"
    generation: int
    changed: list[str]
    failure: Failure
    serving: bool
    url: str | None = None


MESSAGE: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        Load | End | Admit | StopAccepting | Ready | Serving | Stopped | Failed | Loading | Reloaded | Broken,
        Field(discriminator="type"),
    ]
)


class Channel:
    """One end of the connection between two of the processes. It closes itself when its process ends."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._partial = b""

    def fileno(self) -> int:
        """Return the file descriptor, for ``select``."""
        return self._end.fileno()

    def send(self, message: Message) -> None:
        """Send a message. It is lost if the other process has ended, which `receive` reports."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._end.sendall(message.model_dump_json().encode() + b"\n")

    def receive(self, *, wait: bool) -> list[Any] | None:
        """Return the messages that have arrived; None once the other process has ended.

        Args:
            wait: True to wait for bytes if there are none.
        """
        try:
            data = self._end.recv(PIECE, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [MESSAGE.validate_json(line) for line in lines]

    def close(self) -> None:
        """Close this end."""
        self._end.close()


__all__ = [
    "Admit",
    "Broken",
    "Channel",
    "End",
    "Failed",
    "Load",
    "Loading",
    "Message",
    "Ready",
    "Reloaded",
    "Serving",
    "StopAccepting",
    "Stopped",
]
