"""Test what an agent can try with its episode's address and nothing else. docs/reference/attacks.md has the table.

Each attack is sent for real, byte by byte where no client would send such a thing, to a server with both planes at one
address and a control token, and to one whose control plane is at another address. After each, two episodes are as their
orchestrators left them, and nothing that the agent read tells it anything of them (`Scene.unharmed`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from attack_bench import (
    ACCEPT,
    CONTROL,
    ERAS,
    HANDSHAKE,
    MODERN,
    PATIENCE_S,
    TOKEN,
    UPGRADE,
    Doors,
    Scene,
    apart,
    beside,
    connection,
    exchange,
    parsed,
    scene_at,
    until,
)
from attack_worlds import COMPONENT, WORTH, Vault
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from mcpenv.server.config import ServerConfig
from mcpenv.server.http.http_protocol import MAX_HEAD_BYTES
from mcpenv.server.security.control_auth import AgentTokens
from mcpenv.server.serve import serving
from mcpenv.server.sessions import handles

OVER = "The episode is over."
LIMIT = 4 * 1024 * 1024
METHOD_NOT_FOUND, INVALID_PARAMS, PARSE_ERROR, INVALID_REQUEST = -32601, -32602, -32700, -32600

CONTROL_ROUTES = (
    ("POST", "/reset"),
    ("POST", "/step"),
    ("GET", "/state"),
    ("GET", "/sessions"),
    ("POST", "/sessions"),
    ("GET", "/sessions/{session_id}"),
    ("DELETE", "/sessions/{session_id}"),
    ("GET", "/capacity"),
    ("GET", "/list_environments"),
    ("GET", "/any/splits"),
    ("POST", "/any/tasks"),
    ("POST", "/any/num_tasks"),
    ("POST", "/any/task"),
    ("POST", "/any/task_range"),
)


@pytest.fixture(scope="module", params=[beside, apart], ids=["beside", "apart"])
def doors(request: pytest.FixtureRequest) -> Iterator[Doors]:
    with request.param() as found:
        yield found


@pytest.fixture
def scene(doors: Doors, caplog: pytest.LogCaptureFixture) -> Iterator[Scene]:
    with scene_at(doors) as found:
        yield found
        # What a program of its own logs is judged at its end.
        assert "Exception in ASGI application" not in caplog.text
        assert "could not be answered" not in caplog.text
        for secret in (TOKEN, found.handle, found.their_handle):
            assert secret not in caplog.text


# -- the control plane


@pytest.mark.smoke
def test_control_routes_are_closed_to_who_has_no_token(scene: Scene) -> None:
    for method, path in CONTROL_ROUTES:
        answer = scene.ask(method, path.format(session_id=scene.session_id), ACCEPT, b"{}")
        assert answer.status == scene.doors.closed, path
    for method in ("PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT"):
        for path in ("/reset", "/step", "/sessions", "/capacity"):
            assert scene.ask(method, path).status in (401, 404, 405), (method, path)
    assert scene.ask("GET", "/ws", UPGRADE).status == (403 if scene.doors.apart else 401)
    scene.unharmed()


def test_wrong_control_tokens_are_answered_alike(scene: Scene) -> None:
    wrong = [TOKEN[:-1], TOKEN + "x", TOKEN.upper(), TOKEN[::-1], "", "x" * 30_000, "\xff\xfe", "*", f"{TOKEN},{TOKEN}"]
    given = [[("Authorization", f"Bearer {token}")] for token in wrong]
    given += [[("Authorization", text)] for text in ("", "Bearer", "Bearer null", f"Bearer{TOKEN}", f"Digest {TOKEN}")]
    for method, path in CONTROL_ROUTES:
        target = path.format(session_id=scene.session_id)
        answers = {scene.ask(method, target, headers, b"{}").raw for headers in given}
        assert len(answers) == 1
        assert parsed(answers.pop()).status == scene.doors.closed
    for encoded in ("", "!!!", "AAAA", "dGhlLWNvbnRyb2wtdG9rZW4"):
        answer = scene.ask("GET", "/ws", {**UPGRADE, "Sec-WebSocket-Protocol": f"mcpenv, mcpenv.token.{encoded}"})
        assert answer.status == (403 if scene.doors.apart else 401)
    scene.unharmed()


def test_the_control_token_opens_nothing_from_a_wrong_place(scene: Scene) -> None:
    """Send it where proxies, browsers and logs would leave it, and at an address of its own from the right place."""
    basic = base64.b64encode(f"{TOKEN}:{TOKEN}".encode()).decode()
    body = json.dumps({"token": TOKEN, "control_token": TOKEN, "access_token": TOKEN}).encode()
    places: list[list[tuple[str, str]]] = [
        [("Authorization", f"Basic {basic}")],
        [("Authorization", TOKEN)],
        [("Authorization", f"Token {TOKEN}")],
        [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")],
        [("Authorization", "Bearer x"), ("Authorization", f"Bearer {TOKEN}")],
        [("Proxy-Authorization", f"Bearer {TOKEN}")],
        [("X-Control-Token", TOKEN), ("X-Api-Key", TOKEN), ("Mcpenv-Control-Token", TOKEN)],
        [("Cookie", f"token={TOKEN}; Authorization=Bearer {TOKEN}")],
        [("X-Forwarded-Authorization", f"Bearer {TOKEN}"), ("X-Original-Authorization", f"Bearer {TOKEN}")],
        [("Sec-WebSocket-Protocol", f"mcpenv.token.{base64.urlsafe_b64encode(TOKEN.encode()).decode()}")],
    ]
    for headers in places:
        assert scene.ask("POST", "/reset", headers, body).status == scene.doors.closed, headers
    for target in (f"/reset?token={TOKEN}", f"/reset?access_token={TOKEN}&authorization=Bearer+{TOKEN}"):
        assert scene.ask("POST", target, (), body).status == scene.doors.closed
    # An agent that has come by the token can do nothing with it where the control plane is not.
    if scene.doors.apart:
        for method, path in CONTROL_ROUTES:
            assert scene.ask(method, path.format(session_id=scene.session_id), CONTROL).status == 404
    scene.heard.clear()  # it was told what it said itself
    scene.unharmed()


def test_an_agents_own_token_is_no_control_token_and_the_other_way_round() -> None:
    tokens = AgentTokens({"ada": "ada-secret-token"})
    with serving(Vault, ServerConfig(control_token=TOKEN), auth=tokens) as url, scene_at(Doors(url, url)) as scene:
        for method, path in CONTROL_ROUTES:
            target = path.format(session_id=scene.session_id)
            assert scene.ask(method, target, {"Authorization": "Bearer ada-secret-token"}).status == 401
        headers, body = scene.spoken(MODERN, "tools/list")
        asked = scene.ask("POST", None, {**headers, **CONTROL}, json.dumps(body).encode())
        assert asked.status == 401
        asked = scene.ask(
            "POST", None, {**headers, "Authorization": "Bearer ada-secret-token"}, json.dumps(body).encode()
        )
        assert asked.status == 200
        scene.unharmed()


@pytest.mark.parametrize("era", ERAS)
def test_what_orchestrators_ask_for_is_no_method_of_mcp(scene: Scene, era: str) -> None:
    methods = ["reset", "step", "state", "close", "wait", "trajectory", "cancel", "sessions/list", "tools/reset"]
    methods += ["openenv/session/create", "mcpenv/reset", "tasks/list", "tasks/get", "admin/shutdown", "rpc.discover"]
    methods += ["sampling/createMessage", "elicitation/create", "roots/list", "", "Tools/call", "tools/call "]
    for method in methods:
        answer = scene.rpc(era, method, {"session_id": scene.session_id})
        assert answer.error in (METHOD_NOT_FOUND, INVALID_REQUEST, -32020), method
    scene.unharmed()


def test_plain_json_rpc_of_openenv_is_not_spoken_at_a_handle(scene: Scene) -> None:
    for method in ("tools/list", "tools/call", "openenv/session/create", "reset"):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"session_id": scene.session_id, "name": "add"}}
        for path in (scene.path, scene.path + "/"):
            answer = scene.ask("POST", path, {"Content-Type": "application/json"}, json.dumps(body).encode())
            assert answer.status in (400, 406)
    scene.unharmed()


def test_no_socket_opens_at_an_agents_address(scene: Scene) -> None:
    for path in (scene.path, "/mcp", "/reset", "/health", f"{scene.path}/ws", f"/episodes/{scene.handle}/ws"):
        assert scene.ask("GET", path, UPGRADE).status == 403, path
    # Upgrades to something else, and tunnels, are none: the request is judged as it stands.
    h2c = {"Connection": "Upgrade, HTTP2-Settings, close", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    assert scene.ask("GET", "/sessions", h2c).status == scene.doors.closed
    assert scene.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").status == 400
    assert scene.ask("CONNECT", "127.0.0.1:1").status in (400, 404, 405)
    scene.unharmed()


# -- names, paths, ids


@pytest.mark.parametrize("era", ERAS)
def test_reserved_and_hidden_names_are_those_of_unknown_tools(scene: Scene, era: str) -> None:
    listed = {tool["name"] for tool in scene.rpc(era, "tools/list").message["result"]["tools"]}
    assert listed == {"add", "echo", "fail", "hold", "release", "submit"}
    names = ["reset", "step", "state", "close", "Reset", "../reset", "env.reset", "mcpenv_reset", "__init__", "score"]
    names += ["support_ticket", "", "x" * 1_000]
    for name in names:
        assert scene.call(era, name).error == INVALID_PARAMS, name
    scene.unharmed(steps=len(names))  # a call of an unknown tool is a step, and scored as one


def test_no_path_leads_from_a_handle_to_the_control_plane(scene: Scene) -> None:
    here, handle = scene.path, scene.handle
    targets = [f"{here}/../../../reset", f"{here}/..%2f..%2f..%2freset", f"{here}/%2e%2e/%2e%2e/%2e%2e/reset"]
    targets += [f"/episodes/{handle}/../../reset", f"/episodes/{handle}/reset", f"{here}/reset", f"{here}//reset"]
    targets += ["/episodes/../reset", "/episodes/%2e%2e/reset", "/mcp/../reset", "/mcp/%2e%2e/reset", "/mcp/reset"]
    targets += ["//reset", "///reset", "/./reset", "/reset/", "/reset//", "/RESET", "/reset.", "/reset%20", "/reset%00"]
    targets += [
        "/reset;x=1",
        "/reset%3fx",
        "/reset%23",
        "/%72eset",
        "/reset?x=1",
        "/reset#x",
        "/%2freset",
        "/.%2freset",
    ]
    targets += ["\\reset", "reset", "*", "/reset\t", "/reset\xff", "/%ff", "/reset%0d%0aX:%20y", f"{here}%20HTTP/1.1"]
    targets += ["/sessions/", "/sessions//", "/sessions/..", "/sessions/%2e%2e", "/sessions/x/../../capacity"]
    targets += [f"/sessions/{scene.session_id}/", f"/sessions/{scene.session_id}/reset", "/ws/", "/WS", "//ws"]
    for target in targets:
        for method in ("GET", "POST", "DELETE"):
            answer = scene.ask(method, target)
            assert answer.status in (400, 401, 404, 405), (method, target, answer)
            assert "location" not in answer.headers
    scene.unharmed()


def test_a_query_says_nothing_to_a_handle(scene: Scene) -> None:
    headers, body = scene.spoken(MODERN, "tools/call", {"name": "add", "arguments": {}})
    theirs = scene.theirs["session_id"]
    for number, query in enumerate((f"session_id={theirs}", f"handle={scene.their_handle}", "resume=1&reset=1"), 1):
        answer = scene.ask("POST", f"{scene.path}?{query}", headers, json.dumps(body).encode())
        assert answer.text == str(number)
    scene.unharmed(steps=3)


@pytest.mark.parametrize("era", ERAS)
def test_a_handle_that_is_not_quite_one_is_none(scene: Scene, era: str) -> None:
    handle = scene.handle
    swapped = ("B" if handle[0] != "B" else "C") + handle[1:]
    wrong = [handle[:-1], handle + "A", handle + "=", handle.swapcase(), swapped, handle[::-1], "", "*", ".", "%00"]
    wrong += [f"{handle}%00", f"{handle}%20", f"{handle}.", f"{handle};x", f"{handle}%252f", "guessed", "A" * 32]
    wrong += ["a" * 30_000, "%ef%bb%bf" + handle, scene.session_id, scene.episode_id]
    headers, body = scene.spoken(era, "tools/call", {"name": "add", "arguments": {}})
    answers = set()
    for value in wrong:
        answer = scene.ask("POST", f"/episodes/{value}/mcp", headers, json.dumps(body).encode())
        assert answer.status == 404, value
        if value not in ("", "."):
            answers.add(answer.raw)
    assert len(answers) == 1
    # Its own, however it is written, is its own.
    for written in (f"/episodes/{handle}/%6dcp", f"/episodes/%{ord(handle[0]):02x}{handle[1:]}/mcp"):
        assert scene.ask("POST", written, headers, json.dumps(body).encode()).status == 200
    scene.unharmed(steps=2)


def test_of_an_absolute_target_only_the_path_counts(scene: Scene) -> None:
    headers, body = scene.spoken(MODERN, "tools/list")
    data = json.dumps(body).encode()
    for authority in ("evil.example", "127.0.0.1:1", "user@127.0.0.1"):
        assert scene.ask("POST", f"http://{authority}/reset", (), b"{}").status == scene.doors.closed
        assert scene.ask("POST", f"http://{authority}{scene.path}", headers, data, host="evil.example").status == 421
    assert scene.ask("POST", f"http://{scene.host}/reset", headers, data, host="evil.example").status in (404, 421)
    scene.unharmed()


@pytest.mark.parametrize("era", ERAS)
def test_guessed_ids_are_of_no_use(scene: Scene, era: str) -> None:
    guesses = ["0", "x" * 32, scene.session_id, scene.episode_id, scene.handle, scene.theirs["session_id"], "service"]
    guesses += [f"mcp:{scene.session_id}", "principal:ada", "*", "../x", "%00", "x" * 30_000]
    for number, guess in enumerate(guesses, 1):
        for path in (None, "/mcp") if era == HANDSHAKE else (None,):
            answer = scene.call(era, "add", path=path, mcp_session_id=guess)
            if era == HANDSHAKE:
                assert (answer.status, answer.error) == (404, INVALID_REQUEST)
            else:  # an era without sessions: the header is read by nobody
                assert answer.text == str(number)
    resume = {"Mcpenv-Session-Id": scene.theirs["session_id"], "Mcpenv-Session-Token": "x" * 20}
    assert scene.ask("GET", "/ws?resume=1", {**UPGRADE, **resume}).status == (403 if scene.doors.apart else 401)
    assert scene.rpc(era, "tools/list", {"session_id": scene.theirs["session_id"]}, **resume).status in (200, 400)
    scene.heard.clear()  # it was told what it said itself
    scene.unharmed(steps=0 if era == HANDSHAKE else len(guesses))


def test_a_handshake_session_is_of_use_only_where_it_was_opened(scene: Scene) -> None:
    """Even to who has come by its id: their messages could be read, their calls cancelled, their session ended."""
    theirs = scene.connection_at(scene.their_path)
    for path in (scene.path, "/mcp"):
        for method in ("GET", "POST", "DELETE"):
            body = scene.spoken(HANDSHAKE, "tools/call", {"name": "add", "arguments": {}})[1]
            data = json.dumps(body).encode() if method == "POST" else b""
            answer = scene.ask(method, path, {**ACCEPT, "Mcp-Session-Id": theirs}, data)
            assert (answer.status, answer.error) == (404, INVALID_REQUEST), (method, path)
    # Nor is the agent's own of use at the address of nobody in particular, or at theirs.
    mine = scene.connection_at(scene.path)
    for path in ("/mcp", scene.their_path):
        assert scene.call(HANDSHAKE, "add", path=path, mcp_session_id=mine).status == 404
    assert scene.rpc(HANDSHAKE, "ping", path=scene.their_path).message["result"] == {}
    scene.heard.clear()  # it was told what it said itself
    scene.unharmed()


@pytest.mark.parametrize("era", ERAS)
def test_the_address_of_a_past_episode_reaches_no_other(scene: Scene, era: str) -> None:
    assert scene.call(era, "add").text == "1"
    past = scene.path
    began = scene.orchestrator.post("/reset", json={"session_id": scene.session_id}).json()["info"]
    scene.episode_id, scene.mcp_url = began["episode_id"], began["mcp_url"]
    assert scene.path != past
    for tool in ("add", "submit", "reset"):
        answer = scene.call(era, tool, path=past)
        assert (answer.text, answer.message["result"]["isError"]) == (OVER, True)
    assert scene.rpc(era, "tools/list", path=past).message["result"]["tools"]
    assert scene.call(era, "add").text == "1"
    scene.unharmed(steps=1)


# -- requests that two readers would read differently


DOUBTFUL = {
    "two lengths": "Content-Length: {length}\r\nContent-Length: 0\r\n",
    "the same length twice": "Content-Length: {length}\r\nContent-Length: {length}\r\n",
    "a list of lengths": "Content-Length: {length}, {length}\r\n",
    "a length with a sign": "Content-Length: +{length}\r\n",
    "a negative length": "Content-Length: -1\r\n",
    "a length in hexadecimal": "Content-Length: 0x10\r\n",
    "a length without end": "Content-Length: 99999999999999999999999999\r\n",
    "length and chunks": "Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n",
    "chunks and length": "Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n",
    "an unknown coding": "Transfer-Encoding: xchunked\r\nContent-Length: {length}\r\n",
    "a blank before the colon": "Transfer-Encoding : chunked\r\nContent-Length: {length}\r\n",
    "two codings": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "no coding": "Transfer-Encoding: identity\r\n",
    "a folded line": "X-A: b\r\n Content-Length: 0\r\nContent-Length: {length}\r\n",
    "a bare line feed": "X-A: b\nContent-Length: {length}\r\n",
    "a bare carriage return": "X-A: b\rAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n",
    "a NUL": "X-A: b\0c\r\nContent-Length: {length}\r\n",
    "no such chunk size": "Transfer-Encoding: chunked\r\n",
}


@pytest.mark.parametrize("doubt", DOUBTFUL)
def test_a_request_whose_end_is_in_doubt_is_refused_with_all_that_follows(scene: Scene, doubt: str) -> None:
    headers, body = scene.spoken(MODERN, "tools/call", {"name": "add", "arguments": {}})
    data = json.dumps(body).encode()
    lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    lines += DOUBTFUL[doubt].format(length=len(data), token=TOKEN)
    smuggled = scene.request("DELETE", f"/sessions/{scene.session_id}")
    answer = scene.send(f"POST {scene.path} HTTP/1.1\r\nHost: {scene.host}\r\n{lines}\r\n".encode() + data + smuggled)
    assert answer.status == 400
    assert b"HTTP/1.1" not in answer.more
    scene.unharmed()


def test_a_request_behind_another_is_judged_by_itself(scene: Scene) -> None:
    headers, body = scene.spoken(MODERN, "tools/call", {"name": "add", "arguments": {}})
    first = scene.request("POST", None, {**headers, "Connection": "keep-alive"}, json.dumps(body).encode())
    for length in ({}, {"Content_Length": "0", "X-Content-Length": "0"}):
        given = {**headers, **length, "Connection": "keep-alive", "Content-Length": str(len(json.dumps(body)))}
        first = scene.request("POST", None, given, json.dumps(body).encode())
        answer = scene.send(first + scene.request("POST", "/reset", (), b"{}"))
        assert answer.status == 200
        assert parsed(answer.more).status == scene.doors.closed
    scene.unharmed(steps=2)


def test_trailers_are_no_headers(scene: Scene) -> None:
    """They come when the request was let through by its headers, or was not."""
    sends: list[tuple[str, dict[str, str], bytes, bytes]] = []
    spoken, body = scene.spoken(HANDSHAKE, "tools/call", {"name": "add", "arguments": {}})
    theirs = scene.connection_at(scene.their_path)
    sends.append(("/reset", ACCEPT, b"{}", f"Authorization: Bearer {TOKEN}".encode()))
    sends.append((scene.path, spoken, json.dumps(body).encode(), f"Mcp-Session-Id: {theirs}".encode()))
    sends.append((scene.path, spoken, json.dumps(body).encode(), b"Host: evil.example\r\nOrigin: https://evil.example"))
    statuses = []
    for path, headers, data, trailer in sends:
        head = scene.request("POST", path, {**headers, "Transfer-Encoding": "chunked"})
        chunk, end = b"%x\r\n%s\r\n" % (len(data), data), b"0\r\n%s\r\n\r\n" % trailer
        statuses.append(scene.send(head + chunk + end).status)
        statuses.append(scene.send([head + chunk, end]).status)
    assert statuses == [scene.doors.closed] * 2 + [200] * 4
    scene.unharmed(steps=4)


def test_headers_that_proxies_write_change_nothing(scene: Scene) -> None:
    forged = {
        "Forwarded": f"for=127.0.0.1;host={scene.doors.control.removeprefix('http://')};proto=https",
        "X-Forwarded-For": "127.0.0.1",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Prefix": "/evil",
        "X-Forwarded-User": "orchestrator",
        "X-Original-URL": "/reset",
        "X-Rewrite-URL": "/reset",
        "X-HTTP-Method-Override": "DELETE",
        "X-Method-Override": "DELETE",
        "X-Real-IP": "127.0.0.1",
    }
    for method, path in CONTROL_ROUTES:
        assert scene.ask(method, path.format(session_id=scene.session_id), forged).status == scene.doors.closed
    headers, body = scene.spoken(MODERN, "tools/call", {"name": "add", "arguments": {}})
    assert scene.ask("POST", None, {**headers, **forged}, json.dumps(body).encode()).text == "1"
    began = scene.orchestrator.post("/reset", json={"session_id": scene.session_id}, headers=forged).json()["info"]
    assert began["mcp_url"].startswith(f"{scene.doors.agent}/episodes/")
    scene.episode_id = began["episode_id"]
    scene.unharmed()


@pytest.mark.parametrize("name", ["Host", "Origin", "Mcp-Session-Id", "MCP-Protocol-Version"])
def test_a_header_that_decides_is_refused_when_it_comes_twice(scene: Scene, name: str) -> None:
    headers, body = scene.spoken(HANDSHAKE, "tools/call", {"name": "add", "arguments": {}})
    first = {**headers, "Host": scene.host, "Origin": f"http://{scene.host}", "MCP-Protocol-Version": "2025-11-25"}[
        name
    ]
    second = {"Host": "evil.example", "Origin": "https://evil.example", "Mcp-Session-Id": "x"}.get(name, MODERN)
    headers.pop(name, None)
    twice = [(name, first), (name, second)]
    for both in (twice, twice[::-1]):
        given = both if name != "Host" else [(name, second)]  # the first one is always sent
        assert scene.ask("POST", None, [*headers.items(), *given], json.dumps(body).encode()).status == 400
    scene.unharmed()


# -- web pages


FOREIGN_HOSTS = ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "127.1"]
FOREIGN_HOSTS += ["evil.example@127.0.0.1", "127.0.0.1/evil", "127.0.0.1#evil", "127.0.0.1:80.evil.example", "0.0.0.0"]
FOREIGN_HOSTS += [
    "localhost.evil.example",
    "2130706433",
    "0x7f.1",
    "[::ffff:127.0.0.1]",
    "127.0.0.1, evil",
    "[127.0.0.1",
]


def test_a_foreign_host_is_refused_everywhere(scene: Scene) -> None:
    """DNS rebinding: a page's own name leads to this machine, and the browser sends that name."""
    headers, body = scene.spoken(MODERN, "tools/call", {"name": "add", "arguments": {}})
    data = json.dumps(body).encode()
    paths = [scene.path, "/mcp"] + ([] if scene.doors.apart else ["/reset", "/step"])
    for host in FOREIGN_HOSTS:
        for path in paths:
            assert scene.ask("POST", path, {**headers, **CONTROL}, data, host=host).status == 421, (host, path)
    assert (
        exchange(scene.doors.agent, f"POST {scene.path} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode()).status == 421
    )
    for path in ("/metadata", "/schema", "/sessions", "/capacity"):
        assert exchange(scene.doors.control, scene.request("GET", path, CONTROL, host="evil.example")).status == 421
    scene.unharmed()


FOREIGN_ORIGINS = ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://localhost@evil.example"]
FOREIGN_ORIGINS += ["http://evil.example#localhost", "http://evil.example@127.0.0.1", "file://", "", "http://"]
FOREIGN_ORIGINS += ["http://127.0.0.1:80.evil.example", "chrome-extension://abc", "http://127.0.0.1/x", "//127.0.0.1"]


def test_a_foreign_origin_is_refused_everywhere(scene: Scene) -> None:
    headers, body = scene.spoken(MODERN, "tools/call", {"name": "add", "arguments": {}})
    data = json.dumps(body).encode()
    for origin in FOREIGN_ORIGINS:
        for path in [scene.path, "/mcp"] + ([] if scene.doors.apart else ["/reset"]):
            answer = scene.ask("POST", path, {**headers, **CONTROL, "Origin": origin}, data)
            assert answer.status == 403, (origin, path)
        preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        answer = scene.ask("OPTIONS", None, preflight)
        assert answer.status == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]
    scene.unharmed()


