"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

CARD = Command(
    help="Write the card of an environment: tasks, soundness, difficulty, cost.",
    run="mcpenv.extensions.card.command:card",
    order=5,
    takes_target=True,
)
