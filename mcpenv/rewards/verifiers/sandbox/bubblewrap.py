"""Find a bubblewrap that works on this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from mcpenv.errors import ConfigurationError

PROBE_S = 10.0
"""Timeout of the check that bubblewrap works, in seconds."""

# A capability could unmount what hides a folder.
BASE = ("--die-with-parent", "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL")
"""The options of every sandbox: its own process ids, no privileges, and an end with the thread that started it."""

READ_ONLY_ROOT = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
"""The options of a sandbox that reads all files of the system."""


def find_bubblewrap(*more: str) -> str:
    """Return the path of bubblewrap's program. Blocks until it has run once.

    Args:
        more: options that it must support, beside `BASE`.

    Raises:
        ConfigurationError: it is missing, or does not work on this machine.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise ConfigurationError("bubblewrap (bwrap) is not installed")
    fault = _fault([bwrap, *BASE, *more, *READ_ONLY_ROOT, "--tmpfs", "/tmp", "--", "true"])
    if fault is not None:
        raise ConfigurationError(fault)
    return bwrap


def _fault(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be run: {error}"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"bubblewrap does not work here: {lines[-1] if lines else f'exit status {done.returncode}'}"


__all__ = ["BASE", "READ_ONLY_ROOT", "find_bubblewrap"]
