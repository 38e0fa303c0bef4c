"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

BRANCH = Command(
    help="Go on from a step of a recorded episode.",
    run="mcpenv.extensions.branching.command:branch",
    order=3,
    takes_target=True,
)
PIVOT = Command(
    help="Find the steps whose branches end differently most.",
    run="mcpenv.extensions.branching.pivot:pivot",
    order=6,
)
