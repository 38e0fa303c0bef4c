"""The mode in which a command serves an environment."""

from __future__ import annotations

import os

from mcpenv.errors import ConfigurationError
from mcpenv.server.config import MODE_VARIABLE, mode_from
from mcpenv.targets.manifest import MANIFEST, Manifest
from mcpenv_client.types.tools import Mode


def mode_for(mode: str | None, manifest: Manifest | None) -> Mode:
    """Return the mode to serve in: the given one, else ``MCPENV_MODE``, else the first that a manifest allows.

    Simulation comes first.

    Raises:
        ConfigurationError: there is no such mode, or the manifest does not allow it.
    """
    if manifest is None:
        return mode_from(mode)
    chosen = mode_from(mode)
    if mode is None and not os.environ.get(MODE_VARIABLE) and chosen.value not in manifest.modes:
        return Mode(manifest.modes[0])
    if chosen.value not in manifest.modes:
        raise ConfigurationError(
            f"the mode is {chosen.value}, and the environment's {MANIFEST} allows {' and '.join(manifest.modes)}; "
            f"choose that, or add {chosen.value} to modes there"
        )
    return chosen
