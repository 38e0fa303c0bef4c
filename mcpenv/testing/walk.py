"""Make calls on an instance that runs as on a server, and record the outcomes."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.execution.concurrency.threads import OwnThread
from mcpenv_client.errors import OperationTimeout, WireError
from mcpenv_client.types.actions import Action
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Plane
from mcpenv_client.types.tools import Mode, ToolErrorType, ToolFailure
from mcpenv_client.types.values import to_plain

_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_FRAMEWORK = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_SHIPPED = os.path.join(_FRAMEWORK, "envs", "")


@dataclass(slots=True)
class Trace:
    """The outcome of one call.

    Attributes:
        label: the name of the tool or method.
        action: the action of a step; None for other calls.
        value: the result.
        error: the error that was raised instead.
        crash: the exception of user code that agents do not see.
        blocked_at: the place that blocked the event loop for too long, as "file:line in function".
    """

    label: str
    action: Action | None = None
    value: Any = None
    error: WireError | None = None
    crash: BaseException | None = None
    blocked_at: str | None = None

    @property
    def observation(self) -> Observation | None:
        """The observation of a reset or a step."""
        return self.value if isinstance(self.value, Observation) else None

    @property
    def ended(self) -> bool:
        """True if the episode accepts no further steps."""
        return self.error is not None or (self.observation is not None and self.observation.done)

    @property
    def problem(self) -> BaseException | ToolFailure | None:
        """The reason for a missing result: the exception of user code, else the error or the failure."""
        failure = self.observation.error if self.observation is not None else None
        return self.crash or self.error or failure

    @property
    def timed_out(self) -> bool:
        """True if it exceeded its timeout."""
        failure = self.observation.error if self.observation is not None else None
        late = failure is not None and failure.error_type is ToolErrorType.TIMEOUT
        return late or isinstance(self.error, OperationTimeout)

    def plain(self) -> Any:
        """Return the part that is the same for equal calls: all but the episode id and the texts of exceptions."""
        if isinstance(self.problem, BaseException):
            return {"raised": type(self.problem).__name__}
        data = to_plain(self.value, self.label)
        if isinstance(data, dict):
            data.pop("episode_id", None)
            data.get("info", {}).pop("episode_id", None)
        return data


class Served:
    """An instance that runs as on a server: sync code in threads, everything else on the running loop.

    Args:
        mode: the mode of the instance.
        threads: sync code runs in these threads in rotation.
        seed: the seed of every reset.
        reset_options: the options of every reset.
        call_timeout_s: maximum seconds of each call.
        block_limit_s: maximum seconds for which code may block the event loop.
    """

    def __init__(
        self,
        mode: Mode,
        threads: tuple[OwnThread, ...],
        *,
        seed: int,
        reset_options: Mapping[str, Any],
        call_timeout_s: float,
        block_limit_s: float,
    ) -> None:
        self._mode = mode
        self._runner = _InTurn(threads)
        self._seed = seed
        self._reset_options = dict(reset_options)
        self._call_timeout_s = call_timeout_s
        self._block_limit_s = block_limit_s

    async def open(self, factory: Callable[[], MCPEnvironment]) -> None:
        """Make the instance."""
        env: MCPEnvironment = await self._runner.run(factory)
        self.execution = env._execution
        self.execution.user_code.runner = self._runner
        self.execution.user_code.deadline_s = self._call_timeout_s
        self.execution.mode = self._mode
        self.execution.episode.orchestrated = self._mode is Mode.SIMULATION

    async def reset(self) -> Trace:
        """Start an episode. Production uses default options, as no client sets them there."""
        if self._mode is Mode.PRODUCTION:
            return await self._trace("reset", None, self.execution.reset)
        return await self._trace("reset", None, lambda: self.execution.reset(self._seed, None, self._reset_options))

    async def step(self, action: Action, label: str) -> Trace:
        """Take a step."""
        return await self._trace(label, action, lambda: self.execution.step(action, plane=Plane.CONTROL))

    async def state(self) -> Trace:
        """Read the state."""
        return await self._trace("state", None, self.execution.read_state)

    async def close(self) -> Trace:
        """Close the instance and end its threads."""
        try:
            return await self._trace("close", None, self.execution.close)
        finally:
            self.end_threads()

    def end_threads(self) -> None:
        """End the threads, even if no instance could be made."""
        self._runner.close()

    async def _trace(self, label: str, action: Action | None, call: Callable[[], Awaitable[Any]]) -> Trace:
        trace = Trace(label, action)
        with _Crashes() as crashes, _Watch(self._block_limit_s) as watch:
            try:
                trace.value = await call()
            except WireError as error:
                trace.error = error
        trace.crash, trace.blocked_at = crashes.first, watch.blocked_at
        return trace


class _InTurn:
    """Run sync code in several threads in rotation. All of them stay alive, because thread ids are reused."""

    inline = False

    def __init__(self, threads: tuple[OwnThread, ...]) -> None:
        self._threads = threads
        self._next = 0

    async def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function in the next thread."""
        thread = self._threads[self._next % len(self._threads)]
        self._next += 1
        return await thread.run(fn, *args, **kwargs)

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.close()


