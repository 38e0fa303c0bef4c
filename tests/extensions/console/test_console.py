"""The console's files and its sign-in, on a real server."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from worlds import World

import mcpenv.extensions.console
from mcpenv import ConfigurationError, Mode
from mcpenv.server.config import ServerConfig
from mcpenv.server.serve import serving

TOKEN = "the-control-token"
BUDGET = 220_000
"""The most bytes of all files."""


@pytest.fixture(scope="module", params=[1, 2])
def guarded(request: pytest.FixtureRequest) -> Iterator[str]:
    with serving(World, ServerConfig(control_token=TOKEN), max_concurrent_envs=8, workers=request.param) as url:
        yield url


@contextmanager
def signed_in(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers={"Origin": url}, timeout=20) as client:
        while (answer := client.post("/console/api/sign-in", json={"token": TOKEN})).status_code == 429:
            assert answer.json()["retry_after_s"] <= 1.0
        assert answer.status_code == 200, answer.text
        yield client


def raw(url: str, path: str) -> tuple[int, bytes]:
    """Ask for a path as it is written, which clients with good manners would not send."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    connection.request("GET", path)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read()
    finally:
        connection.close()


# -- files


def test_all_files_together_are_within_their_budget() -> None:
    files = list((Path(mcpenv.extensions.console.__file__).parent / "static").iterdir())
    assert len(files) > 10
    assert sum(file.stat().st_size for file in files) < BUDGET


def test_the_page_is_served_with_headers_that_let_nothing_foreign_run(guarded: str) -> None:
    moved = httpx.get(f"{guarded}/console")
    assert (moved.status_code, moved.headers["location"]) == (307, "console/")
    page = httpx.get(f"{guarded}/console", follow_redirects=True)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-cache"
    again = httpx.get(f"{guarded}/console/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_an_address_within_the_page_gives_the_page_and_a_missing_file_does_not(guarded: str) -> None:
    page = httpx.get(f"{guarded}/console/").content
    assert httpx.get(f"{guarded}/console/live/abc").content == page
    missing = httpx.get(f"{guarded}/console/nothing.js")
    assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "path",
    [
        "/console/../config.py",
        "/console/%2e%2e/config.py",
        "/console/..%2f..%2fconfig.py",
        "/console/%2e%2e%2f%2e%2e%2f%2e%2e%2fpy.typed",
        "/console//etc/passwd",
        "/console/%2fetc%2fpasswd",
        "/console/..%5cfiles.py",
    ],
)
def test_no_path_leaves_the_folder(guarded: str, path: str) -> None:
    status, body = raw(guarded, path)
    page = httpx.get(f"{guarded}/console/").content
    assert status == 404 or body == page


def test_a_page_of_a_named_origin_may_show_the_console_in_a_frame() -> None:
    with serving(World, ServerConfig(frame_ancestors=("https://huggingface.co",))) as url:
        assert (
            "frame-ancestors https://huggingface.co" in httpx.get(f"{url}/console/").headers["content-security-policy"]
        )
        assert (
            httpx.get(f"{url}/console/frame.html")
            .headers["content-security-policy"]
            .endswith("frame-ancestors 'self' https://huggingface.co")
        )


def test_an_environments_view_runs_without_origin_and_connections(guarded: str) -> None:
    frame = httpx.get(f"{guarded}/console/frame.html")
    policy = dict(part.strip().partition(" ")[::2] for part in frame.headers["content-security-policy"].split(";"))
    assert (policy["sandbox"], policy["default-src"]) == ("allow-scripts", "'none'")
    assert not {"connect-src", "frame-src", "worker-src"} & policy.keys(), "default-src would not hold for it"
    assert (policy["form-action"], policy["frame-ancestors"]) == ("'none'", "'self'")
    assert "sandbox-proxy-ready" in frame.text and frame.headers["x-content-type-options"] == "nosniff"
    assert "RTCPeerConnection" in frame.text and frame.headers["x-dns-prefetch-control"] == "off"
    # The console itself gets none of it, and may show no page of another server.
    page = httpx.get(f"{guarded}/console/").headers["content-security-policy"]
    assert "unsafe-inline" not in page and "frame-src 'self';" in page


