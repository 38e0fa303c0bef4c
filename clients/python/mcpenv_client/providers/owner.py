"""The mark of the process that owns containers, by which a later process finds containers of ended owners.

The mark is a file that its owner keeps locked. The system releases the lock when the process ends in any way.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import threading
from pathlib import Path

from mcpenv_client.errors import InstanceFailed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HOST, PROCESS, MARK = "mcpenv.owner.host", "mcpenv.owner.process", "mcpenv.owner.mark"
"""The labels of a container: the machine of its owner, its process id, and the path of the mark there."""

_lock = threading.Lock()
_own: tuple[int, Path] | None = None
"""The process that made the mark, and the mark: a forked child makes its own."""


def labels() -> dict[str, str]:
    """Return the labels for containers of this process."""
    return {HOST: socket.gethostname(), PROCESS: str(os.getpid()), MARK: str(_mark())}


def is_gone(labels: dict[str, str]) -> bool:
    """Return True if the owner in these labels was a process of this machine, and has ended."""
    if fcntl is None or labels.get(HOST) != socket.gethostname() or MARK not in labels:
        return False
    path = Path(labels[MARK])
    if path == _mark():
        return False
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        # Another folder may be on another file system. A cleaner of old files may have removed the mark.
        return path.parent == _folder() and not _runs(labels.get(PROCESS, ""))
    except OSError:
        return False  # of another user
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    path.unlink(missing_ok=True)
    return True


def _runs(process: str) -> bool:
    """Return True if a process with that id may run."""
    if not process.isdecimal():
        return True
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # of another user
    return True


def _mark() -> Path:
    global _own
    with _lock:
        if _own is None or _own[0] != os.getpid():
            folder = _folder()
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.is_symlink() or (hasattr(os, "getuid") and folder.stat().st_uid != os.getuid()):
                raise InstanceFailed(str(folder), "it is not a folder of this user; remove it, or set TMPDIR")
            path = folder / secrets.token_hex(8)
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)  # never closed: the lock is held as long as the process runs
            _own = (os.getpid(), path)
        return _own[1]


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"mcpenv-owners-{os.getuid() if hasattr(os, 'getuid') else 0}"
