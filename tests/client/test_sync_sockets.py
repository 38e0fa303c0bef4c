"""The socket of a blocking client: threads that share it, pings, large messages, proxies, TLS."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import ipaddress
import os
import ssl
import subprocess
import threading
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

from mcpenv_client import ConnectionFailed, EnvClient, SessionLost
from mcpenv_client.connection import connection
from mcpenv_client.wire.protocol import FrameType

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


# -- what is large, and what nobody waits for


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


def test_what_nobody_waits_for_is_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "FAREWELL_S", 0.01)  # the client reads no farewell, as it reads nothing
    flooded = threading.Event()

    async def flood(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(observation())
        for _ in range(100_000):
            sending = asyncio.ensure_future(socket.send(observation({"filler": "x" * 1_000})))
            await asyncio.wait([sending], timeout=0.5)  # the client stops to read, and so this stops to send
            if not sending.done():
                sending.cancel()
                flooded.set()
                return

    with server_in_thread(flood, close_timeout=0.1) as url:
        env = EnvClient(url, connect_timeout_s=0.1).sync()
        env.reset()
        assert flooded.wait(LIMIT_S)
        env.close()


# -- ways to a server


def test_a_redirection_is_followed_without_credentials_to_another_origin(url: str, echo: Echo) -> None:
    def elsewhere(connection: ServerConnection, request: Request) -> Response:
        response = connection.respond(302, "")
        response.headers["Location"] = url.replace("http", "ws") + "/ws"
        return response

    with server_in_thread(Echo(), process_request=elsewhere) as first:
        with EnvClient(first, token="for-the-first-only", headers={"Cookie": "a=b", "X-Kind": "c"}).sync() as env:
            env.reset()
            assert env.call_tool("echo", {"word": "there"}).text == "there"
    assert echo.echoed == ["there"]
    (headers,) = echo.headers
    assert headers["x-kind"] == "c" and not {"authorization", "cookie"} & set(headers)


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


@pytest.mark.smoke
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
        EnvClient(url, message_timeout_s=3 * LIMIT_S).sync() as env,
        ThreadPoolExecutor(40) as pool,
    ):
        calls = [pool.submit(env.call_tool, "echo", {"text": text + str(n)}, request_id=str(n)) for n in range(40)]
        assert [call.result(3 * LIMIT_S).text for call in calls] == [text + str(n) for n in range(40)]


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
