"""Names of tools."""

from __future__ import annotations

from mcpenv.errors import InvalidTool

RESERVED_NAMES = frozenset({"reset", "step", "state", "close"})
"""Names of the orchestrator's operations, which tools must not have."""


def check_name(name: str) -> None:
    """Raise if a tool name is reserved or unusable.

    Raises:
        InvalidTool: with the reason.
    """
    if name in RESERVED_NAMES:
        raise InvalidTool(name, "the name is reserved for the orchestrator. Choose another name")
    if not name or name == "<lambda>":
        raise InvalidTool(name, "the function has no name. Set name=")
