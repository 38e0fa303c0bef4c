from __future__ import annotations

import sys

import pytest
from programs import ERAS, PRODUCTION_TOOLS, SIMULATION_TOOLS, mcp_client, seen


@pytest.mark.parametrize(("mode", "protocol"), ERAS)
def test_the_mcp_packages_client_lists_and_calls_over_http(server: str, mode: str, protocol: str) -> None:
    assert mcp_client(mode, f"{server}/mcp") == seen(protocol)


@pytest.mark.parametrize(("mode", "protocol"), ERAS)
def test_the_mcp_packages_client_lists_and_calls_over_stdio(mode: str, protocol: str) -> None:
    command = [sys.executable, "-m", "mcpenv", "run", "envs/echo_mcp", "--transport", "stdio"]
    assert mcp_client(mode, "--", *command) == seen(protocol, SIMULATION_TOOLS)


@pytest.mark.parametrize(("mode", "protocol"), ERAS)
def test_a_production_server_shows_its_own_tools(production_server: str, mode: str, protocol: str) -> None:
    assert mcp_client(mode, f"{production_server}/mcp") == seen(protocol, PRODUCTION_TOOLS)
