"""The session of a client that can outlive its socket: it reconnects and sends unanswered messages again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import deque
from typing import Any, Protocol

from mcpenv_client.errors import CapacityReached, ConnectionFailed, ExecutionError, ReplyGone, SessionLost, WireError
from mcpenv_client.fingerprint import without_incidents
from mcpenv_client.wire.protocol import MAX_BEHIND, FrameType, Reply, encode_frame

from . import forks
from .addresses import Servers
from .connection import FAREWELL_S, Connection
from .handshake import ConnectionOptions, Credential, Handshake
from .trace_context import trace_context


class Journal(Protocol):
    """Keeps the messages of a session, so that another process can go on with it by the same calls."""

    @property
    def credential(self) -> Credential | None:
        """The credential of the session to go on with; None to begin a new one."""
        ...

    def opened(self, credential: Credential) -> None:
        """Keep the credential of a session that is about to begin. Earlier messages are those of another one."""
        ...

    def find(
        self, request_id: str, kind: FrameType, data: dict[str, Any]
    ) -> tuple[str | None, Reply | WireError | None]:
        """Return the text of a message, if it was sent before, and its reply or refusal, if that came.

        Raises:
            McpenvError: another message was sent under this id.
        """
        ...

    def sent(self, request_id: str, text: str) -> None:
        """Keep a message that is about to be sent."""
        ...

    def answered(self, request_id: str, reply: Reply | WireError) -> None:
        """Keep a reply, or a refusal."""
        ...

    def lost(self, error: WireError | ConnectionFailed) -> None:
        """Take that no server has the session to go on with. It may raise another error instead."""
        ...


class ResumableSession:
    """The session of one client. If it may be resumed it can use several sockets, otherwise one.

    A message that is sent again after a lost socket has the same request id, so the server runs it once.

    Args:
        servers: the server, or the servers that share their sessions; the next one is used when one does not answer.
        options: how to connect and wait.
        resume: reconnect after a lost socket.
        max_resumes: maximum number of times that one message is sent again.

    Attributes:
        resumes: True if it reconnects after a lost socket.
    """

    def __init__(
        self, servers: Servers, options: ConnectionOptions, *, resume: bool = False, max_resumes: int = 20
    ) -> None:
        self.servers = servers
        self.options = options
        self.resumes = resume
        self._max_resumes = max_resumes
        self._requests = itertools.count(1)
        self._closed = False
        self._credential: Credential | None = None
        self._process = forks.number()
        self._connecting = asyncio.Lock()
        self._unwritten: deque[tuple[str, str, str, Any]] | None = None
        self.connection: Connection | None = None
        self._journal: Journal | None = None
        self._taken_up = False

    def go_on_at(self, servers: Servers, journal: Journal | None) -> None:
        """Resume at any of these servers from now on. To call before the session is open.

        Args:
            servers: they share their sessions.
            journal: keeps the messages, and answers those that it has.
        """
        self.servers, self.resumes, self._journal = servers, True, journal

    async def connect(self) -> None:
        """Open the session. Do nothing if it is open. After a loss, begin a new session.

        That of another process is opened with the first message that the journal does not answer.
        """
        if self._journal is None or self._journal.credential in (None, self._credential):
            await self._connected()

    async def _connected(self) -> None:
        async with self._lock():
            if self.connection is not None and self.connection.ended:
                self.connection.abandon()
                self.connection = None
                await self._end_lost()
            if self.connection is None:
                kept = None if self._journal is None or self._credential is not None else self._journal.credential
                if kept is not None:
                    self._credential, self._taken_up = kept, True
                    self.connection = await self._open_again(kept)
                    await self._run_lost(self.connection)
                else:
                    self._credential, self._unwritten = self.new_credential(), None
                    if self._journal is not None and self._credential is not None:
                        self._journal.opened(self._credential)
                        self._requests = itertools.count(1)  # as the next process will count them
                    self.connection = await self._open(self._credential)
            self._closed = False

    async def close(self) -> None:
        """End the session and close the socket. A running call raises `SessionLost`. Safe to call twice.

        If the socket is lost, the servers are told that may have the session now, in a few seconds or not at all.
        """
        async with self._lock():
            self._closed = True
            connection, self.connection = self.connection, None
            if connection is not None and connection.cut:
                connection.abandon()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._end_lost(), FAREWELL_S)
                return
        if connection is not None:
            await connection.close(encode_frame(FrameType.CLOSE))

    def abandon(self) -> None:
        """Drop the socket without a closing handshake. The server ends the session as lost, or waits for a resume."""
        self._closed = True
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abandon()

    @property
    def interrupted(self) -> bool:
        """True if the present socket was lost by accident, and no other one has taken its place."""
        return self.connection is not None and self.connection.interrupted

    def new_credential(self) -> Credential | None:
        """Return a credential for a session that may be resumed; None if this session may not."""
        return Credential() if self.resumes else None

    async def joined(self, session_id: str, credential: Credential | None) -> ResumableSession:
        """Return a connected session that the server created.

        Args:
            session_id: the id of the session, which is a secret.
            credential: the credential that the server was given for it, if any.
        """
        other = ResumableSession(self.servers, self.options, resume=self.resumes, max_resumes=self._max_resumes)
        other._credential = credential
        if credential is None:
            other.connection = await other._open(None, session_id=session_id)
        else:
            other.connection = await other._open(credential, resume=True)
        return other

    def request_id(self, kind: FrameType) -> str:
        """Return a new request id."""
        return f"{kind.value}-{next(self._requests)}"

    async def exchange(
        self,
        kind: FrameType,
        data: dict[str, Any],
        answer: str,
        *,
        timeout_s: float | None = None,
        wait_s: float | None = None,
        request_id: str | None = None,
    ) -> Reply:
        """Send a frame and return its reply. If the socket is lost, use another socket of the session.

        Args:
            kind: the frame's type.
            data: its data.
            answer: the type of the reply.
            timeout_s: the deadline at the server, in seconds.
            wait_s: seconds to wait for the reply; None: ``message_timeout_s``.
            request_id: the id of the frame. None: a random id if the session may be resumed, or if the frame waits for
                no other frame.
        """
        if request_id is None and (self.resumes or kind.urgent):
            request_id = self.request_id(kind)
        journal = self._journal
        if journal is None or request_id is None:
            return await self._exchange(kind, data, answer, timeout_s, wait_s, request_id)
        text, known = journal.find(request_id, kind, data)
        if text is not None and known is not None:
            if isinstance(known, (Reply, ExecutionError)):
                self._keep(kind, data, text, answer, request_id, known if isinstance(known, Reply) else None)
            if isinstance(known, WireError):
                raise known
            return known
        try:
            reply = await self._exchange(kind, data, answer, timeout_s, wait_s, request_id, text)
        except (SessionLost, ReplyGone, ConnectionFailed) as lost:
            if self._taken_up:
                journal.lost(lost)
            raise
        except WireError as refused:
            self._taken_up = self._taken_up and isinstance(refused, CapacityReached)
            journal.answered(request_id, refused)
            raise
        self._taken_up = False
        journal.answered(request_id, reply)
        return reply

    async def _exchange(
        self,
        kind: FrameType,
        data: dict[str, Any],
        answer: str,
        timeout_s: float | None,
        wait_s: float | None,
        request_id: str | None,
        text: str | None = None,
    ) -> Reply:
        """Send a frame, or its text from before a restart, and return its reply."""
        connection = await self._current()
        if text is None:
            text = encode_frame(kind, data, request_id=request_id, timeout_s=timeout_s, trace=_trace_for(connection))
            if self._journal is not None and request_id is not None:
                self._journal.sent(request_id, text)
        resumed, put_away = 0, connection.ended
        while True:
            try:
                reply = await connection.exchange(text, answer, wait_s, request_id=request_id)
                self._keep(kind, data, text, answer, request_id, reply)
                return reply
            except ExecutionError:
                self._keep(kind, data, text, answer, request_id, None)  # it is a step, too
                raise
            except (SessionLost, CapacityReached) as lost:
                # A server that resumes a session may have no room, or another server may have to put it away first.
                again = connection.interrupted or (connection.busy and (resumed > 0 or self._taken_up))
                if self._credential is None or not again or resumed >= self._max_resumes:
                    raise
                if isinstance(lost, CapacityReached):
                    self.servers.next()
                resumed += 1
                if not put_away or resumed > 1:
                    await asyncio.sleep(jittered(min(0.05 * 2**resumed, 2.0)))
                connection = await self._resumed(connection, resumed, lost)
                await self._run_lost(connection)

    def _keep(
        self, kind: FrameType, data: dict[str, Any], text: str, answer: str, request_id: str | None, reply: Reply | None
    ) -> None:
        """Keep a message that the server has answered, but perhaps not written yet."""
        if kind in (FrameType.RESET, FrameType.RESTORE, FrameType.BRANCH):
            behind = None if reply is None else (reply.data.get("info") or {}).get("behind")
            self._unwritten = deque(maxlen=min(behind, MAX_BEHIND)) if isinstance(behind, int) else None
            return
        steps = kind in (FrameType.STEP, FrameType.END) and data.get("type") != "list_tools"
        if self._unwritten is not None and request_id is not None and steps:
            self._unwritten.append((text, answer, request_id, None if reply is None else _seen(reply)))

    async def _run_lost(self, connection: Connection) -> None:
        """Send the last messages again, of which another server may have lost some. None runs twice.

        Raises:
            SessionLost: one that ran again has another result.
        """
        for text, answer, request_id, seen in [*(self._unwritten or ())]:
            try:
                reply = await connection.exchange(text, answer, None, request_id=request_id)
            except (ReplyGone, ExecutionError):
                continue
            except SessionLost:
                return  # this socket is lost too: the caller's message finds it
            except CapacityReached:
                self.servers.next()
                return
            if seen is not None and without_incidents(_seen(reply)) != without_incidents(seen):
                connection.abandon()
                raise SessionLost("a step that a server had lost ran again, and has another result")

    async def exchange_once(self, kind: FrameType, data: dict[str, Any] | None, answer: str) -> Reply:
        """Send a frame without a request id, and return its reply. Only in a session that resumes is it sent again."""
        connection = None if self._journal is not None else await self._current()
        if connection is None or self._credential is not None:
            return await self.exchange(kind, data or {}, answer)
        return await connection.exchange(encode_frame(kind, data, trace=_trace_for(connection)), answer)

    async def _current(self) -> Connection:
        self._leave_parent()
        if self.connection is None:
            if self._closed:
                raise SessionLost("the client was closed; reset() begins a new session")
            await self._connected()
        if self.connection is None:  # closed while this call connected
            raise SessionLost("the client was closed")
        return self.connection

    async def _resumed(self, lost: Connection, attempt: int, why: WireError) -> Connection:
        """Return another socket of the same session, on which the message is sent again."""
        async with self._lock():
            if self.connection is lost:
                try:
                    self.connection = await self._open(self._credential, resume=True)
                except (ConnectionFailed, CapacityReached):
                    if attempt >= self._max_resumes:
                        raise SessionLost(f"{why.message}; the outcome of the last message is unknown") from why
                    return lost
            current = self.connection
        if current is None:
            raise SessionLost("the client was closed")
        return current

    async def _end_lost(self) -> None:
        """End the lost session if the server keeps it for this client.

        Otherwise the session would occupy its slot for a while.
        """
        if self._credential is None:
            return
        lost, self._credential = self._credential, None
        for _ in range(len(self.servers)):
            try:
                old = await self._open(lost, resume=True)
                await old.close(encode_frame(FrameType.CLOSE))
            except ConnectionFailed:
                continue
            except WireError:
                pass  # The session is gone, or cannot be continued now.
            return

    async def _open(
        self, credential: Credential | None, *, resume: bool = False, session_id: str | None = None
    ) -> Connection:
        tries = 1 if resume else len(self.servers)
        while True:
            address = self.servers.current
            try:
                return await Connection.open(
                    Handshake.to(address, self.options, credential=credential, resume=resume, session_id=session_id)
                )
            except (ConnectionFailed, CapacityReached):  # the latter of a server without a worker
                self.servers.next(address)
                tries -= 1
                if not tries:
                    raise

    async def _open_again(self, credential: Credential) -> Connection:
        """Open a session that was begun by another process; wait for a server that answers."""
        for attempt in range(1, self._max_resumes):
            try:
                return await self._open(credential, resume=True)
            except (ConnectionFailed, CapacityReached):
                await asyncio.sleep(jittered(min(0.05 * 2**attempt, 2.0)))
        return await self._open(credential, resume=True)

    def _lock(self) -> asyncio.Lock:
        """Return the lock that is held while a socket is opened."""
        self._leave_parent()
        return self._connecting

    def _leave_parent(self) -> None:
        """Leave the session to the parent, in a forked child. A thread that does not exist here may hold the lock."""
        if self._process != forks.number():
            self._process, self._connecting, self._credential = forks.number(), asyncio.Lock(), None


def _seen(reply: Reply) -> Any:
    """Return the part of a reply that is the same when its message runs again."""
    return [reply.data.get(name) for name in ("observation", "reward", "done")]


def _trace_for(connection: Connection) -> dict[str, str]:
    """Return the fields of the current span, for a server that has named its protocol.

    OpenEnv's servers would refuse them.
    """
    return {} if connection.protocol is None else trace_context()


def jittered(pause_s: float) -> float:
    """Return a random pause around this one, so that refused clients do not all retry at the same time."""
    return min(max(pause_s, 0.05), 10.0) * random.uniform(0.8, 1.6)
