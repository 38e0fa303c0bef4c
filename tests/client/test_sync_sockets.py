"""The socket of a blocking client: threads that share it, pings, large messages, proxies, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import datetime
import ipaddress
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from client_servers import (
    LIMIT_S,
    Echo,
    Patient,
    named,
    observation,
    refused,
    said,
    server_in_thread,
    until,
    until_goodbye,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from strict_python import STRICT_PYTHON
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from mcpenv_client import CapacityReached, ConnectionFailed, EnvClient, SessionLost
from mcpenv_client.wire.protocol import FrameType


def test_a_thread_that_asks_again_at_once_starves_no_other(url: str) -> None:
    with EnvClient(url).sync() as env, ThreadPoolExecutor(4) as pool:
        env.reset()
        stop = threading.Event()

        def hurry() -> None:
            while not stop.is_set():
                env.call_tool("echo", {"word": "hurry"})

        hurrying = [pool.submit(hurry) for _ in range(3)]
        try:
            assert [env.call_tool("echo", {"word": f"{index}"}).text for index in range(20)] == [
                f"{index}" for index in range(20)
            ]
        finally:
            stop.set()
        for each in hurrying:
            each.result(LIMIT_S)


# -- threads that share one client


def test_threads_read_for_each_other() -> None:
    server = Patient()
    with server_in_thread(server) as url, EnvClient(url).sync() as env, ThreadPoolExecutor(8) as pool:
        env.reset()
        held = pool.submit(env.call_tool, "hold", {"word": "held"}, request_id="held")
        assert server.held.wait(LIMIT_S)
        for turn in range(20):  # their answers are read by the thread that waits for its own
            others = [
                pool.submit(env.call_tool, "echo", {"word": f"{turn}-{i}"}, request_id=f"{turn}-{i}") for i in range(6)
            ]
            assert [other.result(LIMIT_S).text for other in others] == [f"{turn}-{i}" for i in range(6)]
        assert not held.done()
        server.release()
        assert held.result(LIMIT_S).text == "held"


def test_calls_of_one_name_at_once_are_all_answered() -> None:
    async def twice(socket: ServerConnection) -> None:
        names: list[str | None] = []
        async for frame in until_goodbye(socket):
            if frame.type is FrameType.STEP:
                names.append(frame.request_id)
                if len(names) == 4:
                    for name in names:
                        await socket.send(named(said("done"), name))
            else:
                await socket.send(named(observation(), frame.request_id))

    with server_in_thread(twice) as url, EnvClient(url).sync() as env, ThreadPoolExecutor(4) as pool:
        env.reset()
        calls = [pool.submit(env.call_tool, "t", request_id="same") for _ in range(4)]
        assert [call.result(LIMIT_S).text for call in calls] == ["done"] * 4


def test_closing_ends_the_calls_of_other_threads() -> None:
    server = Patient()
    with server_in_thread(server) as url, ThreadPoolExecutor(8) as pool:
        env = EnvClient(url).sync()
        env.reset()
        calls = [pool.submit(env.call_tool, "hold", {"word": f"{i}"}, request_id=f"{i}") for i in range(4)]
        calls += [pool.submit(env.call_tool, "hold", {"word": "x"}) for _ in range(3)]
        until(lambda: len(server.ran) == 5)
        env.close()
        for call in calls:
            with pytest.raises(SessionLost, match="closed"):
                call.result(LIMIT_S)


def test_who_is_late_first_ends_the_session_for_all() -> None:
    server = Patient()
    with (
        server_in_thread(server) as url,
        EnvClient(url, message_timeout_s=0.3).sync() as env,
        ThreadPoolExecutor(2) as pool,
    ):
        patient = pool.submit(env.call_tool, "hold", {"word": "long"}, request_id="long", timeout_s=LIMIT_S)
        assert server.held.wait(LIMIT_S)
        with pytest.raises(SessionLost, match=r"within 0\.3 s"):
            env.call_tool("hold", {"word": "late"}, request_id="late")
        with pytest.raises(SessionLost, match=r"within 0\.3 s"):
            patient.result(LIMIT_S)


# -- what is large


def test_large_messages_both_ways_at_once() -> None:
    """A server that reads nothing until its answer was taken, and a client that sends more than a socket holds."""
    large = "x" * 8_000_000

    async def one_at_a_time(socket: ServerConnection) -> None:
        async for frame in until_goodbye(socket):
            give = frame.data["tool_name"] == "give"
            answer = said(large if give else str(len(frame.data["arguments"]["text"])))
            await socket.send(named(answer, frame.request_id))

    with (
        server_in_thread(one_at_a_time, max_size=None, write_limit=1024) as url,
        EnvClient(url).sync() as env,
        ThreadPoolExecutor(4) as pool,
    ):
        for _ in range(4):
            reading = pool.submit(env.call_tool, "give", request_id="g")
            sending = pool.submit(env.call_tool, "size", {"text": large}, request_id="s")
            assert reading.result(LIMIT_S).text == large
            assert int(sending.result(LIMIT_S).text) == len(large)


def test_a_server_that_reads_nothing_is_given_up_in_time() -> None:
    gone = threading.Event()

    async def deaf(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await asyncio.get_running_loop().run_in_executor(None, gone.wait, LIMIT_S)

    with server_in_thread(deaf, close_timeout=0.1) as url:
        env = EnvClient(url, message_timeout_s=0.2, connect_timeout_s=2.0).sync()
        with pytest.raises(SessionLost, match=r"within 0\.2 s"):
            env.call_tool("t", {"text": "x" * 30_000_000})
        env.close()
        gone.set()


def test_messages_in_fragments_and_as_bytes() -> None:
    whole = said("word " * 50)

    async def in_pieces(socket: ServerConnection) -> None:
        frames = until_goodbye(socket)
        async for _ in frames:
            await socket.send(whole[i : i + 7] for i in range(0, len(whole), 7))
            async for _ in frames:
                await socket.send(whole.encode())
                break

    with server_in_thread(in_pieces) as url, EnvClient(url).sync() as env:
        assert env.call_tool("t").text == "word " * 50
        assert env.call_tool("t").text == "word " * 50


# -- pings


def test_an_idle_client_answers_pings_and_a_busy_one_too() -> None:
    idle, busy = threading.Event(), threading.Event()

    async def pinging(socket: ServerConnection) -> None:
        async for frame in until_goodbye(socket):
            if frame.type is FrameType.RESET:
                await socket.send(observation())
                await (await socket.ping())  # while nobody reads
                idle.set()
            else:
                for _ in range(3):
                    await (await socket.ping())  # while its answer is waited for
                busy.set()
                await socket.send(said("done"))

    with server_in_thread(pinging) as url, EnvClient(url).sync() as env:
        env.reset()
        assert idle.wait(LIMIT_S)
        assert env.call_tool("t").text == "done"
        assert busy.is_set()


def test_an_idle_client_finds_that_its_server_is_gone() -> None:
    release = threading.Event()

    async def stuck(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(observation())
        release.wait(LIMIT_S)  # the server's whole loop

    with server_in_thread(stuck, close_timeout=0.1) as url:
        env = EnvClient(url, ping_interval_s=0.05, ping_timeout_s=0.05, connect_timeout_s=0.5).sync()
        env.reset()
        until(lambda: env._client._session.connection._socket.state is State.CLOSED)
        with pytest.raises(SessionLost, match="keepalive"):
            env.call_tool("t")
        release.set()
        env.close()


def test_what_nobody_waits_for_is_not_kept_without_end() -> None:
    flooded = threading.Event()

    async def flood(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(observation())
        sent = asyncio.ensure_future(_flood(socket))
        await asyncio.wait([sent], timeout=2.0)  # the client stops to read, and so this stops to send
        if not sent.done():
            flooded.set()
        sent.cancel()

    async def _flood(socket: ServerConnection) -> None:
        for _ in range(100_000):
            await socket.send(observation({"filler": "x" * 1_000}))

    with server_in_thread(flood) as url:
        env = EnvClient(url, connect_timeout_s=1.0).sync()
        env.reset()
        assert flooded.wait(LIMIT_S)
        env.close()


# -- ways to a server


def test_a_redirection_is_followed(url: str, echo: Echo) -> None:
    def elsewhere(connection: ServerConnection, request: Request) -> Response:
        response = connection.respond(302, "")
        response.headers["Location"] = url.replace("http", "ws") + "/ws"
        return response

    with server_in_thread(Echo(), process_request=elsewhere) as first, EnvClient(first).sync() as env:
        env.reset()
        assert env.call_tool("echo", {"word": "there"}).text == "there"
    assert echo.echoed == ["there"]


def test_a_proxy_is_used_for_what_is_not_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n"))
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def main() -> None:
        server = await asyncio.start_server(proxy, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
            with pytest.raises(ConnectionFailed, match="403"):
                await asyncio.to_thread(EnvClient("http://env.example:8000").sync().reset)

    asyncio.run(main())
    assert asked == [b"CONNECT env.example:8000 HTTP/1.1\r\n"]


TLS = """
import sys
from mcpenv_client import EnvClient
with EnvClient(sys.argv[1]).sync() as env:
    env.reset()
    for size in (1, 100_000, 3_000_000):
        assert env.call_tool("echo", {"word": "x" * size}).text == "x" * size
