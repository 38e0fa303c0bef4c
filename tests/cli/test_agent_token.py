"""``call`` and ``inspect`` as an agent with a token: where it goes, and that it is never told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvicorn
from agent_tokens import (
    ADAS_TOKEN,
    PRINTS_ITS_ENVIRONMENT,
    REFUSED,
    VARIABLE,
    WANTED,
    WITH_TOKEN,
    WRONG_TOKEN,
    World,
)
from command_line import Cli, Done, write
from fastmcp import FastMCP
from fastmcp.utilities.tests import run_server_in_process
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mcpenv.cli.remote import Bearer
from mcpenv.server.security.agent_auth import agent_auth_from
from mcpenv.server.serve import serving

COMMANDS = [("call", "add"), pytest.param(("inspect",), marks=pytest.mark.extension("inspection"))]


# -- call and inspect


def test_a_tool_is_called_with_the_token_however_it_is_given(cli: Cli, url: str, given: tuple[str, ...]) -> None:
    done = cli("call", url, "add", *given)
    assert (done.status, done.err) == (0, "")
    assert int(done.out) >= 1


@pytest.mark.extension("inspection")
def test_a_server_is_inspected_with_the_token_however_it_is_given(cli: Cli, url: str, given: tuple[str, ...]) -> None:
    done = cli("inspect", url, "--json", *given)
    assert (done.status, done.err) == (0, "")
    document = json.loads(done.out)
    assert (document["name"], [tool["name"] for tool in document["tools"]]) == ("World", ["add"])


def test_a_token_may_begin_with_a_dash(cli: Cli) -> None:
    with serving(World, auth=agent_auth_from(tokens={"ada": "-dashing-secret"})) as address:
        assert cli("call", address, "add", "--agent-token", "-dashing-secret") == Done(0, "1\n", "")


@pytest.mark.parametrize(
    "command",
    [
        *COMMANDS,
        ("call", "add", "--json"),
        pytest.param(("inspect", "--json"), marks=pytest.mark.extension("inspection")),
    ],
)
def test_a_server_that_answers_401_is_one_line_that_says_how_to_give_a_token(
    cli: Cli, url: str, command: tuple[str, ...]
) -> None:
    name, *rest = command
    for address in (url, f"{url}/mcp"):
        for given, said in (((), WANTED), (("--agent-token", WRONG_TOKEN), REFUSED)):
            done = cli(name, address, *rest, *given)
            assert (done.status, done.err) == (2, f"error: {address}: {said}")
            if "--json" in rest:
                assert json.loads(done.out)["error"]["message"] == f"{address}: {said.rstrip()}"
            else:
                assert done.out == ""


@pytest.mark.parametrize("token", [ADAS_TOKEN, WRONG_TOKEN])
def test_not_even_debug_tells_the_token(cli: Cli, url: str, token: str) -> None:
    done = cli("call", url, "add", "--debug", "--agent-token", token)
    assert "HTTP Request" in done.err
    assert ("Traceback" in done.err) is (token == WRONG_TOKEN)


def test_the_password_of_an_address_is_not_told_with_the_refusal(cli: Cli, url: str) -> None:
    done = cli("call", url.replace("http://", "http://user:a-password@"), "add")
    assert done == Done(2, "", f"error: {url}: {WANTED}")


# -- servers of others


class Gate:
    """Lets everybody do some things, and those with the token everything."""

    def __init__(self, app: ASGIApp, methods: tuple[str, ...]) -> None:
        self._app = app
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole request, and pass it on or answer 401."""
        if scope["type"] != "http" or (b"authorization", f"Bearer {ADAS_TOKEN}".encode()) in scope["headers"]:
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if not self._methods or (body and json.loads(body).get("method") in self._methods):
            await Response(status_code=401)(scope, receive, send)
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Any:
            return messages.pop() if messages else await receive()

        await self._app(scope, again, send)


