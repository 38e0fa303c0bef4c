"""The handles: the addresses at which agents act on an orchestrator's episode. Each reset issues one.

A handle outlives its episode. Listings work and calls report the end of the episode, until the session has been reset
or closed and `GRACE_S` have passed. A 404 at once would reach an agent as "Session terminated", without a reason.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fastmcp.server.providers import Provider

from mcpenv.execution.execution import Execution
from mcpenv.execution.mounted.mounted_server import MountedServer
from mcpenv.tools.access import Listing

GRACE_S = 60.0
"""Seconds for which the handle of a past episode still answers."""

MAX_PAST = 1024
"""Maximum handles of past episodes that still answer. Above it, the oldest are dropped early."""


@dataclass(slots=True)
class Handle:
    """The address of one episode.

    Attributes:
        value: 128 random bits, URL-safe.
        execution: the instance; None once the episode is past and its instance may be closed.
        episode_id: the episode. The instance may have had others since.
        left: the answer of listings after the instance is gone.
        used: True if an agent has used the handle.
        agent: the name of the first agent that made a call, or of its MCP client; None if unknown.
    """

    value: str
    execution: Execution | None
    episode_id: str | None
    left: Listing = field(default_factory=Listing)
    used: bool = False
    agent: str | None = None

    mounted: MountedServer | None = None
    provider: Provider | None = None

    @property
    def current(self) -> Execution | None:
        """The instance if this episode is its current one, also after the end; else None."""
        execution = self.execution
        return execution if execution is not None and execution.episode.id == self.episode_id else None

    async def listing(self) -> Listing:
        """Return the tools that the episode had."""
        return self.left


class Handles:
    """The handles of a server.

    Args:
        new_value: returns the value of a new handle.

    Attributes:
        on_forget: called with a handle that has stopped answering.
    """

    def __init__(self, new_value: Callable[[], str]) -> None:
        self._new_value = new_value
        self._handles: dict[str, Handle] = {}
        self._past: deque[tuple[float, Handle]] = deque()
        self._left = Listing()  # of the last retired handle; most have the same listing and share it
        self._timer: asyncio.TimerHandle | None = None
        self.on_forget: Callable[[str], None] | None = None

    def __len__(self) -> int:
        return len(self._handles)

    def mint(self, execution: Execution, value: str | None = None) -> Handle:
        """Return a new handle for the instance's running episode; of this value if another server issued it."""
        handle = Handle(value or self._new_value(), execution, execution.episode.id)
        self._handles[handle.value] = handle
        return handle

    def find(self, value: str) -> Handle | None:
        """Return the handle of that value if it still answers, else None."""
        return self._handles.get(value)

    def retire(self, handle: Handle) -> None:
        """Retire a handle because the session was reset or closed. It answers for another `GRACE_S`."""
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
        """Drop all handles."""
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
        if self._handles.get(handle.value) is not handle:
            return  # its episode is continued here again
        del self._handles[handle.value]
        if self.on_forget is not None:
            self.on_forget(handle.value)
