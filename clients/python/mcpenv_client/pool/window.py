"""The number of sessions that a pool uses on one server, found by the server's refusals."""

from __future__ import annotations

import math

EPOCH = 8
"""Minimum episodes between two enlargements."""

CUT = 0.75
"""The factor after a refusal."""


class Window:
    """The limit of the sessions on a server: less after a refusal, and one more with each epoch until the next.

    Args:
        most: the largest limit, and the first.

    Attributes:
        limit: the present maximum of sessions.
    """

    def __init__(self, most: int) -> None:
        self.most = self.limit = most
        self._done = 0

    def refused(self, sessions: int) -> None:
        """Record that the server refused a session.

        Args:
            sessions: the number of its sessions, without the refused one.
        """
        self.limit = max(1, math.floor(min(self.limit, sessions + 1) * CUT))
        self._done = 0

    def finished(self) -> None:
        """Count a completed episode."""
        self._done += 1
        if self._done >= max(EPOCH, 2 * self.limit):
            self.limit, self._done = min(self.limit + 1, self.most), 0