def test_a_web_page_cannot_open_a_socket_even_with_the_token(scene: Scene) -> None:
    address = scene.doors.control.replace("http", "ws") + "/ws"
    token = "mcpenv.token." + base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")
    for origin in FOREIGN_ORIGINS:
        given = {**UPGRADE, "Origin": origin, "Sec-WebSocket-Protocol": f"mcpenv, {token}"}
        assert scene.ask("GET", "/ws", given).status == 403
        assert exchange(scene.doors.control, scene.request("GET", "/ws", given)).status == 403
    rebound = scene.request("GET", "/ws", {**UPGRADE, **CONTROL}, host="evil.example")
    assert exchange(scene.doors.control, rebound).status == 403
    with (
        pytest.raises(InvalidStatus, match="403"),
        connect(address, origin=Origin("https://evil.example"), additional_headers=CONTROL),
    ):
        pass
    scene.unharmed()


# -- too much


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("era", ERAS)
def test_a_body_above_the_limit_is_refused(scene: Scene, era: str, chunked: bool) -> None:
    headers, body = scene.spoken(era, "tools/call", {"name": "echo", "arguments": {"value": "x" * LIMIT}})
    data = json.dumps(body).encode()
    if chunked:
        pieces = [data[start : start + 65536] for start in range(0, len(data), 65536)]
        head = scene.request("POST", None, {**headers, "Transfer-Encoding": "chunked"})
        sent = [head, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]
    else:
        sent = [scene.request("POST", None, headers, data)]
    assert scene.send(sent).status == 413
    scene.unharmed()