class _Crashes(logging.Handler):
    """Capture errors that the core logs instead of sending them to agents, without printing them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first: BaseException | None = None
        self._logger = logging.getLogger("mcpenv")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first exception, or the text of the first record without one."""
        if self.first is None:
            self.first = (record.exc_info and record.exc_info[1]) or ValueError(record.getMessage())

    def __enter__(self) -> _Crashes:
        self._propagates, self._logger.propagate = self._logger.propagate, False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagates


class _Watch:
    """A thread that repeatedly schedules a callback on the running loop, and locates code that blocks it.

    The loop counts as blocked if one callback does not run within the whole limit during the call. Latencies are not
    added up, so a busy machine gives no false alarm.
    """

    def __init__(self, limit_s: float) -> None:
        self.blocked_at: str | None = None
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._over = threading.Event()
        self._answer = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="mcpenv-watch", daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._answer.set()  # running this line shows that the loop is not blocked
        self._thread.join()

    def _ask(self) -> None:
        while self.blocked_at is None:
            answer = self._answer = threading.Event()
            if self._over.is_set():
                return
            self._loop.call_soon_threadsafe(answer.set)
            # Wait twice: code that held the GIL also stopped this thread, and the loop may be free already.
            if not answer.wait(self._limit_s) and not answer.wait(self._limit_s / 10):
                self.blocked_at = _place_of(sys._current_frames().get(self._watched))
            self._over.wait(self._limit_s / 10)


def error_text(problem: BaseException | ToolFailure) -> str:
    """Describe an error and its place in the author's code, on one line."""
    if isinstance(problem, ToolFailure):
        return f"{problem.error_type.value}: {problem.message}"
    # A refusal that user code passes on is its own cause.
    if isinstance(problem, WireError) and problem.__cause__ not in (None, problem):
        stage = problem.data.get("stage")
        return f"{stage} raised {error_text(problem.__cause__)}" if stage else error_text(problem.__cause__)
    text = f"{type(problem).__name__}: {problem}".removesuffix(": ")
    own = [summary for summary in traceback.extract_tb(problem.__traceback__) if _is_authors(summary.filename)]
    return f"{text} ({_spelled(own[-1].filename, own[-1].lineno or 0, own[-1].name)})" if own else text


def _spelled(file: str, line: int, function: str) -> str:
    return f"{os.path.basename(file)}:{line} in {function}"


def _place_of(frame: FrameType | None) -> str:
    here = _authors(frame) or frame
    return (
        "at an unknown place" if here is None else _spelled(here.f_code.co_filename, here.f_lineno, here.f_code.co_name)
    )


def _authors(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the author's code; None if there is none."""
    while frame is not None and not _is_authors(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def running_places() -> list[str]:
    """Return the places in the author's code at which other threads than the main one are."""
    main = threading.main_thread().ident
    frames = [frame for ident, frame in sys._current_frames().items() if ident != main]
    return sorted({_place_of(here) for frame in frames if (here := _authors(frame)) is not None})


def _is_authors(file: str) -> bool:
    file = os.path.abspath(file)
    ours = file.startswith(_FRAMEWORK) and not file.startswith(_SHIPPED)
    return not ours and not file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file
