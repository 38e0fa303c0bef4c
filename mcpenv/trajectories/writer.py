"""The writer: compresses and appends episodes in a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .segments import Segments, member_of

logger = logging.getLogger("mcpenv")

ENOUGH = 256
"""Episodes that wait, at which those that can wait do."""

BATCH = 64
LINGER_S = 0.1
"""Episodes for which nobody waits are written so many at a time, or after so many seconds."""

MEMBER_BYTES = 1 << 20
"""Size of a text, in bytes, above which the next episode begins another gzip member."""

SILENCE_S = 60.0
"""Seconds for which a cause of losses that was logged is not logged again."""


class Job:
    """An episode on its way to disk.

    Attributes:
        line: makes its line; called in the writer's thread. None: there was something to do, and nothing to write.
        over: it was written, or lost.
    """

    __slots__ = ("_when_over", "line", "over")

    def __init__(self, line: Callable[[], bytes | None]) -> None:
        self.line: Callable[[], bytes | None] | None = line
        self.over = False
        self._when_over: list[Callable[[], None]] = []

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call it when the job is over, in the writer's thread; at once if it is. Never while the writer is at it."""
        with _OVER:
            if not self.over:
                self._when_over.append(callback)
                return
        callback()

    def end(self) -> None:
        """It is over; only the writer says so."""
        with _OVER:
            self.over, self.line = True, None
            callbacks, self._when_over = self._when_over, []
        for callback in callbacks:
            callback()


_OVER = threading.Condition()
"""Of all jobs: held for the moment in which one begins or ends."""


