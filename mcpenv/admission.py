"""Admission: which tools the agent of a request may see and call, by the author's ``auth=`` checks.

They are checks of an agent's token, so only the agent plane makes them: an orchestrator owns the environment. As with
FastMCP, a tool that is not admitted does not exist for that agent, and stdio, whose client started the server, admits
everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastmcp import Context, FastMCP
from fastmcp.exceptions import AuthorizationError
from fastmcp.server.auth import AuthCheck, AuthContext, run_auth_checks
from fastmcp.server.dependencies import get_access_token
from fastmcp.tools.base import Tool as Component

from mcpenv_client.tools import Tool

AuthChecks = AuthCheck | list[AuthCheck]
"""What FastMCP takes as ``auth=``: one check, or several that must all pass."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Tools, and which agents may see them.

    Attributes:
        checks: by name, those of the tools that not everybody may use.
    """

    tools: list[Tool] = field(default_factory=list)
    checks: Mapping[str, AuthChecks] = field(default_factory=dict)


async def admits(server: FastMCP, checks: AuthChecks, tool: Component) -> bool:
    """Whether the current request's agent may use the tool. A check that raises admits nobody.

    Args:
        server: what was asked.
        tool: what the checks read (``AuthContext.component``): name, tags, annotations.
    """
    if Context(server).transport == "stdio":
        return True
    try:
        return await run_auth_checks(checks, AuthContext(token=get_access_token(), component=tool))
    except AuthorizationError:
        return False
