"""Find the container engines of this machine: docker, podman and buildah."""

from __future__ import annotations

import shutil
import subprocess

PROBE_S = 30.0

_VERSION = {
    "docker": ("version", "--format", "{{.Server.Version}}"),
    "podman": ("version", "--format", "{{.Client.Version}}"),
    "buildah": ("version",),
}
"""The command by which an engine shows that it works; docker's needs its daemon."""


def why_not(engine: str) -> str | None:
    """Return why an engine cannot be used, or None if it can. Blocks until the engine has answered."""
    if shutil.which(engine) is None:
        return f"{engine} is not installed"
    return failure_of([engine, *_VERSION[engine]], engine)


def failure_of(command: list[str], name: str) -> str | None:
    """Return why a command fails, or None if it succeeds. Blocks until it has ended.

    Args:
        command: the words of the command.
        name: the name of what it tries, for the text.
    """
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name} cannot be run: {error}"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"{name} does not work here: {lines[0] if lines else f'exit status {done.returncode}'}"
