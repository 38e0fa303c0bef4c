"""Whether a folder is on a file system of this machine."""

from __future__ import annotations

import logging
from pathlib import Path

logger = logging.getLogger("mcpenv")

MOUNTS = Path("/proc/self/mountinfo")
"""What is mounted where, on Linux (proc(5)): a line each, those mounted over others after them."""

_LOCAL = frozenset({
    "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs",
})  # fmt: skip


def is_local(folder: Path, mounts: Path = MOUNTS) -> bool:
    """Whether writing to a file in it is done when this machine's memory has it; False where that is not known.

    Other machines' disks, and file systems that are programs, may not answer for as long as they like.
    """
    try:
        lines = mounts.read_bytes().splitlines()
    except OSError as error:
        logger.debug("%s: what is mounted is not known: %s", folder, error)
        return False
    of_folder = folder.resolve()
    found, depth = "", -1
    for line in lines:
        fields, _, more = line.partition(b" - ")
        point = Path(fields.split()[4].decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape"))
        if len(point.parts) >= depth and of_folder.is_relative_to(point):
            found, depth = more.split()[0].decode(), len(point.parts)
    return found in _LOCAL


__all__ = ["is_local"]
