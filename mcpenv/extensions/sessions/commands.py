"""The command of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

SESSIONS = Command(help="Show a server's sessions.", run="mcpenv.extensions.sessions.command:sessions", order=7)