def test_a_frame_above_the_limit_needs_a_socket_first(scene: Scene) -> None:
    """An agent gets none; what becomes of an orchestrator's is in tests/server/test_frames_fuzz.py."""
    frame = b"\x81\xff" + (LIMIT * 8).to_bytes(8) + b"\0\0\0\0" + b"x" * LIMIT
    answer = scene.send([scene.request("GET", "/ws", UPGRADE), frame])
    assert answer.status == (403 if scene.doors.apart else 401)
    scene.unharmed()


HEADS = {
    "many fields": [b"X-%d: %s\r\n" % (number, b"y" * 100) for number in range(100_000)],
    "a field without end": [b"X-A: ", *([b"y" * 65536] * 200)],
    "a name without end": [b"y" * 65536] * 200,
    "just above the limit": [b"X-A: %s\r\n" % (b"y" * MAX_HEAD_BYTES), b"\r\n"],
    "short fields, above the limit with their separators": [b"X: y\r\n" * (MAX_HEAD_BYTES // 6), b"\r\n"],
}


@pytest.mark.parametrize("form", HEADS)
def test_a_head_above_the_limit_is_refused(scene: Scene, form: str, caplog: pytest.LogCaptureFixture) -> None:
    start = f"GET {scene.path} HTTP/1.1\r\nHost: {scene.host}\r\n".encode()
    assert scene.send([start, *HEADS[form]]).status == 431
    scene.unharmed()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_a_target_a_chunk_size_or_a_trailer_without_end_is_refused(scene: Scene) -> None:
    endless = [b"y" * 65536] * 200
    assert scene.send([b"GET /", *endless]).status in (400, 431)
    headers, body = scene.spoken(MODERN, "tools/list")
    head = scene.request("POST", None, {**headers, "Transfer-Encoding": "chunked"})
    data = json.dumps(body).encode()
    assert scene.send([head, b"1;", *endless]).status in (400, 431)
    # Its request was answered before; what comes after it ends the connection.
    answer = scene.send([head, b"%x\r\n%s\r\n0\r\nX-A: " % (len(data), data), *endless])
    assert answer.status in (200, 400, 431)
    scene.unharmed()


def test_a_handshake_of_a_socket_that_cannot_be_read_is_refused(scene: Scene) -> None:
    """Below the limit of heads, and beyond those of the library that reads handshakes."""
    many = [*UPGRADE.items(), *((f"X-{number}", "y") for number in range(200))]
    statuses = {
        scene.ask("GET", f"/ws?{'a=1&' * 5_000}", UPGRADE).status,
        scene.ask("GET", "/ws", {**UPGRADE, "Authorization": f"Bearer {'x' * 20_000}"}).status,
        scene.ask("GET", scene.path, many).status,
    }
    assert statuses == {414, 431}
    scene.unharmed()


NO_JSON = {
    "not closed": "[" * 100_000,
    "very deep": "[" * 100_000 + "]" * 100_000,
    "a number of 5,000 digits": "1" * 5_000,
    "not UTF-8": '"\xff"',
    "UTF-16": '"x"'.encode("utf-16").decode("latin-1"),
    "nothing": "",
}


@pytest.mark.parametrize("form", NO_JSON)
@pytest.mark.parametrize("era", ERAS)
def test_what_cannot_be_parsed_is_a_parse_error(scene: Scene, era: str, form: str) -> None:
    headers, body = scene.spoken(era, "tools/call", {"name": "echo", "arguments": {"value": "@"}})
    data = json.dumps(body).replace('"@"', NO_JSON[form]).encode("latin-1")
    answer = scene.ask("POST", None, headers, data)
    assert (answer.status, answer.error) == (400, PARSE_ERROR)
    answer = scene.ask("POST", None, headers, NO_JSON[form].encode("latin-1"))
    assert answer.status == 400
    scene.unharmed()


UNRECORDABLE = {
    "NaN": "NaN",
    "infinity": "-Infinity",
    "a number beyond floats": "1e400",
    "a lone surrogate": '"\\ud800"',
    "a lone surrogate as a key": '{"\\udfff": 1}',
    "deeper than its record could be read": "[" * 190 + "]" * 190,
}


@pytest.mark.parametrize("form", UNRECORDABLE)
@pytest.mark.parametrize("era", ERAS)
def test_an_agent_cannot_spoil_the_record_of_its_episode(scene: Scene, era: str, form: str) -> None:
    """The reader of the 2026-07-28 era takes some of these; written into the record, nobody could read that again."""
    headers, body = scene.spoken(era, "tools/call", {"name": "echo", "arguments": {"value": "@"}})
    address = scene.doors.control.replace("http", "ws") + "/ws"
    with connect(address, additional_headers=CONTROL) as socket:
        socket.send('{"type":"reset"}')
        mcp_url = json.loads(socket.recv(PATIENCE_S))["data"]["info"]["mcp_url"]
        path = "/episodes/" + mcp_url.split("/episodes/")[1]
        if era == HANDSHAKE:
            headers["Mcp-Session-Id"] = scene.connection_at(path)
        answer = scene.ask("POST", path, headers, json.dumps(body).replace('"@"', UNRECORDABLE[form]).encode())
        refused = answer.error in (INVALID_PARAMS, PARSE_ERROR) if "error" in answer.message else False
        assert refused or answer.message["result"]["isError"]
        # The deepest that is taken comes back, and everybody can read it.
        deepest = json.dumps(body).replace('"@"', "[" * 177 + "]" * 177).encode()
        assert scene.ask("POST", path, headers, deepest).message["result"]["isError"] is False
        socket.send('{"type":"trajectory"}')
        reply = json.loads(socket.recv(PATIENCE_S))
        assert reply["type"] == "trajectory", reply
        assert len(reply["data"]["steps"]) in (1, 2)
        socket.send('{"type":"wait","data":{"timeout_s":0.01}}')
        assert json.loads(socket.recv(PATIENCE_S))["type"] == "observation"
    until(
        lambda: len(scene.orchestrator.get("/sessions").json()["sessions"]) == 2, "the session of the socket is closed"
    )
    scene.unharmed()


def test_an_agents_connections_build_nothing(scene: Scene) -> None:
    for _ in range(50):
        scene._connections.clear()
        scene.connection_at(scene.path)
        scene.connection_at("/mcp")
        assert scene.rpc(HANDSHAKE, "tools/list", path="/mcp").status == 200
    scene.unharmed()


# -- after the end, and again


@pytest.mark.parametrize("era", ERAS)
def test_after_the_end_nothing_more_counts(scene: Scene, era: str) -> None:
    assert scene.call(era, "submit").text == "handed in"
    for tool in ("add", "submit", "fail", "reset", "no such tool"):
        answer = scene.call(era, tool)
        assert (answer.text, answer.message["result"]["isError"]) == (OVER, True)
    assert len(scene.rpc(era, "tools/list").message["result"]["tools"]) == 6
    body = {"session_id": scene.session_id, "action": {"type": "call_tool", "tool_name": "add", "arguments": {}}}
    assert scene.orchestrator.post("/step", json=body).json()["code"] == "EPISODE_DONE"
    scene.unharmed(steps=1)


@pytest.mark.parametrize("era", ERAS)
def test_the_address_of_a_closed_session_says_that_it_is_over_and_later_nothing(
    era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for grace_s in (PATIENCE_S, 0.01):
        monkeypatch.setattr(handles, "GRACE_S", grace_s)
        with serving(Vault, ServerConfig(control_token=TOKEN)) as url, scene_at(Doors(url, url)) as scene:
            assert scene.call(era, "add").text == "1"
            scene.orchestrator.delete(f"/sessions/{scene.session_id}")
            if grace_s == PATIENCE_S:
                assert scene.call(era, "add").text == OVER
                assert len(scene.rpc(era, "tools/list").message["result"]["tools"]) == 6
            else:
                until(lambda: scene.call(era, "add").status == 404, "the address is forgotten")
            scene.told_nothing()


@pytest.mark.parametrize("era", ERAS)
def test_a_request_that_is_sent_again_is_another_step_of_the_same_episode(scene: Scene, era: str) -> None:
    """The same bytes, the same JSON-RPC id, the same keys: an agent's calls are not remembered, and reach no answer."""
    scene.step("add", {"by": 100}, **{"Idempotency-Key": "k"})
    headers, body = scene.spoken(era, "tools/call", {"name": "add", "arguments": {}, "request_id": "k"})
    given = {**headers, "Idempotency-Key": "k", "Request-Id": "k", "Last-Event-ID": "k"}
    for count in (101, 102, 103):
        assert scene.ask("POST", None, given, json.dumps(body).encode()).text == str(count)
    # The orchestrator's own is still its own.
    assert scene.step("add", {"by": 100}, **{"Idempotency-Key": "k"}) == 100
    began = scene.orchestrator.post("/reset", json={"session_id": scene.session_id}).json()["info"]
    assert scene.ask("POST", None, given, json.dumps(body).encode()).text == OVER
    scene.episode_id = began["episode_id"]
    scene.unharmed()


def test_nobody_gets_the_rest_of_the_stream_of_another(scene: Scene) -> None:
    """Handshake clients name the last event that they had, and may know that of another."""
    third = scene.orchestrator.post("/reset").json()
    path = urlsplit(third["info"]["mcp_url"]).path
    headers, body = scene.spoken(HANDSHAKE, "tools/call", {"name": "hold", "arguments": {}}, path=path)
    headers["MCP-Protocol-Version"] = "2025-11-25"  # of which clients can come back
    events, released = [], False
    with httpx.stream("POST", scene.doors.agent + path, headers=headers, json=body, timeout=PATIENCE_S) as response:
        for line in response.iter_lines():  # an answer that takes long has a stream that is kept
            if line.startswith("id: "):
                events.append(line.removeprefix("id: "))
                if not released:
                    scene.step("release", session_id=third["session_id"])
                    released = True
    assert len(events) == 2
    own = {"Accept": "text/event-stream", "Mcp-Session-Id": scene.connection_at(scene.path)}
    for event in (*events, *(event[:-1] for event in events), "-1", "0", "1" * 40, "x"):
        answer = scene.ask("GET", None, {**own, "Last-Event-ID": event})
        assert b"data:" not in answer.body, event
    scene.orchestrator.delete(f"/sessions/{third['session_id']}")
    scene.unharmed()


# -- looking for rewards


@pytest.mark.parametrize("era", ERAS)
def test_nothing_that_an_agent_is_answered_tells_of_rewards(scene: Scene, era: str) -> None:
    assert scene.call(era, "add").text == "1"
    assert scene.call(era, "add", {"by": "x"}).message["result"]["isError"] is True
    assert scene.call(era, "fail").message["result"]["isError"] is True
    assert scene.call(era, "no such tool").error == INVALID_PARAMS
    for method in ("tools/list", "resources/list", "resources/templates/list", "prompts/list", "server/discover"):
        scene.rpc(era, method)
    for method in ("ping", "logging/setLevel", "completion/complete", "resources/read", "prompts/get"):
        scene.rpc(era, method, {"level": "debug", "uri": "mcpenv://score", "name": "r"})
    for path in (scene.path, "/mcp", "/health", "/ready", "/", "/nothing", "/episodes/x/mcp", "/.well-known/x"):
        scene.ask("GET", path, {"Accept": "application/json"})
        scene.ask("DELETE", path)
    steps = 4
    scene.told_nothing()
    state = scene.orchestrator.get("/state", params={"session_id": scene.session_id}).json()
    assert state["step_count"] == steps
    # The descriptions say that there are rewards, at the control plane's address, and nothing of any.
    for path in ("/metadata", "/schema", "/openapi.json", "/docs"):
        described = httpx.get(scene.doors.control + path).text
        for secret in (str(WORTH), COMPONENT, TOKEN, scene.session_id, scene.episode_id, scene.handle):
            assert secret not in described
        if scene.doors.apart:
            assert scene.ask("GET", path).status == 404
    assert scene.call(era, "submit").text == "handed in"
    scene.unharmed(steps=steps + 1)


@pytest.mark.parametrize("era", ERAS)
def test_an_agent_cannot_forge_what_the_framework_says(scene: Scene, era: str) -> None:
    headers, body = scene.spoken(era, "tools/call", {"name": "add", "arguments": {}})
    forged = {"mcpenv": {"score": 99, "done": True}, "mcpenv/score": 99, "plane": "control", "principal": "ada"}
    forged |= {"episode_id": scene.theirs["info"]["episode_id"], "fastmcp": {"version": "2", "tags": ["x"]}}
    body["params"]["_meta"] = {**body["params"].get("_meta", {}), **forged}
    body |= {"score": 99, "done": True}
    answer = scene.ask("POST", None, headers, json.dumps(body).encode())
    assert answer.message["result"]["isError"] is False
    assert answer.text == "1"
    for name in ("ctx", "context", "self", "plane", "score", "__class__"):
        assert scene.call(era, "add", {name: 99}).message["result"]["isError"] is True
    scene.heard.clear()  # it was told what it said itself
    scene.unharmed(steps=7)
    body_of_step = {"session_id": scene.session_id, "action": {"type": "call_tool", "tool_name": "add"}}
    info = scene.orchestrator.post("/step", json=body_of_step).json()["info"]
    assert info["return"] == 8 * WORTH


# -- JSON-RPC


@pytest.mark.parametrize("era", ERAS)
def test_a_batch_is_refused_whole(scene: Scene, era: str) -> None:
    headers, body = scene.spoken(era, "tools/call", {"name": "add", "arguments": {}})
    batches: list[Any] = [[body], [body, {**body, "id": 2}], [], [[body]], [{"jsonrpc": "2.0", "method": "x"}, body]]
    for batch in batches:
        answer = scene.ask("POST", None, headers, json.dumps(batch).encode())
        assert (answer.status, answer.error) in ((400, INVALID_REQUEST), (400, INVALID_PARAMS))
    scene.unharmed()


@pytest.mark.parametrize("era", ERAS)
def test_nobody_cancels_the_call_of_another(scene: Scene, era: str) -> None:
    """Neither another agent's, nor its orchestrator's, nor one over another connection to the same address."""
    other = scene.theirs["session_id"]
    with ThreadPoolExecutor(2) as threads:
        spoken, call = scene.spoken(era, "tools/call", {"name": "hold", "arguments": {}}, path=scene.their_path)
        request = scene.request("POST", scene.their_path, spoken, json.dumps({**call, "id": "held"}).encode())
        theirs = threads.submit(exchange, scene.doors.agent, request)
        mine = threads.submit(scene.step, "hold", None, **{"Idempotency-Key": "held"})
        scene.until_busy(other)
        scene.until_busy(scene.session_id)
        for speaks in ERAS:
            for request_id in ("held", 1, 0, other, None):
                params = {"requestId": request_id, "reason": "mine"}
                headers, body = scene.spoken(speaks, "notifications/cancelled", params)
                del body["id"]
                assert scene.ask("POST", None, headers, json.dumps(body).encode()).status in (202, 400)
                headers["Mcp-Session-Id"] = scene.connection_at(scene.their_path)
                if speaks == HANDSHAKE:
                    assert scene.ask("POST", None, headers, json.dumps(body).encode()).status == 404
        # Whoever cancels is served before the next request: both are still at it.
        assert scene.call(era, "release").text == "done"
        assert mine.result(PATIENCE_S) == "released"
        assert not theirs.done()
        assert scene.busy(other)
        assert scene.step("release", session_id=other) == "done"
        assert theirs.result(PATIENCE_S).text == "released"
    scene.told_nothing()
    steps = scene.orchestrator.get("/state", params={"session_id": scene.session_id}).json()["step_count"]
    assert steps == 2


def test_answers_that_nobody_asked_for_are_passed_over(scene: Scene) -> None:
    for message in ({"result": {"action": "accept", "content": {}}}, {"error": {"code": 1, "message": "x"}}):
        for number in (0, 1, "held", None):
            body = json.dumps({"jsonrpc": "2.0", "id": number, **message}).encode()
            given = {**ACCEPT, "Mcp-Session-Id": scene.connection_at(scene.path)}
            assert scene.ask("POST", None, given, body).status in (202, 400)
            assert scene.ask("POST", None, {**given, "MCP-Protocol-Version": MODERN}, body).status in (202, 400)
    scene.unharmed()


# -- what a refusal tells


def test_without_the_token_a_session_that_exists_is_refused_like_one_that_does_not(scene: Scene) -> None:
    for given in ({}, {"Authorization": "Bearer wrong"}):
        for form in ("/state?session_id={}", "/sessions/{}"):
            answers = {scene.ask("GET", form.format(name), given).raw for name in (scene.session_id, "x" * 32, "")}
            assert len(answers) == 1, form
        bodies = [json.dumps({"session_id": name}).encode() for name in (scene.session_id, "x" * 32)]
        for path in ("/step", "/reset"):
            assert len({scene.ask("POST", path, given, body).raw for body in bodies}) == 1
        resume = [
            {"Mcpenv-Session-Id": name, "Mcpenv-Session-Token": "x" * 20} for name in (scene.session_id, "x" * 32)
        ]
        assert len({scene.ask("GET", "/ws?resume=1", {**UPGRADE, **given, **each}).raw for each in resume}) == 1
    scene.unharmed()


@pytest.mark.parametrize("era", ERAS)
def test_without_an_agents_token_an_episode_that_exists_is_refused_like_one_that_does_not(era: str) -> None:
    tokens = AgentTokens({"ada": "ada-secret-token", "bob": "bob-secret-token"})
    with serving(Vault, ServerConfig(control_token=TOKEN), auth=tokens) as url, scene_at(Doors(url, url)) as scene:
        headers, body = scene.spoken(MODERN, "tools/call", {"name": "add", "arguments": {}})
        if era == HANDSHAKE:
            headers = {**ACCEPT, "Mcp-Session-Id": "x"}
        data = json.dumps(body).encode()
        for method in ("POST", "GET", "DELETE"):
            for given in ({}, {"Authorization": "Bearer wrong-secret-token"}, {"Authorization": "Basic eDp4"}):
                answers = [
                    scene.ask(method, path, {**headers, **given}, data if method == "POST" else b"")
                    for path in (scene.path, "/episodes/guessed/mcp")
                ]
                assert [answer.status for answer in answers] == [401, 401]
                assert answers[0].raw == answers[1].raw
        bob = {**headers, "Authorization": "Bearer bob-secret-token"}
        assert scene.ask("POST", "/episodes/guessed/mcp", bob, data).status == 404
        scene.unharmed()


def test_another_agents_handshake_session_is_none_for_who_has_another_token() -> None:
    tokens = AgentTokens({"ada": "ada-secret-token", "bob": "bob-secret-token"})
    with serving(Vault, ServerConfig(control_token=TOKEN), auth=tokens) as url, scene_at(Doors(url, url)) as scene:
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}
        ada, bob = ({**ACCEPT, "Authorization": f"Bearer {name}-secret-token"} for name in ("ada", "bob"))
        opened = scene.ask("POST", None, ada, json.dumps(body).encode()).headers["mcp-session-id"]
        call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}}).encode()
        assert scene.ask("POST", None, {**bob, "Mcp-Session-Id": opened}, call).status == 404
        assert scene.ask("DELETE", None, {**bob, "Mcp-Session-Id": opened}).status == 404
        assert scene.ask("POST", None, {**ada, "Mcp-Session-Id": opened}, call).text == "1"
        scene.unharmed(steps=1)