print("end")
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "certificate.pem", folder / "key.pem"


def test_over_tls(certificate: tuple[Path, Path], echo: Echo) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with server_in_thread(echo, ssl=context, max_size=None) as url:
        secure = url.replace("http", "https")
        command = [*STRICT_PYTHON, "-c", TLS, secure]
        trusting = {**os.environ, "SSL_CERT_FILE": str(certificate[0])}
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=trusting)
        assert (ran.stdout, ran.stderr, ran.returncode) == ("end\n", "", 0)
        with pytest.raises(ConnectionFailed, match="certificate"):
            EnvClient(secure).sync().reset()


# -- the ends of a socket


def test_a_client_has_no_thread_and_one_file(url: str) -> None:
    with EnvClient(url).sync() as first:
        first.reset()
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        others = [EnvClient(url).sync() for _ in range(20)]
        for env in others:
            env.reset()
        mine = len(os.listdir("/proc/self/fd")) - files
        assert threading.active_count() == threads
        assert mine == 2 * len(others)  # the server's ends are here, too
        for env in others:
            env.close()


def test_a_socket_that_its_server_closed_is_closed_here_too() -> None:
    """Also while nobody uses it."""

    async def once(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(observation())

    with server_in_thread(once) as url:
        clients = [EnvClient(url).sync() for _ in range(5)]
        clients[0].connect()
        clients[0].close()
        files = len(os.listdir("/proc/self/fd"))
        for env in clients:
            env.reset()
        until(lambda: len(os.listdir("/proc/self/fd")) <= files)
        for env in clients:
            env.reset()  # a session that ended before it was asked for anything is begun anew
            env.close()


def test_what_is_said_together_with_the_answer_to_the_handshake_is_heard() -> None:
    """A refusal and a goodbye in the packet that opens the socket."""

    async def at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        server = ServerProtocol()
        server.receive_data(request)
        (asked,) = server.events_received()
        assert isinstance(asked, Request)
        server.send_response(server.accept(asked))
        server.send_text(refused("CAPACITY_REACHED", "full").encode())
        server.send_close(1013)
        writer.write(b"".join(server.data_to_send()))
        server.receive_data(await reader.read(1000))  # the client's goodbye
        closed.append(server.close_rcvd)
        writer.close()

    closed: list[Any] = []

    async def main() -> None:
        async with await asyncio.start_server(at_once, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            env = EnvClient(f"http://127.0.0.1:{port}").sync()
            with pytest.raises(CapacityReached, match="full"):
                await asyncio.to_thread(env.reset)
            await asyncio.to_thread(env.close)
            listening.close()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
    assert [close.code for close in closed] == [1013]


def test_all_addresses_of_a_host_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        silent = []
        for _ in range(3):
            listening = stack.enter_context(socket.socket())
            listening.bind(("127.0.0.1", 0))
            listening.listen(0)
            for _ in range(3):  # who asks now is not answered
                full = stack.enter_context(socket.socket())
                full.setblocking(False)
                full.connect_ex(listening.getsockname())
            silent.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", listening.getsockname()))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: silent)
        began = time.monotonic()
        with pytest.raises(ConnectionFailed, match=r"within 0\.5 s"):
            EnvClient("http://localhost:9", connect_timeout_s=0.5).sync().reset()
        assert time.monotonic() - began < 1.0


def test_a_frame_of_text_that_is_none_ends_the_connection() -> None:
    async def wrong(socket: ServerConnection) -> None:
        async for _ in socket:
            await socket.send(b"\xff\xfe", text=True)

    with server_in_thread(wrong) as url, EnvClient(url).sync() as env, pytest.raises(SessionLost, match="1007"):
        env.call_tool("t")


def test_headers_of_the_caller_are_sent_once() -> None:
    seen: list[list[str]] = []

    async def look(socket: ServerConnection) -> None:
        assert socket.request is not None
        seen.append(socket.request.headers.get_all("User-Agent"))
        await socket.recv()
        await socket.send(observation())

    with server_in_thread(look) as url:
        for headers in ({"User-Agent": "mine"}, {}):
            with EnvClient(url, headers=headers, connect_timeout_s=1e10).sync() as env:
                env.reset()
    assert seen[0] == ["mine"]
    assert len(seen[1]) == 1


# -- many and much


def test_many_large_messages_at_once_from_many_threads() -> None:
    """Each reads nothing while it writes: then a server that answers one at a time reads nothing either."""
    text = "x" * 300_000

    async def one_at_a_time(socket: ServerConnection) -> None:
        async for frame in until_goodbye(socket):
            await socket.send(named(said(frame.data["arguments"]["text"]), frame.request_id))

    with (
        server_in_thread(one_at_a_time, write_limit=1024) as url,
        EnvClient(url, message_timeout_s=LIMIT_S).sync() as env,
        ThreadPoolExecutor(100) as pool,
    ):
        calls = [pool.submit(env.call_tool, "echo", {"text": text + str(n)}, request_id=str(n)) for n in range(100)]
        assert [call.result(LIMIT_S).text for call in calls] == [text + str(n) for n in range(100)]


@contextlib.contextmanager
def pinging_for_ever() -> Iterator[str]:
    """A server that answers a reset and then sends pings, as fast as they are taken."""
    over = threading.Event()

    async def flood(socket: ServerConnection) -> None:
        async for frame in until_goodbye(socket):
            await socket.send(named(observation(), frame.request_id))
            pings = ServerProtocol()
            pings.state = socket.protocol.state
            pings.send_ping(b"x")
            many = b"".join(pings.data_to_send()) * 10_000
            with contextlib.suppress(ConnectionError):
                while not over.is_set() and not socket.transport.is_closing():
                    socket.transport.write(many)
                    while socket.transport.get_write_buffer_size() and not over.is_set():
                        await asyncio.sleep(0.001)

    with server_in_thread(flood, close_timeout=0.1, ping_interval=None) as url:
        try:
            yield url
        finally:
            over.set()


def test_a_flood_of_pings_costs_a_call_no_more_than_its_time() -> None:
    with pinging_for_ever() as url:
        env = EnvClient(url, message_timeout_s=0.3, connect_timeout_s=0.3).sync()
        env.reset()
        with pytest.raises(SessionLost, match=r"within 0\.3 s"):
            env.call_tool("echo", {"word": "x"})
        env.close()


IN_CONTEXT: contextvars.ContextVar[str] = contextvars.ContextVar("IN_CONTEXT", default="none")


def test_a_subclass_reads_answers_in_the_context_of_the_call(url: str) -> None:
    seen = []

    class Looking(EnvClient[Any, Any, Any]):
        def _parse_result(self, payload: dict[str, Any]) -> Any:
            seen.append(IN_CONTEXT.get())
            return super()._parse_result(payload)

    token = IN_CONTEXT.set("the caller's")
    try:
        with Looking(url).sync() as env:
            env.reset()
    finally:
        IN_CONTEXT.reset(token)
    assert seen == ["the caller's"]
