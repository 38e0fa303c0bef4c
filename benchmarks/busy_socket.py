"""The WebSocket that waits for answers without sleeping, and that touches little memory.

For one call at a time in many sessions. An event loop would have its own memory for each session and read it for each
call, which would distort the server's cost.
"""

from __future__ import annotations

import contextlib
import socket
import time

from .load import (
    ANSWER_S,
    CLOSE,
    GOODBYE,
    PING,
    PONG,
    TEXT,
    UPGRADED,
    WrongAnswer,
    address_of,
    frame,
    payload_of,
    upgrade,
)

_MOST = 1 << 16


class BusyWebSocket:
    """The WebSocket that its constructor opens.

    Raises:
        WrongAnswer: the server refuses it.
        ConnectionError, TimeoutError: as `ask`.
    """

    __slots__ = ("_came", "_socket")

    def __init__(self, url: str) -> None:
        self._came = b""
        self._socket = socket.create_connection(address_of(url), ANSWER_S)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(upgrade(url))
            head = b""
            while b"\r\n\r\n" not in head:  # a server says nothing more before it is asked
                head += self._more(time.perf_counter() + ANSWER_S)
            if not head.startswith(UPGRADED):
                raise WrongAnswer(head[:2000].decode(errors="replace"))
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    def ask(self, request: bytes, mark: bytes = b"") -> bytes:
        """Send one frame of a client's, made by `frame`. Return the text that answers it, and answer pings meanwhile.

        Raises:
            WrongAnswer: the answer does not contain the mark.
            ConnectionError: the other end closed.
            TimeoutError: there is none within `ANSWER_S`.
        """
        until = time.perf_counter() + ANSWER_S
        self._write(request)
        while (text := self._text()) is None:
            self._came += self._more(until)
        # After a pause of 40 ms the kernel acknowledges an answer by a packet of its own, and before that with the next
        # question: how many sessions there are would decide how many packets a call takes.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if mark not in text:
            raise WrongAnswer(text[:2000].decode(errors="replace"))
        return text

    def answer_pings(self) -> None:
        """Answer the pings that have arrived, for a socket that is rarely used.

        Raises:
            WrongAnswer: an unexpected text arrived.
            ConnectionError: the other end closed.
        """
        with contextlib.suppress(BlockingIOError):
            self._came += self._some()
        text = self._text()
        if text is not None:
            raise WrongAnswer(text[:2000].decode(errors="replace"))

    def close(self) -> None:
        """Send a close frame and close."""
        with contextlib.suppress(ConnectionError):  # who is gone needs no farewell
            self._write(GOODBYE)
        self._socket.close()

    def _write(self, data: bytes) -> None:
        if self._socket.send(data) < len(data):
            raise ConnectionError("the server does not read")

    def _text(self) -> bytes | None:
        """Return the next text that has arrived."""
        while self._came:
            data = self._came
            start, end = payload_of(data)
            if len(data) < end:
                break
            kind, payload, self._came = data[0], data[start:end], data[end:]
            if kind == TEXT:
                return payload
            if kind == PING:
                self._write(frame(payload, kind=PONG))
            elif kind == CLOSE:
                raise ConnectionError(f"the server closed the WebSocket: {payload[2:].decode()}")
        return None

    def _more(self, until: float) -> bytes:
        while True:
            try:
                return self._some()
            except BlockingIOError:
                if time.perf_counter() > until:
                    raise TimeoutError(f"no answer within {ANSWER_S:.0f} s") from None

    def _some(self) -> bytes:
        data = self._socket.recv(_MOST)
        if not data:
            raise ConnectionError("the connection was closed")
        return data
