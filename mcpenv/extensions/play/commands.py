"""The command of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

PLAY = Command(help="Play an episode by hand.", run="mcpenv.extensions.play.command:play", order=3, takes_target=True)
