"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from mcpenv.cli.commands import Command

IMPORT_OPENENV = Command(
    help="Convert an OpenEnv environment to mcpenv.",
    run="mcpenv.extensions.openenv.import_openenv:import_openenv",
    order=20,
)
