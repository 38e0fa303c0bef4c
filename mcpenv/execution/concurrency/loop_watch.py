"""Find the code that blocks an event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_FRAMEWORK = os.path.join(Path(__file__).parents[2], "")
_SHIPPED = os.path.join(_FRAMEWORK, "envs", "")


class LoopWatch:
    """A thread that repeatedly schedules a callback on the running loop, and reports code that blocks it.

    The loop counts as blocked if one callback does not run within the whole limit. Latencies are not added up, so a
    busy machine gives no false alarm.

    Args:
        limit_s: maximum seconds for which code may block the loop.
        pause_s: seconds from one callback to the next.
        on_blocked: called in the thread, once for each time the loop is blocked, with the innermost frame of the
            loop's thread; None if that thread has none.
    """

    def __init__(self, limit_s: float, pause_s: float, on_blocked: Callable[[FrameType | None], None]) -> None:
        self._limit_s = limit_s
        self._pause_s = pause_s
        self._on_blocked = on_blocked
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._over = threading.Event()
        self._answer = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="mcpenv-watch", daemon=True)

    def __enter__(self) -> LoopWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._answer.set()  # running this line shows that the loop is not blocked
        self._thread.join()

    def _ask(self) -> None:
        while True:
            answer = self._answer = threading.Event()
            if self._over.is_set():
                return
            try:
                self._loop.call_soon_threadsafe(answer.set)
            except RuntimeError:  # the loop was closed inside the block
                return
            # Wait twice: code that held the GIL also stopped this thread, and the loop may be free already.
            if not answer.wait(self._limit_s) and not answer.wait(self._limit_s / 10):
                self._on_blocked(sys._current_frames().get(self._watched))
                answer.wait()
            self._over.wait(self._pause_s)


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def authors_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the author's code; None if there is none."""
    return next((each for each in frames_from(frame) if is_authors(each.f_code.co_filename)), None)


def place_of_frame(frame: FrameType | None) -> str:
    """Return the place of the author's code, else of any code, as "file:line in function"."""
    here = authors_frame(frame) or frame
    return "an unknown place" if here is None else spelled(here.f_code.co_filename, here.f_lineno, here.f_code.co_name)


def spelled(file: str, line: int, function: str) -> str:
    """Return a place as "file:line in function"."""
    return f"{os.path.basename(file)}:{line} in {function}"


def is_authors(file: str) -> bool:
    """Return True for a file of neither the framework, the standard library, nor an installed package."""
    file = os.path.abspath(file)
    ours = file.startswith(_FRAMEWORK) and not file.startswith(_SHIPPED)
    return not ours and not file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file