class Jobs:
    """The jobs that are not over, of all sinks, by episode: the instance that is asked may be another by now."""

    def __init__(self) -> None:
        self._by_episode: dict[str, Job] = {}

    def add(self, episode_id: str, job: Job) -> None:
        """Keep one until it is over."""
        with _OVER:
            self._by_episode[episode_id] = job
        job.when_over(lambda: self._forget(episode_id, job))

    def get(self, episode_id: str) -> Job | None:
        """The episode's, if it is not over."""
        return self._by_episode.get(episode_id)

    def _forget(self, episode_id: str, job: Job) -> None:
        with _OVER:  # orchestrators may call several episodes the same
            if self._by_episode.get(episode_id) is job:
                del self._by_episode[episode_id]


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the episodes: counts since the recorder was made."""

    written: int
    lost: int
    waiting: int


class Writer:
    """Writes episodes in the order in which they came. What goes wrong here fails no step: it is logged and counted.

    An episode that cannot be written is lost, and so are those that come while ``max_waiting`` wait already. Each
    cause is logged at most once a minute.

    Args:
        max_segment_bytes: size above which the next episode begins another file.
        max_waiting: episodes that may wait.
    """

    def __init__(self, directory: Path, *, max_segment_bytes: int, max_waiting: int) -> None:
        self._directory = directory
        self._segments = Segments(directory, max_segment_bytes)
        self._member_bytes = min(MEMBER_BYTES, max_segment_bytes)
        self._max_waiting = max_waiting
        self._enough = min(ENOUGH, max_waiting)
        self._written = 0
        self._lost = 0
        self._said: dict[object, float] = {}  # each cause, and when it was logged
        self._begin()

    def _begin(self) -> None:
        """Begin with no jobs and no thread: in the process that made it, and in one that was forked off it."""
        self._process = os.getpid()
        self._jobs: deque[Job] = deque()
        # A signal handler may call anything here while its own thread is at it.
        self._changed = threading.Condition(threading.RLock())
        self._working = 0  # how many are being written
        self._closing = False
        self._hurry = False  # somebody waits for what waits
        # Made at the first job: a recorder that records nothing has no thread.
        self._thread: threading.Thread | None = None

    @property
    def counts(self) -> Counts:
        """What became of the episodes so far."""
        with self._changed:
            return Counts(self._written, self._lost, len(self._jobs) + self._working)

    def put(self, job: Job, *, wait: bool) -> None:
        """Have it written.

        Args:
            wait: while many wait, wait too; without, as on an event loop, the job is lost if there are too many.
        """
        if self._process != os.getpid():
            self._begin()  # the thread and the jobs stayed with the parent
        wait_for_room = wait and not self._interrupted
        with self._changed:
            if wait_for_room and len(self._jobs) >= self._enough:
                # Until there is room for many: who waits for each place alone pays for each.
                while len(self._jobs) > self._enough // 2 and not self._closing:
                    self._changed.wait()
            taken = not self._closing and len(self._jobs) < self._max_waiting
            if taken:
                self._jobs.append(job)
                self._hurry = self._hurry or not wait
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="mcpenv-recorder", daemon=True)
                    try:
                        self._thread.start()
                    except RuntimeError:  # there can be none now
                        self._thread = None
                        raise
                elif not self._working and (not wait or len(self._jobs) in (1, BATCH)):
                    self._changed.notify_all()
            else:
                why = "the recorder is closed" if self._closing else f"{self._max_waiting} episodes wait to be written"
                self._lose(why, why)
        if not taken:
            job.end()

    def flush(self) -> None:
        """Return when everything that was put until now is over; at once in a signal handler that came between."""
        if self._interrupted or self._process != os.getpid():
            return  # who has been interrupted holds up the thread that would write the rest
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            last = self._jobs[-1] if self._jobs else None
            if last is None:
                while self._working:
                    self._changed.wait()
                return
        done = threading.Event()
        last.when_over(done.set)
        done.wait()

    def close(self) -> bool:
        """Write what waits, and end. Harmless twice.

        Returns:
            Whether it has ended. It has not in a signal handler that came while its own thread was writing: nothing new
            is taken from now on, and another call ends it.
        """
        if self._process != os.getpid():
            self._begin()
        interrupted = self._interrupted
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if interrupted:
            return False
        with self._changed:
            # `Thread.join` would deadlock if a signal handler that interrupts it calls this again.
            while self._thread is not None:
                self._changed.wait()
            with contextlib.suppress(OSError):  # what was written was said to be
                self._segments.close()
        return True

    @property
    def _interrupted(self) -> bool:
        """Whether this thread is at it already: a signal came in between."""
        return _is_mine(self._changed) or _is_mine(_OVER)

    # -- the writer's thread

    def _run(self) -> None:
        while jobs := self._next():
            self._write(jobs)
            for job in jobs:
                job.end()

    def _write(self, jobs: Sequence[Job]) -> None:
        """Write their lines, as few members as may be: whole or absent is each of them, and with it its episodes."""
        lines: list[bytes] = []
        size = 0
        for job in jobs:
            try:
                assert job.line is not None
                line = job.line()
            except Exception as error:  # the recorder's boundary: one episode must not end the others
                logger.exception("an episode could not be encoded")
                with self._changed:
                    self._lose(type(error), f"{type(error).__name__}: {error}")
                continue
            if line is not None:
                lines.append(line)
                size += len(line)
            if size >= self._member_bytes:
                self._write_lines(lines)
                lines, size = [], 0
        if lines:
            self._write_lines(lines)

    def _write_lines(self, lines: list[bytes]) -> None:
        try:
            self._segments.append(member_of(b"".join(lines)))
        except OSError as error:
            if len(lines) > 1:  # there may be room for some
                for line in lines:
                    self._write_lines([line])
                return
            with self._changed:
                self._lose_to(error)
        else:
            with self._changed:
                self._written += len(lines)

    def _next(self) -> list[Job]:
        """Those to be written now; none: it is over."""
        with self._changed:
            if self._working:
                self._working = 0
                self._changed.notify_all()
            while not self._jobs:
                self._hurry = False
                if self._closing:
                    self._thread = None
                    self._changed.notify_all()
                    return []
                self._changed.wait()
            # Nobody waits for these: to wake up for each would cost those who make them more than writing does.
            self._changed.wait_for(lambda: self._hurry or self._closing or len(self._jobs) >= BATCH, LINGER_S)
            jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), BATCH))]
            self._working = len(jobs)
            return jobs

    def _lose_to(self, error: OSError) -> None:
        self._lose((type(error), error.errno), error.strerror or str(error))

    def _lose(self, cause: object, why: str) -> None:
        self._lost += 1
        now = time.monotonic()
        if now - self._said.get(cause, -math.inf) >= SILENCE_S:
            self._said[cause] = now
            logger.error("recording to %s fails, %d episodes lost so far: %s", self._directory, self._lost, why)


def _is_mine(condition: threading.Condition) -> bool:
    """Return True if this thread holds the lock of the condition."""
    try:
        condition.notify(0)  # wakes nobody, and raises if the lock is not this thread's
    except RuntimeError:
        return False
    return True
