"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

EVAL = Command(
    help="Evaluate an agent on the tasks, or compare two evaluations.",
    run="mcpenv.extensions.evaluation.command:evaluations",
    order=7,
    is_app=True,
)
