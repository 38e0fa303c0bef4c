"""Resources, prompts and completions that an environment offers to agents (`MCPEnvironment.mcp_provider`)."""

from __future__ import annotations

from fastmcp.server.completions import CompletionReference, CompletionValues
from fastmcp.server.providers import Provider
from mcp_types import CompletionArgument, CompletionContext


class CompletingProvider(Provider):
    """A provider of FastMCP that also suggests values for arguments of its prompts and templates."""

    async def complete(
        self, ref: CompletionReference, argument: CompletionArgument, context: CompletionContext | None
    ) -> CompletionValues:
        """Return suggestions, or None if the reference is not one of this provider."""
        return None
