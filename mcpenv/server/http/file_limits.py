"""The limit of open files: thousands of sessions need a socket each, and a shell's usual limit is 1,024."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("mcpenv")

PER_SESSION = 2
"""The number of sockets that a session may need: its orchestrator's and its agent's."""

BESIDE = 256
"""The number of files for everything else."""


def allow_many(sessions: int) -> None:
    """Raise this process's soft limit of open files as far as allowed, and log if that is not enough.

    Args:
        sessions: maximum number of sessions.
    """
    if sys.platform == "win32":
        return
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = sessions * PER_SESSION + BESIDE
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return
    wanted = needed if hard == unlimited else min(needed, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < needed:
        logger.warning(
            "%d sessions may need %d open files, and this process is allowed %d; raise the limit (ulimit -Hn), or take "
            "fewer sessions",
            sessions,
            needed,
            wanted,
        )


def connections_allowed() -> int:
    """Return how many connections this process can have with the files that it may open."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource  # not on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - min(BESIDE, soft // 3)
