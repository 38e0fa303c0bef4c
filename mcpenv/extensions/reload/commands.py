"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

DEV = Command(
    help="Serve an environment while you write it.", run="mcpenv.extensions.reload.dev:dev", order=1, takes_target=True
)
