"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

VALIDATE = Command(
    help="Judge an environment: is it sound?",
    run="mcpenv.extensions.validation.validate:validate",
    order=5,
    takes_target=True,
)
