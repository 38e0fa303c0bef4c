"""Names of tools."""

from __future__ import annotations

from mcpenv.errors import InvalidTool

RESERVED_NAMES = frozenset({"reset", "step", "state", "close"})
"""Names of the orchestrator's operations, which tools must not have."""


MAX_NAME = 128
"""Maximum characters of a tool's name (MCP 2025-11-25, server/tools, "Tool Names")."""


def check_name(name: str) -> None:
    """Raise if a tool name is reserved or unusable.

    Raises:
        InvalidTool: with the reason.
    """
    if name in RESERVED_NAMES:
        raise InvalidTool(name, "the name is reserved for the orchestrator. Choose another name")
    if not name or name == "<lambda>":
        raise InvalidTool(name, "the function has no name. Set name=")
    if len(name) > MAX_NAME:
        raise InvalidTool(name[:MAX_NAME], f"the name has {len(name)} characters. Use at most {MAX_NAME}")
    if name != name.strip() or not name.isprintable():
        raise InvalidTool(name, "the name has blanks at an end, or characters that cannot be printed")
