"""Test what the log and the error say of a credential that is refused, and how a client gets one."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import httpx
import pytest

from mcpenv import MCPEnvironment
from mcpenv.cli.tokens import ControlToken
from mcpenv.server.config import ServerConfig
from mcpenv.server.security import control_auth
from mcpenv.server.security.control_auth import AgentTokens
from mcpenv.server.serve import serving
from mcpenv_client import EnvClient, Unauthorized
from mcpenv_client.connection.handshake import headers_with_token
from mcpenv_client.types.tools import Mode

TOKEN = "the-control-token-of-this-test"


class Empty(MCPEnvironment):
    """Nothing."""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_auth, "_warned", {})
    monkeypatch.delenv("MCPENV_CONTROL_TOKEN", raising=False)
    monkeypatch.delenv("MCPENV_CONTROL_TOKEN_HOSTS", raising=False)


def test_a_refused_credential_is_one_warning_with_address_route_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {"Authorization": "Bearer a-wrong-token-of-somebody"}
    # The level holds until the server has ended, which is logged at "info".
    with caplog.at_level(logging.WARNING), serving(Empty, ServerConfig(control_token=TOKEN)) as url:
        for _ in range(3):
            with (
                pytest.raises(Unauthorized, match="the one that was sent is another"),
                EnvClient(url, headers=wrong).sync() as env,
            ):
                env.reset()
            assert httpx.get(f"{url}/sessions/a-secret-session-id", headers=wrong).status_code == 401
        with pytest.raises(Unauthorized, match="none was sent"), EnvClient(url).sync() as env:
            env.reset()
        assert httpx.get(f"{url}/sessions/a-secret-session-id").status_code == 401
    assert [record.getMessage() for record in caplog.records] == [
        "WebSocket '/ws' from 127.0.0.1 was refused: wrong control token",
        "WebSocket '/ws' from 127.0.0.1 was refused: no control token",
    ]


@pytest.mark.parametrize("where", ["token", "header", "variable"])
def test_a_token_that_was_read_with_its_newline_is_accepted(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "variable":
        monkeypatch.setenv("MCPENV_CONTROL_TOKEN", f"{TOKEN}\n")
    given = {
        "token": {"token": f"{TOKEN}\n"},
        "header": {"headers": {"Authorization": f"Bearer {TOKEN}\n"}},
        "variable": {},
    }
    with serving(Empty, ServerConfig(control_token=TOKEN)) as url, EnvClient(url, **given[where]).sync() as env:  # type: ignore[arg-type]
        env.reset()


def test_a_header_of_the_program_is_used_instead_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPENV_CONTROL_TOKEN", "another-token-of-another-server")
    own = {"authorization": f"Bearer {TOKEN}"}
    with serving(Empty, ServerConfig(control_token=TOKEN)) as url, EnvClient(url, headers=own).sync() as env:
        env.reset()


@pytest.mark.parametrize(
    ("hosts", "sent", "not_sent"),
    [
        (None, ["http://10.0.0.4:8000", "https://a.example"], []),
        ("", ["http://127.0.0.1:8000", "ws://[::1]:8000", "http://localhost"], ["http://10.0.0.4:8000"]),
        ("a.example, 10.0.0.4:8000", ["https://A.example", "ws://10.0.0.4:8000"], ["http://10.0.0.4:8001"]),
        ("*.shop,a.example:443", ["http://b.shop:1", "wss://a.example"], ["http://shop", "http://a.example"]),
        ("a.example", ["https://a.example:8443"], ["https://a.example.evil.example", "https://a.example@b.example"]),
    ],
)
def test_the_token_of_the_variable_goes_only_to_hosts_that_the_operator_names(
    hosts: str | None, sent: list[str], not_sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if hosts is not None:
        monkeypatch.setenv("MCPENV_CONTROL_TOKEN_HOSTS", hosts)
    for url in (*sent, *not_sent):
        monkeypatch.setenv("MCPENV_CONTROL_TOKEN", TOKEN)
        assert headers_with_token(url, {}, None) == ((("Authorization", f"Bearer {TOKEN}"),) if url in sent else ())
        assert headers_with_token(url, {}, TOKEN) != ()
        assert ControlToken(control_token=TOKEN).read(url) == TOKEN
        monkeypatch.setenv("MCPENV_CONTROL_TOKEN", TOKEN)
        assert ControlToken().read(url) == (TOKEN if url in sent else None)


def test_a_token_that_cannot_be_sent_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="Authorization") as found:
        EnvClient("http://127.0.0.1:9", token="secret-one\nsecret-two")
    assert "secret" not in str(found.value)
    with pytest.raises(ValueError, match="give one of them"):
        EnvClient("http://127.0.0.1:9", token=TOKEN, headers={"Authorization": "Bearer x"})


@pytest.mark.extension("sessions")
@pytest.mark.process
def test_an_agents_token_is_told_apart_from_a_wrong_one(caplog: pytest.LogCaptureFixture) -> None:
    agents = AgentTokens({"solver": "the-token-of-an-agent"})
    with (
        serving(Empty, ServerConfig(control_token=TOKEN), auth=agents) as url,
        caplog.at_level(logging.WARNING),
    ):
        with (
            pytest.raises(Unauthorized, match=r"needs the control token; the one that was sent is an agent's$"),
            EnvClient(url, token="the-token-of-an-agent").sync() as env,
        ):
            env.reset()
        for token, why in (
            ("the-token-of-an-agent", "refuses this one, which is an agent's ("),
            ("another-token-of-somebody", "refuses this one ("),
        ):
            command = [sys.executable, "-m", "mcpenv", "sessions", url]
            variables = {**os.environ, "MCPENV_CONTROL_TOKEN": token}
            listed = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
            assert why in listed.stderr
    assert "WebSocket '/ws' from 127.0.0.1 was refused: an agent's token, not the control token" in caplog.messages


@pytest.mark.extension("openenv")  # it takes the requests that are no MCP
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_form_at_mcp_is_told_what_mcp_takes(kind: str) -> None:
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for config in (ServerConfig(control_token=TOKEN), ServerConfig(mode=Mode.PRODUCTION)):
        with serving(Empty, config) as url:
            refused = httpx.post(f"{url}/mcp", content=json.dumps(listing), headers={"Content-Type": kind})
            assert refused.status_code == (415 if config.control_token else 400)
            assert "ontent-Type" in refused.text
            assert "token" not in refused.text


@pytest.mark.parametrize("mode", list(Mode))
def test_the_root_says_what_the_server_is_and_where_to_go(mode: Mode) -> None:
    with serving(Empty, ServerConfig(mode=mode, control_token=TOKEN)) as url:
        said = httpx.get(url).json()
        said.pop("routes", None)  # an extension's
        assert said == {
            "server": "mcpenv",
            "mode": mode.value,
            "health": "/health",
            "mcp": "/mcp",
            "description": "/metadata",
        }
        assert {httpx.get(url + said[name]).status_code for name in ("health", "description")} == {200}
