"""The writer of a record: it compresses and appends episodes in a thread of its own."""

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

from .lost import Lost
from .segments import Segments, member_of

logger = logging.getLogger("mcpenv")

ENOUGH = 256
"""Length of the queue above which callers wait, if they can."""

BATCH = 64
LINGER_S = 0.1
"""Size of a batch of episodes that no caller waits for, and maximum seconds until it is written."""

MEMBER_BYTES = 1 << 20
"""Size of a text, in bytes, above which the next episode begins another gzip member."""

LOST_IDS = 1000
"""Maximum ids of lost episodes to remember."""

SILENCE_S = 60.0
"""Seconds after a log entry for which the same cause of losses is not logged again."""


class Job:
    """The episode to write.

    Attributes:
        line: returns its line; called in the writer's thread. None: there was work to do, but nothing to write.
        steps: the number of steps of the episode; None if the job is no episode, so that none is lost with it.
        over: True if it was written or lost.
        lost: True if it was lost.
    """

    __slots__ = ("_when_over", "line", "lost", "over", "steps")

    def __init__(self, line: Callable[[], bytes | None], steps: int | None = 0) -> None:
        self.line: Callable[[], bytes | None] | None = line
        self.steps = steps
        self.over = self.lost = False
        self._when_over: list[Callable[[], None]] = []

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the job is over, in the writer's thread; at once if it already is."""
        with _OVER:
            if not self.over:
                self._when_over.append(callback)
                return
        callback()

    def end(self) -> None:
        """Mark the job as over. Only the writer calls this method."""
        with _OVER:
            self.over, self.line = True, None
            callbacks, self._when_over = self._when_over, []
        for callback in callbacks:
            callback()


_OVER = threading.Condition()
"""The lock of all jobs, held briefly when a job begins or ends."""


