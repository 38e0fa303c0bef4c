"""What a connection knows of the messages under way on it, however it waits for their replies."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from websockets.exceptions import ConnectionClosed

from .errors import (
    CapacityReached,
    FactoryError,
    InvalidJSON,
    InvalidMessage,
    SessionError,
    SessionLost,
    Unauthorized,
    UnsupportedVersion,
    from_wire,
)
from .handshake import ConnectionOptions
from .wire import Reply

FAREWELL_S = 5.0
"""Seconds that a server may take to close a socket after it was asked to."""

_ENDS_THE_SESSION = (CapacityReached, FactoryError, SessionError, Unauthorized, UnsupportedVersion)
"""After these the server closes the socket."""

_ANSWERED_IN_PASSING = ("snapshot", "fork")
"""Answers of which the same refusals end nothing: there is no room for another snapshot, or another session."""


class Waiting:
    """A caller whose reply has not come.

    Attributes:
        request_id: of its message.
        deadline: in the time of its connection, which is ``limit_s`` seconds after it asked.
        reply: once it came.
        wake: by which another that reads wakes it, if the connection has use for it.
        given_up: nobody wants it any more.
    """

    __slots__ = ("deadline", "given_up", "limit_s", "reply", "request_id", "wake")

    def __init__(self, request_id: str | None, deadline: float, limit_s: float) -> None:
        self.request_id = request_id
        self.deadline = deadline
        self.limit_s = limit_s
        self.reply: Reply | None = None
        self.wake: Any = None
        self.given_up = False


class Exchanges:
    """Messages under way and their replies; a subclass has the socket.

    One message is under way at a time, in the order in which callers came. One whose reply did not come (a timeout, a
    lost socket, a cancelled caller) leaves the socket in a state that nobody can know, so the socket is closed and
    every later call is `SessionLost`. Messages with a ``request_id`` are told apart by it and take no turn.

    Attributes:
        protocol: the server's protocol version, once it has said it.
        interrupted: it ended by accident: a session with a credential may be resumed.
    """

    def __init__(self, url: str, options: ConnectionOptions) -> None:
        self._url = url
        self._options = options
        self._lost: str | None = None
        self._late: str | None = None
        self._waiting: dict[str | None, list[Waiting]] = {}
        self.protocol: str | None = None
        self.interrupted = False

    def _abort(self) -> None:
        """Drop the socket without a word."""
        raise NotImplementedError

    def _reason(self) -> str | None:
        """Why nothing can be asked here, if so."""
        raise NotImplementedError

    def _expect(self, request_id: str | None, now: float, limit_s: float) -> Waiting:
        waiting = Waiting(request_id, now + limit_s, limit_s)
        self._waiting.setdefault(request_id, []).append(waiting)
        return waiting

    def _forget(self, waiting: Waiting) -> None:
        others = self._waiting[waiting.request_id]
        others.remove(waiting)
        if not others:
            del self._waiting[waiting.request_id]

    def _everybody(self) -> list[Waiting]:
        return [each for waiting in list(self._waiting.values()) for each in waiting]

    def _first_to_be_late(self) -> Waiting:
        return min(self._everybody(), key=attrgetter("deadline"))

    def _give(self, reply: Reply) -> None:
        """Give a reply to whom it answers."""
        whom = [each for each in self._waiting.get(reply.request_id, ()) if each.reply is None][:1]
        if not whom and reply.request_id is None and reply.type == "error":
            # Said of the session as a whole, before it closes.
            whom = self._everybody()
        for each in whom:
            each.reply = each.reply or reply

    def _is_late(self, waiting: Waiting) -> SessionLost:
        """The connection is given up, because this reply did not come in time."""
        self._late = f"no reply from {self._url} within {waiting.limit_s:g} s"
        self.interrupted = True
        return self._lose(self._late)

    def _failed(self, waiting: Waiting, error: BaseException) -> BaseException:
        """A message under way failed; gives what its caller is told, which may be the same."""
        if isinstance(error, ConnectionClosed):
            if self._late is not None:
                return SessionLost(self._late)
            if self._lost is None:
                self.interrupted = True
            return self._lose(f"the connection to {self._url} ended: {error}")
        if isinstance(error, InvalidJSON | InvalidMessage):
            self._lose(error.message)
        elif waiting.request_id is None:
            self._lose("a call was cancelled before its reply came")
        return error

    def _read(self, reply: Reply, answer: str) -> Reply:
        """What the server said.

        Raises:
            WireError: it refused, or said something else than an ``answer``.
        """
        if reply.type not in (answer, "error"):
            said = f"the server answered with a frame of type {reply.type[:60]!r}, not {answer!r}"
            self._lose(said)
            raise InvalidMessage(said)
        if reply.protocol is not None:
            self.protocol = reply.protocol
        if reply.type == "error":
            refused = from_wire(reply.data)
            if isinstance(refused, _ENDS_THE_SESSION) and not (reply.request_id and answer in _ANSWERED_IN_PASSING):
                self._lose(refused.message)
            raise refused
        return reply

    def _refuse_if_lost(self) -> None:
        why = self._reason()
        if why is not None:
            raise SessionLost(why)

    def _lose(self, why: str) -> SessionLost:
        """Nothing more can be asked here."""
        if self._lost is None:
            self._lost = why
        self._abort()
        return SessionLost(self._lost)


__all__ = ["FAREWELL_S", "Exchanges", "Waiting"]
