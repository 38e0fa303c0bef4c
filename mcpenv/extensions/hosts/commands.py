"""The command of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

CONNECT = Command(
    help="Configure an MCP host for an environment.",
    run="mcpenv.extensions.hosts.command:connect",
    order=6,
    takes_target=True,
)
