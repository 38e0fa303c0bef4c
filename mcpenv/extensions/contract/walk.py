"""Make calls on an instance that runs as on a server, and record the outcomes."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from mcpenv.environment import MCPEnvironment
from mcpenv.execution.concurrency.loop_watch import LoopWatch, authors_frame, is_authors, place_of_frame, spelled
from mcpenv.execution.concurrency.threads import OwnThread
from mcpenv_client.errors import OperationTimeout, WireError
from mcpenv_client.types.actions import Action
from mcpenv_client.types.observations import Observation
from mcpenv_client.types.records import Plane
from mcpenv_client.types.tools import Mode, ToolErrorType, ToolFailure
from mcpenv_client.types.values import to_plain


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

        def blocked(frame: FrameType | None) -> None:
            trace.blocked_at = trace.blocked_at or place_of_frame(frame)

        with Crashes() as crashes, LoopWatch(self._block_limit_s, self._block_limit_s / 10, blocked):
            try:
                trace.value = await call()
            except WireError as error:
                trace.error = error
        trace.crash = crashes.first
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


class Crashes(logging.Handler):
    """Capture errors that the core logs instead of sending them to agents, without printing them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first: BaseException | None = None
        self._logger = logging.getLogger("mcpenv")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first exception, or the text of the first record without one."""
        if self.first is None:
            self.first = (record.exc_info and record.exc_info[1]) or ValueError(record.getMessage())

    def __enter__(self) -> Crashes:
        self._propagates, self._logger.propagate = self._logger.propagate, False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagates


def error_text(problem: BaseException | ToolFailure) -> str:
    """Describe an error and its place in the author's code, on one line."""
    if isinstance(problem, ToolFailure):
        return f"{problem.error_type.value}: {problem.message}"
    # A refusal that user code passes on is its own cause.
    if isinstance(problem, WireError) and problem.__cause__ not in (None, problem):
        stage = problem.data.get("stage")
        return f"{stage} raised {error_text(problem.__cause__)}" if stage else error_text(problem.__cause__)
    text = f"{type(problem).__name__}: {problem}".removesuffix(": ")
    place = place_of(problem)
    return f"{text} ({place})" if place else text


def cause_of(error: BaseException) -> BaseException:
    """Return the exception of the author's code that an error of the framework reports, or the error itself."""
    while isinstance(error, WireError) and error.__cause__ not in (None, error):
        assert error.__cause__ is not None
        error = error.__cause__
    return error


def place_of(error: BaseException) -> str | None:
    """Return the last place of an exception in the author's code, as "file:line in function"; None if it has none."""
    own = [summary for summary in traceback.extract_tb(error.__traceback__) if is_authors(summary.filename)]
    return spelled(own[-1].filename, own[-1].lineno or 0, own[-1].name) if own else None


def running_places() -> list[str]:
    """Return the places in the author's code at which other threads than the main one are."""
    main = threading.main_thread().ident
    frames = [frame for ident, frame in sys._current_frames().items() if ident != main]
    return sorted({place_of_frame(here) for frame in frames if (here := authors_frame(frame)) is not None})