class Jobs:
    """The unfinished jobs of all sinks, by episode id. Another instance than the one that added a job may get it.

    Attributes:
        lost: the ids of the last episodes that were lost.
    """

    def __init__(self) -> None:
        self._by_episode: dict[str, Job] = {}
        self.lost: deque[str] = deque(maxlen=LOST_IDS)

    def add(self, episode_id: str, job: Job) -> None:
        """Keep a job until it is over."""
        with _OVER:
            self._by_episode[episode_id] = job
        job.when_over(lambda: self._forget(episode_id, job))

    def get(self, episode_id: str) -> Job | None:
        """Return the unfinished job of an episode, or None."""
        return self._by_episode.get(episode_id)

    def _forget(self, episode_id: str, job: Job) -> None:
        with _OVER:  # orchestrators may use one id for several episodes
            if self._by_episode.get(episode_id) is job:
                del self._by_episode[episode_id]
            if job.lost:
                self.lost.append(episode_id)


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of episodes since the recorder was made, by outcome."""

    written: int
    lost: int
    waiting: int


class Writer:
    """The writer of episodes, in the order of the queue. Its errors fail no step; they are logged and counted.

    An episode that cannot be written is lost, and so are those that arrive while ``max_waiting`` are queued. Each cause
    is logged at most once a minute. The next line that can be written says how many were lost before it, and so does a
    last one if that was the end.

    Args:
        max_segment_bytes: size above which the next episode begins another file.
        max_waiting: maximum episodes in the queue.
    """

    def __init__(self, directory: Path, *, max_segment_bytes: int, max_waiting: int) -> None:
        self._directory = directory
        self._segments = Segments(directory, max_segment_bytes)
        self._member_bytes = min(MEMBER_BYTES, max_segment_bytes)
        self._max_waiting = max_waiting
        self._enough = min(ENOUGH, max_waiting)
        self._written = 0
        self._lost = 0
        self._said: dict[object, float] = {}  # each cause, and the time at which it was logged
        self._begin()

    def _begin(self) -> None:
        """Begin without jobs and thread: in the process that made the writer, and in a forked child."""
        self._process = os.getpid()
        self._jobs: deque[Job] = deque()
        # Reentrant: a signal handler may call any method here while its own thread is inside one.
        self._changed = threading.Condition(threading.RLock())
        self._working = 0  # the number of jobs that are being written
        self._closing = False
        self._hurry = False  # a caller waits for the queue
        self._gap: Lost | None = None  # the losses that the record does not have yet
        # Created at the first job: a recorder that records nothing has no thread.
        self._thread: threading.Thread | None = None

    @property
    def counts(self) -> Counts:
        """The numbers of episodes so far, by outcome."""
        with self._changed:
            return Counts(self._written, self._lost, len(self._jobs) + self._working)

    def put(self, job: Job, *, wait: bool) -> None:
        """Queue a job.

        Args:
            wait: True to wait while the queue is full. False, as on an event loop: the job is lost if it is full.
        """
        if self._process != os.getpid():
            self._begin()  # the thread and the jobs belong to the parent
        wait_for_room = wait and not self._interrupted
        with self._changed:
            if wait_for_room and len(self._jobs) >= self._enough:
                # Wait until there is room for many jobs: waking for each single place is slow.
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
                    except RuntimeError:  # no thread can start while the interpreter shuts down
                        self._thread = None
                        raise
                elif not self._working and (not wait or len(self._jobs) in (1, BATCH)):
                    self._changed.notify_all()
            else:
                why = "the recorder is closed" if self._closing else f"{self._max_waiting} episodes wait to be written"
                self._lose(job, why, why)
        if not taken:
            job.end()

    def flush(self) -> None:
        """Return when all jobs queued so far are over, or at once in a signal handler that interrupted the writer."""
        if self._interrupted or self._process != os.getpid():
            return  # the interrupted caller blocks the thread that would write the rest
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
        """Write the queue, and end. Safe to call twice.

        Returns:
            True if it has ended. False in a signal handler that interrupted a call of the same thread. Then the writer
            refuses further jobs, and another call ends it.
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
            with contextlib.suppress(OSError):  # the jobs have been written and marked already
                if self._gap is not None:
                    gap, self._gap = self._gap, None
                    self._segments.append(member_of(gap.line()))
                self._segments.close()
        return True

    @property
    def _interrupted(self) -> bool:
        """True if this thread is already inside a method, which a signal has interrupted."""
        return _is_mine(self._changed) or _is_mine(_OVER)

    # -- the writer's thread

    def _run(self) -> None:
        while jobs := self._next():
            self._write(jobs)
            for job in jobs:
                job.end()

    def _write(self, jobs: Sequence[Job]) -> None:
        """Write the lines of jobs in as few members as possible. Each member is whole or absent."""
        lines: list[tuple[bytes, Job]] = []
        size = 0
        for job in jobs:
            try:
                assert job.line is not None
                line = job.line()
            except Exception as error:  # the recorder's boundary: one episode must not stop the others
                if not isinstance(error, OSError):  # of the disk, which is logged once a minute
                    logger.exception("an episode could not be encoded")
                with self._changed:
                    self._lose(job, type(error), f"{type(error).__name__}: {error}")
                continue
            if line is not None:
                lines.append((line, job))
                size += len(line)
            if size >= self._member_bytes:
                self._write_lines(lines)
                lines, size = [], 0
        if lines:
            self._write_lines(lines)

    def _write_lines(self, lines: list[tuple[bytes, Job]]) -> None:
        with self._changed:
            gap, self._gap = self._gap, None
        texts = [line for line, _ in lines] if gap is None else [gap.line(), *(line for line, _ in lines)]
        try:
            self._segments.append(member_of(b"".join(texts)))
        except OSError as error:
            with self._changed:
                self._missing(gap)
            if len(lines) > 1:  # there may be room for some
                for each in lines:
                    self._write_lines([each])
                return
            with self._changed:
                self._lose(lines[0][1], (type(error), error.errno), error.strerror or str(error))
        else:
            with self._changed:
                self._written += len(lines)

    def _next(self) -> list[Job]:
        """Return the jobs to write next; an empty list if the writer is to end."""
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
            # No caller waits for these. Waking up for each would cost the callers more than writing does.
            self._changed.wait_for(lambda: self._hurry or self._closing or len(self._jobs) >= BATCH, LINGER_S)
            jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), BATCH))]
            self._working = len(jobs)
            return jobs

    def _missing(self, gap: Lost | None) -> None:
        """Put losses that could not be written before those that came meanwhile."""
        if gap is not None:
            self._gap = gap if self._gap is None else gap + self._gap

    def _lose(self, job: Job, cause: object, why: str) -> None:
        if job.steps is None:
            return
        self._lost += 1
        job.lost = True
        one = Lost(1, job.steps, time.time(), time.time(), why)
        self._gap = one if self._gap is None else self._gap + one
        now = time.monotonic()
        if now - self._said.get(cause, -math.inf) >= SILENCE_S:
            self._said[cause] = now
            logger.error("recording to %s fails, %d episodes lost so far: %s", self._directory, self._lost, why)


def _is_mine(condition: threading.Condition) -> bool:
    """Return True if this thread holds the lock of the condition."""
    try:
        condition.notify(0)  # wakes no thread, and raises if this thread does not hold the lock
    except RuntimeError:
        return False
    return True