def test_the_console_is_on_in_simulation_and_in_production_only_with_a_token_if_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    production = Mode.PRODUCTION
    for config, there in (
        (ServerConfig(), True),
        (ServerConfig(console=False), False),
        (ServerConfig(mode=production, control_token=TOKEN), False),
        (ServerConfig(mode=production, control_token=TOKEN, console=True), True),
    ):
        with serving(World, config) as url:
            assert (httpx.get(f"{url}/console/").status_code == 200) is there, config
    with pytest.raises(ConfigurationError, match="console needs a control token"):
        ServerConfig(mode=production, console=True).with_console()
    monkeypatch.setenv("MCPENV_CONSOLE", "0")
    assert ServerConfig().with_console().console is False
    assert ServerConfig(console=True).with_console().console is True
    monkeypatch.setenv("MCPENV_CONSOLE", "perhaps")
    with pytest.raises(ConfigurationError, match="MCPENV_CONSOLE is 'perhaps'; use 1 or 0"):
        ServerConfig().with_console()


# -- sign-in


def test_without_a_control_token_nobody_signs_in() -> None:
    with serving(World) as url:
        told = httpx.get(f"{url}/console/api/session").json()
        assert (told["signed_in"], told["needs_token"], told["mode"]) == (True, False, "simulation")
        assert httpx.post(f"{url}/console/api/sign-in", json={"token": "anything"}).status_code == 200


def test_the_cookie_opens_the_control_plane_of_every_worker(guarded: str) -> None:
    told = httpx.get(f"{guarded}/console/api/session").json()
    assert (told["signed_in"], told["needs_token"]) == (False, True)
    assert httpx.get(f"{guarded}/capacity").status_code == 401
    with signed_in(guarded) as client:
        (cookie,) = client.cookies.jar
        assert cookie.has_nonstandard_attr("HttpOnly") and cookie.get_nonstandard_attr("SameSite") == "Strict"
        assert cookie.expires is not None and not cookie.secure and cookie.path == "/"
        assert client.get("/console/api/session").json()["signed_in"] is True
        pairs = "; ".join(f"{each.name}={each.value}" for each in client.cookies.jar)
    for _ in range(4):  # each by a connection of its own, which another worker may accept
        assert httpx.get(f"{guarded}/capacity", headers={"Cookie": pairs}).status_code == 200
        opened = httpx.post(f"{guarded}/sessions", headers={"Cookie": pairs, "Origin": guarded})
        assert opened.status_code == 200
        ended = httpx.delete(
            f"{guarded}/sessions/{opened.json()['session_id']}", headers={"Cookie": pairs, "Origin": guarded}
        )
        assert ended.json()["closed"] is True
    socket = guarded.replace("http", "ws") + "/ws"
    with connect(socket, additional_headers={"Cookie": pairs, "Origin": guarded}) as frames:
        frames.send(json.dumps({"type": "reset", "data": {}}))
        assert json.loads(frames.recv(20))["type"] == "observation"
    # The same cookie from a page of another port of this host, and from no page at all.
    for headers in ({"Cookie": pairs, "Origin": "http://127.0.0.1:1"}, {"Cookie": pairs}):
        with pytest.raises(InvalidStatus), connect(socket, additional_headers=headers):
            pass
        assert httpx.post(f"{guarded}/sessions", headers=headers).status_code == 401
    assert httpx.post(f"{guarded}/sessions", headers={**headers, "Origin": "http://evil.example"}).status_code == 403


def test_signing_out_removes_the_cookie(guarded: str) -> None:
    with signed_in(guarded) as client:
        assert client.get("/capacity").status_code == 200
        assert client.post("/console/api/sign-out").json()["signed_in"] is False
        assert client.get("/capacity").status_code == 401


