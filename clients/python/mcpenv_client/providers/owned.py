"""The owner of a pod, in its annotations: a cluster has pods of many machines."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from . import owner

MACHINE = "mcpenv.owner.machine"
"""The annotation with the hardware address of the owner's machine: machines of one cluster may have the same name."""


def owner_annotations() -> dict[str, str]:
    """Return the annotations for objects of this process."""
    return {**owner.labels(), MACHINE: _machine()}


def is_orphan(found: Mapping[str, str]) -> bool:
    """Return True if the owner in these annotations was a process of this machine, and has ended."""
    return found.get(MACHINE) == _machine() and owner.is_gone(dict(found))


def _machine() -> str:
    return f"{uuid.getnode():012x}"
