"""Warn of user code that blocks the event loop of a server, which no timeout can stop."""

from __future__ import annotations

import logging
from types import FrameType

from .concurrency.loop_watch import LoopWatch, frames_from, place_of_frame
from .mounted.mounted_call import run_through
from .tool_call import ToolRun
from .user_code import UserCode

logger = logging.getLogger("mcpenv")

BLOCKED_S = 1.0
"""Seconds for which code may block a server's event loop before it is logged."""

PAUSE_S = 0.5
"""Seconds between two looks at a server's event loop."""

_TOOLS = (ToolRun.run.__code__, run_through.__code__)
_STAGE = UserCode.stage.__code__


class BlockedLoop:
    """Log each tool, and each other async method of an environment, that blocks the running loop; each once."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def watch(self) -> LoopWatch:
        """Return a context manager that watches the running loop."""
        return LoopWatch(BLOCKED_S, PAUSE_S, self._warn)

    def _warn(self, frame: FrameType | None) -> None:
        what = next(filter(None, map(_name_of, frames_from(frame))), None)
        # None: the server's own code runs, on a machine that is slow.
        if what is None or what in self._known:
            return
        self._known.add(what)
        logger.warning(
            "%s blocks the event loop for more than %g s, at %s. No session is served meanwhile, and no timeout_s can "
            "stop it. Write it as def instead of async def, so that it runs in a thread, or await what takes long",
            what,
            BLOCKED_S,
            place_of_frame(frame),
        )


def _name_of(frame: FrameType) -> str | None:
    """Return the name of the tool or method that a frame of the framework calls; None for other frames."""
    if frame.f_code in _TOOLS:
        return f"tool {frame.f_locals['step'].call.name!r}"
    return f"the environment's {frame.f_locals['name']}" if frame.f_code is _STAGE else None
