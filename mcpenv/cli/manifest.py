"""The command ``mcpenv manifest``: the format of ``mcpenv.yaml``."""

from __future__ import annotations

from mcpenv.targets.manifest import manifest_schema

from .output import print_json


def schema() -> int:
    """Print the JSON Schema of mcpenv.yaml, by which editors complete and check it.

    Save it in the manifest's folder as mcpenv.schema.json, and begin the manifest with
    "# yaml-language-server: $schema=mcpenv.schema.json".
    """
    print_json(manifest_schema())
    return 0
