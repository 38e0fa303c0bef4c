"""The protocol version: what a client says to servers that are too old or too new, over real sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from client_servers import frames, in_loop, observation, server
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from mcpenv_client import PROTOCOL_VERSION, EnvClient, SessionLost, UnsupportedVersion
from mcpenv_client.wire.version import PROTOCOL_HEADER, check_client_version, check_server_version

CHECKS: list[Callable[[str], None]] = [check_client_version, check_server_version]
OLD, NEW = "0.9", "2.0"
TOO_NEW = r"the server speaks protocol 2\.0, which is too new .*; upgrade the client, the package mcpenv-client"
TOO_OLD = r"the server speaks protocol 0\.9, which is too old .*; upgrade the server, or use a client of protocol 0"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("version", [PROTOCOL_VERSION, "1", "1.7", "1.0.3"])
def test_the_same_major_version_is_spoken(version: str, check: Callable[[str], None]) -> None:
    check(version)


@pytest.mark.parametrize("version", [NEW, OLD, "", "x", "10", "01", "-1", "1\n", "9" * 1000])
def test_another_major_version_is_refused_by_either_end(version: str) -> None:
    with pytest.raises(UnsupportedVersion) as by_server:
        check_client_version(version)
    assert by_server.value.data == {"protocol": PROTOCOL_VERSION}
    with pytest.raises(UnsupportedVersion) as by_client:
        check_server_version(version)
    assert by_client.value.data == {"protocol": version[:20]}
    assert max(len(by_server.value.message), len(by_client.value.message)) < 200


def test_a_refusal_says_which_end_to_upgrade() -> None:
    for check, version, remedy in (
        (check_client_version, OLD, "upgrade the client"),
        (check_client_version, NEW, "upgrade the server"),
        (check_server_version, OLD, "upgrade the server"),
        (check_server_version, NEW, "upgrade the client"),
    ):
        with pytest.raises(UnsupportedVersion, match=remedy):
            check(version)
    for either in CHECKS:
        with pytest.raises(UnsupportedVersion, match=r"'x' is no version such as 1\.0"):
            either("x")


class Peer:
    """A server that names a version at the handshake, in its first reply, or in neither."""

    def __init__(self, at_handshake: str | None = None, in_reply: str | None = None) -> None:
        self._at_handshake = at_handshake
        self._in_reply = in_reply
        self.frames = 0

    async def __call__(self, socket: ServerConnection) -> None:
        async for _ in frames(socket):
            self.frames += 1
            reply = json.loads(observation())
            if self._in_reply is not None:
                reply |= {"protocol": self._in_reply, "type": "outcome"}
            await socket.send(json.dumps(reply))

    def name_version(self, socket: ServerConnection, request: Request, response: Response) -> None:
        if self._at_handshake is not None:
            response.headers[PROTOCOL_HEADER] = self._at_handshake


@pytest.mark.parametrize(("version", "says"), [(NEW, TOO_NEW), (OLD, TOO_OLD)])
@in_loop
async def test_a_server_of_another_version_is_refused_before_any_frame(version: str, says: str) -> None:
    peer = Peer(at_handshake=version)
    async with server(peer, process_response=peer.name_version) as url:
        client: EnvClient[Any, Any, Any] = EnvClient(url)
        with pytest.raises(UnsupportedVersion, match=says) as refused:
            await client.connect()
        await client.close()
    assert refused.value.data == {"protocol": version}
    assert peer.frames == 0


@pytest.mark.parametrize(("version", "says"), [(NEW, TOO_NEW), (OLD, TOO_OLD)])
@in_loop
async def test_a_version_in_the_first_reply_counts_where_a_proxy_drops_the_header(version: str, says: str) -> None:
    peer = Peer(in_reply=version)
    async with server(peer) as url, EnvClient(url) as client:
        with pytest.raises(UnsupportedVersion, match=says):
            await client.reset()
        with pytest.raises(SessionLost, match=says):
            await client.call_tool("any")


@in_loop
async def test_a_newer_minor_version_is_spoken_and_one_that_is_not_named_too() -> None:
    for named in ("1.7", None):
        peer = Peer(at_handshake=named)
        async with server(peer, process_response=peer.name_version) as url, EnvClient(url) as client:
            await client.reset()
            assert client._session.connection is not None
            assert client._session.connection.protocol == named


@contextmanager
def http_peer(version: str | None) -> Iterator[tuple[str, list[str | None]]]:
    """An HTTP server that names a version, and the versions that it is asked with."""
    asked: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers[PROTOCOL_HEADER])
            body = b'{"sessions": []}'
            self.send_response(200)
            if version is not None:
                self.send_header(PROTOCOL_HEADER, version)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}", asked
        finally:
            running.shutdown()
            thread.join()


@pytest.mark.parametrize(("version", "says"), [(NEW, TOO_NEW), (OLD, TOO_OLD)])
@in_loop
async def test_a_server_of_another_version_is_refused_over_http(version: str, says: str) -> None:
    with http_peer(version) as (url, asked):
        with pytest.raises(UnsupportedVersion, match=says):
            await EnvClient(url).sessions()
    assert asked == [PROTOCOL_VERSION]


@in_loop
async def test_over_http_too_a_server_need_not_name_its_version() -> None:
    for version in ("1.7", None):
        with http_peer(version) as (url, _):
            assert await EnvClient(url).sessions() == []
