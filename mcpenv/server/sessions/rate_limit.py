"""The rate limit of agents: requests a second, and the seconds after which to retry."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from mcpenv_client.errors import RateLimited

MAX_KEYS = 10_000
"""Maximum agents that are remembered. Above it, the least recently active are forgotten."""


class Rate:
    """The leaky bucket of each agent (the generic cell rate algorithm, ITU-T I.371, annex A).

    Args:
        per_s: requests a second in the long run. Bursts of a second's worth, and of at least one, are allowed.
        now: a clock, in seconds.
    """

    def __init__(self, per_s: float, *, now: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._interval_s = 1.0 / per_s
        self._ahead_s = max(1.0 - self._interval_s, 0.0)
        self._now = now
        self._due: OrderedDict[str, float] = OrderedDict()

    def spend(self, key: str) -> None:
        """Count a request of the agent ``key``.

        Raises:
            RateLimited: the agent sent too many; this request is not counted.
        """
        now = self._now()
        due = max(self._due.get(key, now), now)
        wait_s = due - now - self._ahead_s
        # A difference below a microsecond is rounding.
        if wait_s > 1e-6:
            raise RateLimited(
                f"too many requests: at most {self._per_s:g} a second; try again in {max(wait_s, 0.1):.1f} s",
                retry_after_s=wait_s,
            )
        self._due[key] = due + self._interval_s
        self._due.move_to_end(key)
        if len(self._due) > MAX_KEYS:
            self._due.popitem(last=False)
