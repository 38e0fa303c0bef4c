"""Decide which tools the agent of a request may see and call, by the author's ``auth=`` checks.

The checks apply to an agent's token. So only the agent plane runs them: the orchestrator owns the environment. As in
FastMCP, a tool does not exist for an agent that may not use it. stdio admits every tool, because its client started the
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastmcp import Context, FastMCP
from fastmcp.exceptions import AuthorizationError
from fastmcp.server.auth import AuthCheck, AuthContext, run_auth_checks
from fastmcp.server.dependencies import get_access_token
from fastmcp.tools.base import Tool as Component
from mcp_types import Icon

from mcpenv_client.types.tools import Tool

AuthChecks = AuthCheck | list[AuthCheck]
"""The type of FastMCP's ``auth=``: one check, or several that must all pass."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The listed tools, with the parts that only MCP clients see.

    Attributes:
        tools: the tools.
        checks: the checks of restricted tools by name. They decide which agents may see a tool.
        icons: the icons of tools that have some, by name.
    """

    tools: list[Tool] = field(default_factory=list)
    checks: Mapping[str, AuthChecks] = field(default_factory=dict)
    icons: Mapping[str, list[Icon]] = field(default_factory=dict)


async def admits(server: FastMCP, checks: AuthChecks, tool: Component) -> bool:
    """Return True if the current request's agent may use the tool. A check that raises admits no agent.

    Args:
        server: the server that received the request.
        checks: the checks of the tool.
        tool: the component that checks read (``AuthContext.component``): name, tags, annotations.
    """
    if Context(server).transport == "stdio":
        return True
    try:
        return await run_auth_checks(checks, AuthContext(token=get_access_token(), component=tool))
    except AuthorizationError:
        return False
