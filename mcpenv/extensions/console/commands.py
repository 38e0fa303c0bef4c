"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

CONSOLE = Command(
    help="Show recorded episodes in the browser.", run="mcpenv.extensions.console.command:console", order=8
)
