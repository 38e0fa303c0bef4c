"""Refuse to start without a manifest's requirements: missing secrets, too little memory, too few processors."""

from __future__ import annotations

import os
from pathlib import Path

from mcpenv.errors import TargetError
from mcpenv.redaction import hide

from .manifest import Manifest

_CGROUP = Path("/sys/fs/cgroup")
"""The limits of the container in which this process runs, if any."""


def refuse_unmet(target: str, manifest: Manifest) -> None:
    """Raise if a manifest's requirement is not met, and keep the values of its secrets out of the logs.

    Raises:
        TargetError: with the name of the first secret that is not set, or of the resource.
    """
    for name, purpose in manifest.secrets.items():
        value = os.environ.get(name)
        if not value:
            raise TargetError(
                target, f"the environment variable {name} is not set ({purpose}); set it, and start again"
            )
        hide(value)
    needed, there = manifest.needs.memory_bytes, machine_memory()
    if needed is not None and there is not None and there < needed:
        raise TargetError(
            target,
            f"needs {manifest.needs.memory} of memory, and this machine or container has {there // 2**20}Mi; "
            "use a larger one, or state less in needs.memory",
        )
    cpu = manifest.needs.cpu
    if cpu is not None and machine_cpu() < cpu:
        raise TargetError(
            target,
            f"needs {cpu:g} processors, and this machine or container has {machine_cpu():g}; "
            "use a larger one, or state less in needs.cpu",
        )


def machine_memory() -> int | None:
    """Return the memory of this machine or container in bytes; None if the system does not report it."""
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
    limit = _cgroup("memory.max")
    return min(installed, int(limit[0])) if limit and limit[0].isdecimal() else installed


def machine_cpu() -> float:
    """Return the processors that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = _cgroup("cpu.max")
    if len(limit) == 2 and limit[0].isdecimal():
        return min(float(usable), int(limit[0]) / int(limit[1]))
    return float(usable)


def _cgroup(name: str) -> list[str]:
    try:
        return (_CGROUP / name).read_text(encoding="ascii").split()
    except OSError:
        return []
