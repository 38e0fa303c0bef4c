"""A tap on the connections to a server: bytes pass as they are, and can be read afterwards as the server saw them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import h11

END_TIMEOUT_S = 20


@dataclass(frozen=True)
class Request:
    """One HTTP request. Names of headers are in small letters."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def rpc(self) -> str | None:
        """The JSON-RPC method that it asks for; None for a request without a body, or a reply."""
        message: dict[str, Any] = json.loads(self.body) if self.body else {}
        method: str | None = message.get("method")
        return method

    @property
    def session(self) -> str | None:
        """The handshake session that it belongs to."""
        return self.headers.get("mcp-session-id")


@dataclass
class Tap:
    """The bytes of each connection in order."""

    url: str
    sent: list[bytearray] = field(default_factory=list)
    received: list[bytearray] = field(default_factory=list)

    def requests(self) -> list[Request]:
        """Return what was sent to the server, connection by connection."""
        return [request for connection in self.sent for request in _requests(bytes(connection))]

    def answered(self, text: str) -> bool:
        """Return True if the server sent this, anywhere."""
        return any(text.encode() in connection for connection in self.received)


@contextmanager
def tapped(server: str) -> Iterator[Tap]:
    """A tap in front of a server of plain HTTP. What it recorded is whole when the block has ended.

    Raises:
        TimeoutError: a client's connection is still open END_TIMEOUT_S seconds after the block.
    """
    behind = urlsplit(server)
    assert behind.hostname is not None and behind.port is not None
    pumps: list[Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tap = Tap(f"http://127.0.0.1:{listener.getsockname()[1]}")

        def accept() -> None:
            with suppress(OSError):  # the listener was shut down: the block is over
                while True:
                    client, _ = listener.accept()
                    upstream = socket.create_connection((behind.hostname, behind.port))
                    for source, target, record in ((client, upstream, tap.sent), (upstream, client, tap.received)):
                        record.append(bytearray())
                        pumps.append(Thread(target=_pump, args=(source, target, record[-1]), daemon=True))
                        pumps[-1].start()

        accepting = Thread(target=accept, daemon=True)
        accepting.start()
        yield tap
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(END_TIMEOUT_S)
    for pump in pumps:
        pump.join(END_TIMEOUT_S)
        if pump.is_alive():
            raise TimeoutError("a connection is still open")


def _pump(source: socket.socket, target: socket.socket, record: bytearray) -> None:
    # A client that was killed resets its connections; that is an end, too.
    with suppress(OSError):
        while data := source.recv(65536):
            record += data
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _requests(data: bytes) -> Iterator[Request]:
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(data)
    head: h11.Request | None = None
    body = b""
    while True:
        event = reader.next_event()
        if isinstance(event, h11.Request):
            head, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            headers = {name.decode(): value.decode() for name, value in head.headers}
            yield Request(head.method.decode(), head.target.decode(), headers, body)
            # h11 reads the next request only when this one was answered.
            reader.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            reader.send(h11.EndOfMessage())
            if reader.our_state is h11.MUST_CLOSE:
                return
            reader.start_next_cycle()
        else:
            return