def test_attempts_to_guess_the_token_are_refused_and_slowed_down() -> None:
    with serving(World, ServerConfig(control_token=TOKEN)) as url:
        first = httpx.post(f"{url}/console/api/sign-in", json={"token": "another-token"}, headers={"Origin": url})
        assert (first.status_code, first.json()["code"]) == (401, "UNAUTHORIZED")
        assert "set-cookie" not in first.headers
        second = httpx.post(f"{url}/console/api/sign-in", json={"token": TOKEN})
        assert (second.status_code, second.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize("body", [{}, {"token": 5}, {"token": TOKEN, "more": 1}])
def test_a_body_without_one_token_is_refused(body: Any) -> None:
    with serving(World, ServerConfig(control_token=TOKEN)) as url:
        assert httpx.post(f"{url}/console/api/sign-in", json=body).status_code == 403, "no Origin"
    with serving(World, ServerConfig(control_token=TOKEN)) as url:
        answer = httpx.post(f"{url}/console/api/sign-in", json=body, headers={"Origin": url})
        assert answer.status_code == 422 and '{"token": "..."}' in answer.json()["message"]


def test_the_cookie_is_secure_where_the_public_address_is() -> None:
    config = ServerConfig(control_token=TOKEN, public_url="https://env.example")
    with serving(World, config) as url:
        answer = httpx.post(
            f"{url}/console/api/sign-in", json={"token": TOKEN}, headers={"Origin": "https://env.example"}
        )
        assert "; Secure" in answer.headers["set-cookie"]


def test_in_a_frame_of_another_site_the_cookie_is_its_own_and_needs_https() -> None:
    framed = ServerConfig(
        control_token=TOKEN, public_url="https://env.example", frame_ancestors=("https://hub.example",)
    )
    with serving(World, framed) as url, httpx.Client(base_url=url, headers={"Origin": "https://env.example"}) as client:
        given = client.post("/console/api/sign-in", json={"token": TOKEN}).headers["set-cookie"]
        assert given.endswith("; Path=/; HttpOnly; SameSite=None; Partitioned; Secure")
        removed = client.post("/console/api/sign-out").headers["set-cookie"]
        assert "=; Max-Age=0;" in removed and "; Partitioned" in removed
        # The page that shows the frame is another origin, and may do nothing with the cookie.
        cookie = {"Cookie": given.partition(";")[0]}
        foreign = {**cookie, "Origin": "https://hub.example"}
        assert httpx.get(f"{url}/capacity", headers={**cookie, "Sec-Fetch-Site": "same-origin"}).status_code == 200
        assert httpx.get(f"{url}/capacity", headers={**cookie, "Sec-Fetch-Site": "cross-site"}).status_code == 401
        assert httpx.post(f"{url}/sessions", headers=foreign, json={}).status_code in (401, 403)
    plain = ServerConfig(control_token=TOKEN, frame_ancestors=("https://hub.example",))
    with serving(World, plain) as url:
        answer = httpx.post(f"{url}/console/api/sign-in", json={"token": TOKEN}, headers={"Origin": url})
        assert "; SameSite=Strict" in answer.headers["set-cookie"]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the module")
def test_a_number_that_a_browser_would_round_is_refused_when_typed_and_kept_when_read() -> None:
    static = Path(mcpenv.extensions.console.__file__).parent / "static"
    program = f"""
    import {{ parsed }} from {(static / "inputs.js").as_uri()!r};
    import {{ read, written }} from {(static / "numbers.js").as_uri()!r};
    const refused = (text) => {{ try {{ return JSON.stringify(parsed(text)) !== text; }} catch {{ return true; }} }};
    const long = '{{"a":12345678901234567890,"b":"1234567890123456","c":0.1234567890123456,"d":[-9007199254740993]}}';
    console.log(JSON.stringify([
        ["9007199254740993", '{{"id":12345678901234567890}}', "[1e400]"].map(refused),
        ["9007199254740991", '{{"id":"12345678901234567890"}}', "[1.5]"].map(refused),
        written(read(long)) === long,
    ]));
    """
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == [[True] * 3, [False] * 3, True]
