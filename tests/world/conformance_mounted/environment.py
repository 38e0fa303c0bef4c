"""The conformance environment as an author would have it who has a FastMCP server: all tools are that server's."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from fastmcp import Context, FastMCP
from mcp_types import ToolListChangedNotification

from mcpenv import MCPEnvironment

FOLDER = Path(__file__).resolve().parents[3] / "envs" / "conformance_mcp"
sys.path.insert(0, str(FOLDER))
server: FastMCP = importlib.import_module("conformance_server").server


def _fixtures() -> Any:
    """Return the class of the environment that has the fixtures as tools of its own."""
    spec = importlib.util.spec_from_file_location("conformance_fixtures", FOLDER / "environment.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.ConformanceEnvironment


class _Registering:
    """Stands in for the environment where its fixtures are registered, and registers them at the FastMCP server."""

    def __init__(self, server: FastMCP) -> None:
        self.tool = server.tool


def _add_tools(server: FastMCP) -> None:
    fixtures, registering = _fixtures(), _Registering(server)
    for each in ("contents", "messages", "questions", "input_required", "input_required_with_state", "changes"):
        getattr(fixtures, f"_add_{each}")(registering)

    def test_dynamic_tool() -> str:
        """Return a text. This tool is added and removed."""
        return "A tool that came later."

    server.local_provider.remove_tool("test_trigger_tool_change")

    @server.tool
    async def test_trigger_tool_change(ctx: Context) -> str:
        """Add a tool, or remove it again."""
        if any(tool.name == "test_dynamic_tool" for tool in await server.list_tools()):
            server.local_provider.remove_tool("test_dynamic_tool")
        else:
            server.tool(test_dynamic_tool)
        await ctx.send_notification(ToolListChangedNotification())
        return "Changed the tools."


_add_tools(server)


class MountedConformance(MCPEnvironment):
    """Show every feature of MCP, by a FastMCP server that is handed in."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    VERSION = "0.1.0"

    def __init__(self) -> None:
        super().__init__(server)
