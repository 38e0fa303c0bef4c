"""A folder mounted over another by Linux's overlayfs, so that the cost of a copy does not depend on its size.

It needs root.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from pathlib import Path

_MNT_DETACH = 2


class Overlay:
    """An overlay: it shows the files of a folder, and stores all writes in another folder.

    Args:
        lower: the folder below. It must not change while the overlay exists.
        folder: an empty folder for the writes.
        target: the empty folder where the result is mounted.
    """

    def __init__(self, lower: Path, folder: Path, target: Path) -> None:
        self._lower = lower
        self._target = target
        self.upper = folder / "upper"
        self._work = folder / "work"
        self.upper.mkdir()
        self._work.mkdir()

    def mount(self) -> None:
        """Mount the overlay.

        Raises:
            OSError: the system refuses.
        """
        options = f"lowerdir={self._lower},upperdir={self.upper},workdir={self._work}"
        _call("mount", b"overlay", os.fsencode(self._target), b"overlay", 0, os.fsencode(options))

    def unmount(self) -> None:
        """Unmount. Open files stay usable.

        Raises:
            OSError: the system refuses.
        """
        _call("umount2", os.fsencode(self._target), _MNT_DETACH)


def fault_of_overlay(lower: Path) -> str | None:
    """Return why this machine cannot use a folder as the lower layer; None if it can."""
    if sys.platform != "linux":
        return "overlayfs is a file system of Linux"
    if any(character in str(lower) for character in ",:\\"):
        return f"the path {lower} has a character that overlayfs does not take"
    with tempfile.TemporaryDirectory(prefix="mcpenv-overlay-") as folder:
        target = Path(folder, "target")
        target.mkdir()
        try:
            overlay = Overlay(lower, Path(folder), target)
            overlay.mount()
            overlay.unmount()
        except OSError as error:
            return f"the system does not mount overlayfs ({error.strerror}); it takes root, outside of most containers"
    return None


def _call(function: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
