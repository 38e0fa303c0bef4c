"""Clients that are too old or too new for a server, over real sockets and HTTP, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect
from worlds import World

from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving
from mcpenv_client.wire.version import PROTOCOL_HEADER, PROTOCOL_VERSION

LIMIT_S = 20.0
OLD = ("0.9", "the client speaks protocol 0.9, which is too old for this server's 1.0; upgrade the client")
NEW = ("2.0", "the client speaks protocol 2.0, which is too new for this server's 1.0; upgrade the server")
NO_VERSION = ("soon", "the client's protocol 'soon' is no version such as 1.0")
FOREIGN = [OLD, NEW, NO_VERSION]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(World) as address:
        yield address


def session_count(url: str) -> int:
    return len(httpx.get(f"{url}/sessions", timeout=LIMIT_S).json()["sessions"])


@pytest.mark.parametrize(("version", "says"), FOREIGN)
def test_a_socket_of_another_version_is_told_which_end_to_upgrade_and_closed(url: str, version: str, says: str) -> None:
    with connect(f"{url.replace('http', 'ws')}/ws?protocol={version}") as socket:
        assert socket.response is not None and socket.response.headers[PROTOCOL_HEADER] == PROTOCOL_VERSION
        frame = json.loads(socket.recv(LIMIT_S))
        assert frame["type"] == "error"
        assert frame["data"]["code"] == "UNSUPPORTED_VERSION"
        assert frame["data"]["protocol"] == PROTOCOL_VERSION
        assert frame["data"]["message"].startswith(says)
        with pytest.raises(ConnectionClosedError) as closed:
            socket.recv(LIMIT_S)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1011
    assert session_count(url) == 0


@pytest.mark.parametrize(("version", "says"), FOREIGN)
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/reset"), ("POST", "/step"), ("GET", "/sessions"), ("POST", "/sessions")]
)
def test_an_http_request_of_another_version_is_refused_and_runs_nothing(
    url: str, method: str, path: str, version: str, says: str
) -> None:
    answer = httpx.request(method, url + path, headers={PROTOCOL_HEADER: version}, timeout=LIMIT_S)
    refused: dict[str, Any] = answer.json()
    assert (answer.status_code, refused["code"]) == (400, "UNSUPPORTED_VERSION")
    assert answer.headers[PROTOCOL_HEADER] == refused["protocol"] == PROTOCOL_VERSION
    assert refused["message"].startswith(says)
    assert session_count(url) == 0


@pytest.mark.parametrize("version", ["1", "1.0", "1.7"])
def test_an_http_request_of_the_same_major_version_is_served_and_told_the_servers(url: str, version: str) -> None:
    answer = httpx.get(f"{url}/sessions", headers={PROTOCOL_HEADER: version}, timeout=LIMIT_S)
    assert (answer.status_code, answer.headers[PROTOCOL_HEADER]) == (200, PROTOCOL_VERSION)


def test_a_client_that_names_no_version_is_served_and_told_none(url: str) -> None:
    answer = httpx.get(f"{url}/sessions", timeout=LIMIT_S)
    assert answer.status_code == 200 and PROTOCOL_HEADER not in answer.headers
    with connect(f"{url.replace('http', 'ws')}/ws") as socket:
        assert socket.response is not None and PROTOCOL_HEADER not in socket.response.headers


@pytest.mark.parametrize("version", ["0.9", "2.0"])
def test_every_client_may_read_which_version_a_server_speaks(url: str, version: str) -> None:
    answer = httpx.get(f"{url}/metadata", headers={PROTOCOL_HEADER: version}, timeout=LIMIT_S)
    assert answer.json()["protocol"] == PROTOCOL_VERSION


def test_the_control_token_is_asked_for_first() -> None:
    with serving(World, ServerConfig(control_token="a-token-of-control")) as url:
        answer = httpx.get(f"{url}/sessions", headers={PROTOCOL_HEADER: "2.0"}, timeout=LIMIT_S)
    assert answer.json()["code"] == "UNAUTHORIZED"
