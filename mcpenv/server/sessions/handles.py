"""Handles: the addresses at which agents act on an orchestrator's episode. One per reset, known to the orchestrator.

A handle outlives its episode: listing still works and calls say that the episode is over, until the session has been
reset or closed and `GRACE_S` have passed. A 404 at once would reach an agent as "Session terminated" and tell it
nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mcpenv.execution.execution import Execution
from mcpenv.execution.mounted_server import HandedIn
from mcpenv.tools.access import Listing

GRACE_S = 60.0
"""Seconds for which the handle of a past episode still answers."""

MAX_PAST = 1024
"""Handles of past episodes that still answer; where very many end, the oldest do not for all of that time."""


@dataclass(slots=True)
class Handle:
    """One episode's address.

    Attributes:
        value: 192 random bits, URL-safe.
        execution: the instance at work; None once the episode is past and its instance may be closed.
        episode_id: the episode, of which the instance may have had others since.
        left: what listings answer when the instance is gone.
        used: an agent came by it.
    """

    value: str
    execution: Execution | None
    episode_id: str | None
    left: Listing = field(default_factory=Listing)
    used: bool = False

    handed_in: HandedIn | None = None

    @property
    def current(self) -> Execution | None:
        """The instance, while this episode is the one it works on; over or not."""
        execution = self.execution
        return execution if execution is not None and execution.episode.id == self.episode_id else None

    async def listing(self) -> Listing:
        """The tools that the episode had."""
        return self.left


class Handles:
    """The handles of a server.

    Args:
        new_value: makes the value of a new one.

    Attributes:
        on_forget: told a handle that no longer answers.
    """

    def __init__(self, new_value: Callable[[], str] = lambda: secrets.token_urlsafe(24)) -> None:
        self._new_value = new_value
        self._handles: dict[str, Handle] = {}
        self._past: deque[tuple[float, Handle]] = deque()
        self._left = Listing()  # that of the last one retired; most have the same, and hold it together
        self._timer: asyncio.TimerHandle | None = None
        self.on_forget: Callable[[str], None] | None = None

    def __len__(self) -> int:
        return len(self._handles)

    def mint(self, execution: Execution) -> Handle:
        """A handle for the instance's running episode."""
        handle = Handle(self._new_value(), execution, execution.episode.id)
        self._handles[handle.value] = handle
        return handle

    def find(self, value: str) -> Handle | None:
        """The handle of that value, if it still answers."""
        return self._handles.get(value)

    def retire(self, handle: Handle) -> None:
        """Its episode is past (the session was reset or closed): it answers for `GRACE_S` more."""
        execution, handle.execution = handle.execution, None
        if execution is None:
            return
        left = execution.tools.listing(execution.mode)
        if left != self._left:
            self._left = left
        handle.left = self._left
        self._past.append((time.monotonic() + GRACE_S, handle))
        if len(self._past) > MAX_PAST:
            self._forget_oldest()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GRACE_S, self._forget)

    def close(self) -> None:
        """Forget everything."""
        if self._timer is not None:
            self._timer.cancel()
        self._handles.clear()
        self._past.clear()

    def _forget(self) -> None:
        self._timer = None
        now = time.monotonic()
        while self._past and self._past[0][0] <= now:
            self._forget_oldest()
        if self._past:
            self._timer = asyncio.get_running_loop().call_later(self._past[0][0] - now, self._forget)

    def _forget_oldest(self) -> None:
        _, handle = self._past.popleft()
        self._handles.pop(handle.value, None)
        if self.on_forget is not None:
            self.on_forget(handle.value)
