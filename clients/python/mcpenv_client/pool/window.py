"""The number of sessions that a pool uses on one server, found by measuring the server."""

from __future__ import annotations

import math

EPOCH = 8
"""Minimum episodes between two decisions."""

PAYS = 0.25
"""The share of an enlargement that must appear in the throughput; below it, the server is saturated."""

HOLD = 4
"""Epochs without a trial after an unsuccessful one."""

CUT = 0.75
"""The factor after a refusal."""


class Window:
    """The limit of the sessions on a server: less after a refusal, and one more with each epoch until the next.

    An adaptive window begins small and grows by half while the episodes per second grow with it. Growth without a gain
    is undone and tried again later, so that a server is not overloaded without benefit. Whole episodes are counted, so
    that a slow tool or a slow model is not mistaken for a saturated server.

    Args:
        most: the largest limit.
        adaptive: begin small and measure; False: begin with the maximum.

    Attributes:
        limit: the present maximum of sessions.
    """

    def __init__(self, most: int, *, adaptive: bool = False) -> None:
        self.most = most
        self.limit = min(most, EPOCH) if adaptive else most
        self._adaptive = adaptive
        self._refused = False
        self._before: tuple[int, float] | None = None  # limit and throughput before the growth on trial
        self._hold = 0
        self._done = 0
        self._began: float | None = None

    def refused(self, sessions: int) -> None:
        """Record that the server refused a session.

        Args:
            sessions: the number of its sessions, without the refused one.
        """
        self.limit = max(1, math.floor(min(self.limit, sessions + 1) * CUT))
        self._refused, self._before, self._began = True, None, None

    def finished(self, now_s: float) -> None:
        """Count a completed episode.

        Args:
            now_s: a monotonic time.
        """
        if self._began is None:
            self._began, self._done = now_s, 0  # an epoch begins with full sessions
            return
        self._done += 1
        if self._done < max(EPOCH, 2 * self.limit) or now_s <= self._began:
            return
        throughput = self._done / (now_s - self._began)
        self._began, self._done = now_s, 0
        if self._refused or not self._adaptive:
            self.limit = min(self.limit + 1, self.most)
        else:
            self._decide(throughput)

    def _decide(self, throughput: float) -> None:
        if self._before is not None:
            limit, before = self._before
            self._before = None
            if throughput / before < 1.0 + PAYS * (self.limit / limit - 1.0):
                self.limit, self._hold = limit, HOLD
                self._began = None
                return
        if self._hold:
            self._hold -= 1
        elif self.limit < self.most:
            self._before = (self.limit, throughput)
            self.limit = min(self.limit + max(1, self.limit // 2), self.most)
            self._began = None
