"""The limit of open files: thousands of sessions need a socket each, and a shell's usual limit is 1,024."""

from __future__ import annotations

import asyncio
import logging
import sys
import time

logger = logging.getLogger("mcpenv")

PER_SESSION = 2
"""The number of sockets that a session may need: its orchestrator's and its agent's."""

BESIDE = 256
"""The number of files for everything else."""

RESERVED = 256
"""The number of connections kept for probes, also if all others are in use; of few connections, a quarter."""

TOLD_AFTER_S, TOLD_EVERY_S, ROOM_S = 1.0, 60.0, 5.0
"""Seconds until closed connections are logged, between two such lines, and between two looks of a full server."""


class ClosedForRoom:
    """The connections that this process closed to make room for others. It logs their number, at most once a minute."""

    def __init__(self) -> None:
        self._number = 0
        self._told_at = -TOLD_EVERY_S

    def add(self) -> None:
        """Count one. Call it on the event loop."""
        self._number += 1
        if self._number == 1:
            wait_s = max(TOLD_AFTER_S, self._told_at + TOLD_EVERY_S - time.monotonic())
            asyncio.get_running_loop().call_later(wait_s, self._tell)

    def _tell(self) -> None:
        logger.warning(
            "closed %d connections that waited for their clients, to make room for new ones; allow this process more "
            "open files (ulimit -n), and set a control token, so that others open no WebSockets",
            self._number,
        )
        self._number, self._told_at = 0, time.monotonic()


def allow_many(sessions: int) -> None:
    """Raise this process's soft limit of open files as far as allowed, and log if that is not enough.

    Args:
        sessions: maximum number of sessions.
    """
    if sys.platform == "win32":
        return
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = sessions * PER_SESSION + BESIDE + RESERVED
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return
    wanted = needed if hard == unlimited else min(needed, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < needed:
        logger.warning(
            "%d sessions may need %d open files, and this process is allowed %d; raise the limit (ulimit -n, or "
            "LimitNOFILE of systemd), or give a lower --max-sessions",
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
