"""Open files: a server of thousands of sessions needs a socket for each, and a shell's usual limit is 1,024."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("mcpenv")

PER_SESSION = 2
"""Sockets that a session may need: its orchestrator's and its agent's."""

BESIDE = 256
"""Files that everything else may need."""


def allow_many(sessions: int) -> None:
    """Raise this process's soft limit of open files as far as it may; say so if that is not enough.

    Args:
        sessions: how many sessions there may be.
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
