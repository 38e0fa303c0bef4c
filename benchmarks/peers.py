"""The peers, each in a virtual environment of its own, created once and kept.

They cannot be installed together, and must not change mcpenv's dependencies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from pathlib import Path

CACHE_VARIABLE = "MCPENV_BENCHMARKS_CACHE"
"""Names the folder of the virtual environments; default ``~/.cache/mcpenv-benchmarks``."""

UV = shutil.which("uv")
"""Installs the peers where there is one: it takes a tenth of pip's time."""

FASTER = ("uvloop", "httptools")
"""What mcpenv's server runs on and the peers leave to whoever serves them. They are measured with it."""

PEERS = {
    "openenv-0.10.0": ("openenv==0.10.0", *FASTER),
    "verifiers-0.4.0": ("verifiers==0.4.0", *FASTER),
}
"""What is installed for each; the name is the folder's."""


def cache() -> Path:
    """Return the folder of the virtual environments."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "mcpenv-benchmarks"


def python_of(peer: str) -> Path:
    """Return the interpreter that has the peer, which is installed from PyPI if needed.

    Raises:
        subprocess.CalledProcessError: it cannot be installed.
    """
    folder = cache() / peer
    python, complete = folder / "bin" / "python", folder / "complete"
    wanted = "\n".join(PEERS[peer])
    if not complete.is_file() or complete.read_text() != wanted:
        print(f"installing {' '.join(PEERS[peer])} in {folder}", flush=True)
        venv.create(folder, with_pip=not UV, clear=True)
        installer: list[str | Path] = (
            [UV, "pip", "install", "--python", python] if UV else [python, "-m", "pip", "install"]
        )
        subprocess.run([*installer, "--quiet", *PEERS[peer]], check=True)
        complete.write_text(wanted)
    return python
