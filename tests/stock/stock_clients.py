"""The stock clients: their pinned versions, and the line by which each is told of a server.

``install.py`` installs from here, ``test_clients.py`` runs what is here, and ``docs/reference/mcp-clients.md`` shows
it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATELESS: Final = "2026-07-28"


@dataclass(frozen=True)
class StockClient:
    """One client, which a program in ``client_programs/`` uses as its own documentation shows.

    Attributes:
        name: As its users know it.
        program: The file in ``client_programs/``.
        line: How it is told of a server; a line of the program, or what the program runs as a command.
        pypi: ``name==version``, for a virtual environment of its own; the client first, then what its era depends on.
        npm: ``name@version``; if there is one, this is the client.
        modes: Its own words for the protocol's eras, or (None,) if it does not ask.
        bridge: It is itself a server on standard streams, which another client starts, and speaks HTTP behind them.
    """

    name: str
    program: str
    line: str
    pypi: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    modes: tuple[str | None, ...] = (None,)
    bridge: bool = False

    def command(self, url: str, token: str | None, mode: str | None) -> list[str]:
        """The line of a client that is a command, with what its capital words stand for; an empty URL is left out."""
        said = {"URL": url, "MODE": mode, "Authorization: Bearer TOKEN": f"Authorization: Bearer {token}"}
        line = self.line if token is not None else self.line.partition(" --header")[0]
        return [word for each in shlex.split(line) if (word := said.get(each, each))]

    @property
    def id(self) -> str:
        """A name without signs, that no other has."""
        return f"{Path(self.program).stem.removeprefix('use_')}-{re.split('==|@', (self.npm or self.pypi)[0])[-1]}"

    @property
    def version(self) -> str:
        """The version of the client, and of what it was run with."""
        (_, version), *others = (re.split("==|(?<=.)@", package) for package in (*self.npm, *self.pypi))
        return " with ".join(filter(None, [version, ", ".join(f"{name} {number}" for name, number in others)]))


MCP_2 = "mcp==2.3.0"
MCP_1 = "mcp==1.30.0"

CLIENTS = (
    StockClient(
        "Python SDK (`mcp`)",
        "use_mcp_2.py",
        "Client(streamable_http_client(url, http_client=httpx2.AsyncClient(headers=headers)), mode=mode)",
        pypi=(MCP_2,),
        modes=("legacy", "auto", STATELESS),
    ),
    StockClient("Python SDK (`mcp`)", "use_mcp_1.py", "streamablehttp_client(url, headers=headers)", pypi=(MCP_1,)),
    StockClient(
        "FastMCP (`fastmcp`)",
        "use_fastmcp.py",
        "Client(url, auth=token, **options)",
        pypi=("fastmcp==4.1.2", MCP_2),
        modes=("legacy", "auto", STATELESS),
    ),
    StockClient(
        "FastMCP (`fastmcp`)", "use_fastmcp.py", "Client(url, auth=token, **options)", pypi=("fastmcp==3.4.10", MCP_1)
    ),
    StockClient(
        "TypeScript SDK (`@modelcontextprotocol/sdk`)",
        "use_ts_sdk.cjs",
        "new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } })",
        npm=("@modelcontextprotocol/sdk@1.32.2",),
    ),
    StockClient(
        "TypeScript SDK (`@modelcontextprotocol/client`)",
        "use_ts_client.cjs",
        "new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } })",
        npm=("@modelcontextprotocol/client@2.4.0",),
        modes=("legacy", "auto", STATELESS),
    ),
    StockClient(
        "MCP Inspector, command line",
        "use_inspector.py",
        'npx @modelcontextprotocol/inspector --cli URL --protocol-era MODE --header "Authorization: Bearer TOKEN"',
        npm=("@modelcontextprotocol/inspector@2.12.0",),
        modes=("legacy", "auto", "modern"),
    ),
    StockClient(
        "OpenAI Agents SDK (`openai-agents`)",
        "use_openai_agents.py",
        'MCPServerStreamableHttp({"url": url, "headers": headers})',
        pypi=("openai-agents==0.24.0", MCP_2),
    ),
    StockClient(
        "Pydantic AI (`pydantic-ai-slim[mcp]`)",
        "use_pydantic_ai.py",
        "MCPToolset(url, headers=headers)",
        pypi=("pydantic-ai-slim[mcp]==2.68.0", "fastmcp-slim==4.2.0", MCP_2),
    ),
    StockClient(
        "langchain-mcp-adapters, `client.get_tools()`",
        "use_langchain.py",
        'MultiServerMCPClient({"env": {"transport": "http", "url": url, "headers": headers}})',
        pypi=("langchain-mcp-adapters==0.3.2", MCP_1),
    ),
    StockClient(
        "langchain-mcp-adapters, `client.session()`",
        "use_langchain_session.py",
        'MultiServerMCPClient({"env": {"transport": "http", "url": url, "headers": headers}})',
        pypi=("langchain-mcp-adapters==0.3.2", MCP_1),
    ),
    StockClient(
        "mcp-use",
        "use_mcp_use.py",
        'MCPClient({"mcpServers": {"env": {"url": url, "headers": headers}}})',
        pypi=("mcp-use==1.7.1", MCP_1),
    ),
    StockClient(
        "mcp-remote",
        "use_mcp_2.py",
        'npx -y mcp-remote URL --header "Authorization: Bearer TOKEN"',
        npm=("mcp-remote@0.15.1",),
        pypi=(MCP_2,),
        modes=("legacy", "auto", STATELESS),
        bridge=True,
    ),
)