def _serve_gated(host: str, port: int, methods: tuple[str, ...]) -> None:
    server: FastMCP = FastMCP("gated")
    server.tool(lambda: 1, name="add")
    uvicorn.run(Gate(server.http_app(path="/tools"), methods), host=host, port=port, log_level="error")


@pytest.mark.extension("inspection")
@pytest.mark.process
@pytest.mark.parametrize(
    ("methods", "inspected"),
    [((), 2), (("tools/list",), 2), (("tools/call",), 0)],
    ids=["everything", "listing", "calling"],
)
def test_any_mcp_server_may_want_a_token_for_any_request(cli: Cli, methods: tuple[str, ...], inspected: int) -> None:
    with run_server_in_process(_serve_gated, methods=methods) as address:
        endpoint = f"{address}/tools"
        assert cli("call", endpoint, "add") == Done(2, "", f"error: {endpoint}: {WANTED}")
        assert cli("inspect", endpoint).status == inspected
        assert cli("call", endpoint, "add", *WITH_TOKEN) == Done(0, "1\n", "")
        assert cli("inspect", endpoint, *WITH_TOKEN).status == 0


@contextmanager
def recording(status: int, location: str = "") -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that gives everybody the same answer, and the headers that it was sent."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *args: Any) -> None:
            """Nothing is logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [302, 307])
def test_a_token_goes_nowhere_else_by_a_redirection(cli: Cli, status: int) -> None:
    with recording(404) as (elsewhere, there), recording(status, f"{elsewhere}/mcp") as (address, here):
        assert cli("call", address, "add", *WITH_TOKEN).status == 2
    assert {headers["authorization"] for headers in here} == {f"Bearer {ADAS_TOKEN}"}
    assert there == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_on_this_machine_is_reached_without_the_proxy(
    cli: Cli, url: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording(502) as (proxy, seen):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert cli(command[0], url, *command[1:], *WITH_TOKEN).status == 0
    assert seen == []


# -- what is given


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--agent-token", "short"), "--agent-token needs 8 or more printable ASCII characters"),
        (("--agent-token", f"{ADAS_TOKEN} too"), "--agent-token needs 8"),
        ((*WITH_TOKEN, "--agent-token-file", "x"), "--agent-token and --agent-token-file: give only one of them"),
        (("--agent-token-file", "nowhere"), "--agent-token-file nowhere: No such file or directory"),
        (("--agent-token-file", "two"), "--agent-token-file two: the token needs 8"),
    ],
)
def test_a_token_that_cannot_be_used_is_one_line_and_status_2(
    cli: Cli, command: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    Path("two").write_text(f"{ADAS_TOKEN}\n{WRONG_TOKEN}\n", encoding="utf-8")
    done = cli(command[0], "http://127.0.0.1:1", *command[1:], *options)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {said}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_variable_that_cannot_be_used_is_one_line_and_status_2(
    cli: Cli, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    done = cli(command[0], "http://127.0.0.1:1", *command[1:])
    said = f"error: {VARIABLE} needs 8 or more printable ASCII characters without blanks\n"
    assert done == Done(2, "", said)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_environments_code_takes_no_token(cli: Cli, command: tuple[str, ...]) -> None:
    write(Path.cwd(), "world", PRINTS_ITS_ENVIRONMENT)
    said = "--agent-token and --agent-token-file are for a server at a URL; an environment's code requires none"
    for options in (WITH_TOKEN, ("--agent-token-file", "x")):
        assert cli(command[0], "world", *command[1:], *options) == Done(2, "", f"error: {said}\n")


def test_the_variable_is_gone_before_an_environments_code_is_loaded(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path.cwd(), "world", PRINTS_ITS_ENVIRONMENT)
    # For code it need not be a token.
    monkeypatch.setenv(VARIABLE, "short")
    done = cli("call", "world", "add")
    assert done.status == 0
    assert '"PATH"' in done.out
    assert VARIABLE not in done.out


def test_a_token_is_not_in_the_text_of_what_holds_it() -> None:
    assert ADAS_TOKEN not in repr(Bearer(ADAS_TOKEN))
