"""Run the user code of an environment in its threads, with deadlines, and convert its exceptions to errors."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from mcpenv.failures import environment_failure, is_no_failure, new_incident, stage_timeout

from .concurrency.event_loop import INLINE
from .concurrency.threads import THREADS, Abandoned, Runner
from .current_step import Step, current, inside

if TYPE_CHECKING:
    from .execution import AgentCall

logger = logging.getLogger("mcpenv")


class Deadline:
    """A context manager that cancels the current task after ``limit_s`` seconds; None for no limit.

    It works as `asyncio.timeout`, which in Python 3.11 does not recognize `Abandoned`, a subclass of `CancelledError`.

    Attributes:
        limit_s: the limit.

    Raises:
        TimeoutError: the deadline passed, and the task was not cancelled for another reason.
    """

    __slots__ = ("_before", "_expired", "_handle", "_loop", "_task", "limit_s")

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self._expired = False
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> None:
        if self.limit_s is None:
            return
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = task.cancelling()  # cancellations that this deadline did not request
        self._loop = task.get_loop()
        # Most calls return without suspending: they end before the timer is set, which costs ten times as much.
        self._handle = self._loop.call_soon(self._set_timer, self._loop.time() + self.limit_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._handle is None:
            return
        self._handle.cancel()
        # Always undone: the cancellation must not reach later work of the task.
        if self._expired and self._task.uncancel() <= self._before and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def _set_timer(self, when: float) -> None:
        self._handle = self._loop.call_at(when, self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()


class UserCode:
    """The runner of the code of one environment.

    Attributes:
        runner: runs sync code.
        deadline_s: maximum seconds of one call; None for no limit.
        abandoned: True if sync code was abandoned in its thread. From then on only `close` may run here, after that
            code has returned.
        incident: the id of the log entry about the abandoned code; None without such code.
        on_abandoned: called when code is abandoned. It returns a function, which the abandoned thread calls after the
            code has returned.
    """

    __slots__ = (
        "_after",
        "_left",
        "_mutex",
        "_owner",
        "abandoned",
        "affine",
        "deadline_s",
        "incident",
        "on_abandoned",
        "runner",
    )

    def __init__(self, owner: object, affine: bool) -> None:
        self._owner: object | None = owner
        self.affine = affine
        self.runner: Runner = INLINE
        self.deadline_s: float | None = None
        self.abandoned = False
        self.incident: str | None = None
        self.on_abandoned: Callable[[], Callable[[], None]] | None = None
        self._mutex = threading.Lock()
        self._left = 0  # the number of abandoned calls that still run; several concurrent tools may be abandoned
        self._after: list[Callable[[], None]] = []

    def forget_owner(self) -> None:
        """Drop the reference to the owner. No further user code may run."""
        self._owner = None

    def limit(self, *limits: float | None, at_least: float = 0.0) -> float | None:
        """Return the shortest of the limits that are set, the step deadline included; seconds.

        Args:
            at_least: seconds to which a shorter step deadline is raised.
        """
        shortest = None if self.deadline_s is None else max(self.deadline_s, at_least)
        for limit in limits:
            if limit is not None and (shortest is None or limit < shortest):
                shortest = limit
        return shortest

    def deadline(self, *limits: float | None) -> Deadline:
        """Return the deadline of the code that begins now: the shortest of the limits that are set."""
        return Deadline(self.limit(*limits))

    async def stage(
        self,
        name: str,
        make: Callable[[], Coroutine[Any, Any, Any]],
        timeout_s: float | None = None,
        at_least: float | None = None,
    ) -> Any:
        """Run one stage (reset, act, state, close).

        Args:
            timeout_s: maximum seconds.
            at_least: seconds to which a shorter step deadline is raised.

        Raises:
            OperationTimeout: the code passed its deadline.
            ExecutionError: the code raised; ``__cause__`` is the exception.
        """
        deadline = Deadline(self.limit(timeout_s, at_least=at_least or 0.0))
        # Inside a step the variable keeps the `Step`: `finish` and the log read it.
        token = current.set(self._owner) if current.get() is None or not inside(self._owner) else None
        try:
            with deadline:
                try:
                    return await make()
                except BaseException as error:
                    if self.lets_through(error):
                        raise
                    raise environment_failure(name, error) from error
        except TimeoutError:
            raise stage_timeout(name, deadline.limit_s) from None
        finally:
            if token is not None:
                current.reset(token)

    def lets_through(self, error: BaseException) -> bool:
        """Return True if an exception of user code is not a failure and must propagate (`is_no_failure`)."""
        return is_no_failure(error, inline=self.runner.inline)

    async def call(self, fn: Callable[..., Any], *args: Any, client: AgentCall | None = None) -> Any:
        """Call a user function: a coroutine function here, anything else with the runner.

        Args:
            client: the agent's call, which cannot be stopped while sync code runs.
        """
        if inspect.iscoroutinefunction(fn):
            return await fn(*args)
        value = await self.hand_over(None, fn, *args, client=client)
        return await value if inspect.isawaitable(value) else value

    async def hand_over(
        self, limit: float | None, fn: Callable[..., Any], *args: Any, client: AgentCall | None = None
    ) -> Any:
        """Run sync code with the runner. In process, a ``limit`` moves it to a worker thread, which can be abandoned.

        Args:
            client: the agent's call, which cannot be stopped meanwhile.
        """
        runner = self.runner
        # Inline code blocks the event loop, so that no deadline could expire. Thread-affine code stays inline anyway.
        if runner.inline and limit is not None and not self.affine:
            runner = THREADS
        stoppable = client is not None and client.stoppable
        # From here on, a cancellation would leave the code running in its thread.
        if client is not None:
            client.stoppable = False
        try:
            result = await runner.run(fn, *args)
        except Abandoned as abandoned:
            self.abandoned = True
            if self.incident is None:
                self.incident = new_incident()
            logger.error(
                "incident %s: %s could not be stopped; its instance takes no more calls",
                self.incident,
                _what_runs(),
            )
            # `_returned` runs in the abandoned thread. Calls that are stuck at the same time are reported once.
            with self._mutex:
                self._left += 1
                if self._left == 1 and self.on_abandoned is not None:
                    self._after.append(self.on_abandoned())
            # Without the mutex: if the code has returned by now, `_returned` is called here and acquires it.
            abandoned.when_finished(self._returned)
            raise
        # The sync code may have returned an awaitable, which can be cancelled.
        if client is not None:
            client.stoppable = stoppable
        return result

    async def beside(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run sync code that belongs to no instance: on a server in a pool thread, in process in the caller's."""
        try:
            return await (INLINE if self.runner.inline else THREADS).run(fn, *args)
        except Abandoned as abandoned:
            if self.on_abandoned is not None:
                abandoned.when_finished(self.on_abandoned())
            raise

    def when_returned(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` in the abandoned thread when its code returns. Return False if it has returned already."""
        with self._mutex:
            if self._left:
                self._after.append(callback)
            return self._left > 0

    def _returned(self) -> None:
        with self._mutex:
            self._left -= 1
            if self._left:
                return
            after, self._after = self._after, []
        # Without the mutex: a callback may run the user's close.
        for callback in after:
            _run_late(callback)


def _what_runs() -> str:
    """Return the name of the running tool, for the log; "code" outside a step."""
    now = current.get()
    return f"tool {now.call.name!r}" if isinstance(now, Step) else "code"


def _run_late(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:  # the thread's boundary: no caller could receive it
        logger.exception("close of an environment that had been given up raised")
