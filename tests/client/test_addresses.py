"""Addresses of servers."""

from __future__ import annotations

import pytest

from mcpenv_client import EnvClient


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/prefix/mcp", "/episodes/abc/mcp"])
def test_the_address_of_mcp_clients_is_no_base_url(path: str) -> None:
    with pytest.raises(ValueError, match=r"address of MCP clients\. Give the server's base URL, without '/\S*mcp'"):
        EnvClient("http://127.0.0.1:8000" + path)
