"""The commands of this extension, for ``mcpenv --help``."""

from __future__ import annotations

from dataclasses import replace

from mcpenv.cli.commands import Command

IMPORT_OPENENV = Command(
    help="Convert an OpenEnv environment to mcpenv.",
    run="mcpenv.extensions.openenv.import_openenv:import_openenv",
    order=20,
)

OLD_IMPORT_OPENENV = replace(IMPORT_OPENENV, moved="share import-openenv")