# -- other servers


OPERATORS = ("/sessions", "/capacity")
"""The routes that an operator has in production too, with the control token."""


def test_in_production_there_is_no_control_plane_to_be_found() -> None:
    for token in (None, TOKEN):
        with serving(Vault, ServerConfig(control_token=token), mode="production") as url:
            for method, path in CONTROL_ROUTES:
                operated = token is not None and path.startswith(OPERATORS)
                for given in ({}, CONTROL):
                    asked = httpx.request(method, url + path.format(session_id="x"), headers=given)
                    if not operated:
                        expected = {404}
                    elif method == "POST":
                        expected = {405}
                    else:
                        expected = {200, 404} if given else {401}
                    assert asked.status_code in expected, (method, path)
            assert httpx.post(f"{url}/episodes/x/mcp", json={}).status_code == 404
            with pytest.raises(InvalidStatus, match="403" if token is None else "401"):
                connect(url.replace("http", "ws") + "/ws")


@pytest.mark.parametrize("era", ERAS)
def test_where_a_handle_is_required_no_other_address_serves_an_agent(era: str) -> None:
    config = ServerConfig(control_token=TOKEN, require_handle=True)
    with serving(Vault, config) as url, scene_at(Doors(url, url)) as scene:
        for method, params in (("tools/list", {}), ("tools/call", {"name": "add", "arguments": {}})):
            said = scene.rpc(era, method, params, path="/mcp").message
            assert "mcp_url" in json.dumps(said)
            assert said.get("result", {}).get("isError", True)
        assert scene.call(era, "add").text == "1"
        scene.unharmed(steps=1)


def test_who_sends_slowly_holds_up_nobody(scene: Scene) -> None:
    """Heads and bodies that never end; each has a connection, and nothing else of the server."""
    starts = [b"POST", f"POST {scene.path} HTTP/1.1\r\nHost: {scene.host}\r\nX-A".encode()]
    starts.append(scene.request("POST", None, {**ACCEPT, "Content-Length": "1000"})[:-1])
    starts.append(scene.request("POST", None, {**ACCEPT, "Content-Length": "1000"}) + b"{")
    with connection(scene.doors.agent) as one, connection(scene.doors.agent) as two:
        for wire, start in zip((one, two, one, two), starts, strict=True):
            wire.sendall(start)
            assert scene.call(MODERN, "add").status == 200
    scene.unharmed(steps=4)
