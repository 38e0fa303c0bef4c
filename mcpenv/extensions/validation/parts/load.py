"""Judge concurrent sessions: equality with a session alone, time, memory, leftover files and threads."""

from __future__ import annotations

import gc
import math
import os
import statistics
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mcpenv.cli.output import number_of
from mcpenv.extensions.contract.findings import Verdict
from mcpenv_client.types.actions import Action, CallToolAction
from mcpenv_client.types.tools import Mode

from .candidate import Candidate
from .interleaved import REMEDY, Script, Session, judge_interleaved
from .judged import Judged, some_of

OPEN_FILES = "open files"
SESSIONS = 8
MAX_CALLS = 20
"""Maximum calls of one session."""
MAKING_S = 3.0
"""Maximum seconds for creating sessions."""
GROWTH_S = 1.0
"""Seconds for each of two rounds of episodes; their memory use is compared."""
MAX_EPISODES = 50
GROWTH_BYTES = 16 * 1024
"""Bytes an episode, in both rounds, above which memory counts as growing."""
ENOUGH_EPISODES = 8
"""Episodes of a round below which what it leaves behind is judged as if there had been as many. Buffers and caches that
one slow episode happens to fill are no growth."""
SLOW_S = 2.0
"""Seconds of a call above which the author is warned."""
STEPPING_S = 4.0
"""Maximum seconds for the calls of all sessions. If calls are slow, fewer sessions are used, and calls end after it."""


def judge_load(candidate: Candidate, into: Judged) -> None:
    """Judge interleaved sessions in one process, and successive episodes."""
    if not candidate.stands(into):
        return
    with _own_temporary_folder() as temporary:
        candidate.on_check("sessions at once")
        alone = _opened(candidate)
        _play(alone)
        alone.close()
        sessions, seconds = _at_once(candidate, alone, into)
        left_out = ""
        if not any(finding.check == "isolation" for finding in into.findings):
            candidate.on_check("sessions in turns")
            left_out = judge_interleaved(candidate, into)
            # Without calls nothing could be compared, and a warning says that no call succeeded.
            if left_out and not into.facts["interleaved"]:
                into.warning(
                    "time",
                    "sessions with different calls were not compared, so that isolation is not known",
                    "Make resets and calls faster, or compare two sessions by a test of your own",
                )
            else:
                into.ok_unless_found("isolation")
        candidate.on_check("growth")
        _growth(candidate, into)
        candidate.on_check("close")
        before, kept = _held(), len(list(temporary.iterdir()))
        _open_and_close(candidate, len(sessions))
        left = sorted(path.name for path in temporary.iterdir())
    _left_behind(before, left[kept:], len(sessions), into)
    times = sorted(seconds)
    said = "no step was made"
    if not alone.succeeded:
        into.warning(
            "time",
            "no call succeeded, so that no work of a tool was measured",
            "Call the tools in the oracle of a task, or give their parameters examples that work",
        )
    if times:
        p50, p95 = statistics.median(times), times[math.ceil(0.95 * len(times)) - 1]
        into.facts.update(step_p50_ms=round(p50 * 1e3, 3), step_p95_ms=round(p95 * 1e3, 3))
        said = f"a step takes {p50 * 1e3:.4g} ms (p95 {p95 * 1e3:.4g} ms)"
        slow = [label for label, seconds_of_call in alone.seconds.items() if seconds_of_call > SLOW_S]
        if slow:
            into.warning(
                "time",
                f"takes more than {SLOW_S:g} s, while its session waits",
                "Make it faster, or async, and state a timeout in limits.step_timeout_s",
                some_of(sorted(slow)),
            )
        into.ok_unless_found("time")
    into.summary = f"{number_of(into.facts['sessions'], 'session')} at once; {said}, " + (
        f"a session takes {kib} KiB" if (kib := into.facts.get("session_kib")) is not None else "memory not measured"
    )
    calls = len(alone.script.actions)
    if into.facts["calls"] < calls:
        into.summary += f"; {into.facts['calls']} of {calls} calls made at once, and no end"
    if left_out:
        into.summary += f"; {left_out}"


def _opened(candidate: Candidate) -> Session:
    """Return a session whose episode has begun: of the calls of the first oracle, or of one call of each tool."""
    task = candidate.tasks[0] if candidate.tasks else None
    if task is not None and task.oracle:
        calls: list[Action] = [CallToolAction(tool_name=c.tool_name, arguments=c.arguments) for c in task.oracle]
    else:
        calls = candidate.subject.actions_of(Mode.SIMULATION)
    session = Session(candidate, Script("the session", task, tuple(calls[:MAX_CALLS])), catches=False)
    session.make()
    session.reset()
    return session


def _play(session: Session) -> None:
    """Make all calls, and end the episode."""
    for number in range(len(session.script.actions)):
        session.call(number)
    session.end()


def _at_once(candidate: Candidate, alone: Session, into: Judged) -> tuple[list[Session], list[float]]:
    """Play sessions with alternating steps, and compare each with a session alone."""
    several = type(alone.env).SUPPORTS_CONCURRENT_SESSIONS
    sessions: list[Session] = []
    memory, began = _resident(), time.monotonic()
    with ExitStack() as stack:
        affordable = int(STEPPING_S / max(sum(alone.seconds.values()), 1e-6))
        for _ in range(max(2, min(SESSIONS, affordable)) if several else 1):
            sessions.append(_opened(candidate))
            stack.callback(sessions[-1].close)
            if len(sessions) > 1 and time.monotonic() - began > MAKING_S:
                break
        calls = len(alone.script.actions)
        for number in range(calls):
            if number and time.monotonic() - began > MAKING_S + STEPPING_S:
                calls = number
                break
            for session in sessions:
                session.call(number)
        into.facts["sessions"] = len(sessions)
        into.facts["calls"] = calls
        if memory:
            into.facts["session_kib"] = max(0, _resident() - memory) // len(sessions) // 1024
        if calls == len(alone.script.actions):
            for session in sessions:
                session.end()
    seconds = [each for session in sessions for each in session.seconds.values()]
    if not several:
        into.not_applicable("isolation", "SUPPORTS_CONCURRENT_SESSIONS is False, so that a server holds one session")
    elif not candidate.subject.deterministic:
        into.not_applicable("isolation", "the world is live, so that no two episodes are equal")
    elif (repeated := candidate.find("determinism")).verdict is Verdict.FAILED:
        why = f"not judged, because episodes cannot be repeated: {repeated.reason}"
        into.skipped("isolation", why, repeated.remedy)
    else:
        for number, session in enumerate(sessions, 1):
            difference = alone.difference(session)
            if difference is not None:
                into.failed(
                    "isolation",
                    f"session {number} of {len(sessions)} saw something else at {difference.label} than a "
                    "session alone",
                    REMEDY,
                )
                break
    return sessions, seconds


def _open_and_close(candidate: Candidate, number: int) -> None:
    """Keep several instances open at once, and close them."""
    with ExitStack() as stack:
        for _ in range(number):
            session = _opened(candidate)
            stack.callback(session.close)
            if session.script.actions:
                session.call(0)


def _growth(candidate: Candidate, into: Judged) -> None:
    """Compare the memory left by two rounds of episodes on one instance."""
    session = _opened(candidate)
    try:
        _play(session)
        tracemalloc.start()
        episodes, rounds = 0, []
        for _ in range(3):  # the first round fills caches
            played, memory, began = 0, _traced(), time.monotonic()
            while not played or (played < (episodes or MAX_EPISODES) and time.monotonic() - began < GROWTH_S):
                candidate.reset(session.env, seed=played)
                session.shown.clear()
                _play(session)
                played += 1
            session.shown.clear()
            episodes = episodes or played
            rounds.append((_traced() - memory) / max(played, ENOUGH_EPISODES))
    finally:
        tracemalloc.stop()
        session.close()
    grown = min(rounds[1:])
    into.facts["episodes"], into.facts["growth_bytes"] = episodes, round(grown)
    if grown > GROWTH_BYTES:
        into.failed(
            "growth",
            f"each episode leaves {grown / 1024:.0f} KiB of memory behind",
            "Empty in reset what an episode collects: lists, caches, logs",
        )
    into.ok_unless_found("growth")


def _left_behind(before: dict[str, int], temporary: list[str], instances: int, into: Judged) -> None:
    """Compare open files and threads with the earlier ones, and name files left in the temporary folder."""
    if instances < 2:
        into.not_applicable("close", "one instance at a time cannot be told from what is kept for the next")
        return
    after = _held()
    if OPEN_FILES not in after:
        into.not_applicable(OPEN_FILES, "this system has no /proc, which lists them")
    for what, number in after.items():
        more = number - before[what]
        if more >= instances:
            into.failed(
                "close",
                f"{instances} closed instances leave {more} {what} behind",
                "Release in close what __init__ and reset have acquired",
            )
    if len(temporary) >= instances:
        into.failed(
            "close",
            f"{instances} closed instances leave {len(temporary)} temporary files behind ({temporary[0]}, ...)",
            "Remove in close the files and folders that __init__ and reset have made",
        )
    into.ok_unless_found("close")


@contextmanager
def _own_temporary_folder() -> Iterator[Path]:
    """Make ``tempfile`` use a separate folder while the block runs."""
    usual = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="mcpenv-validate-", ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = usual


def _held() -> dict[str, int]:
    """Return the open files and the threads of this process; open files only if the system reports them."""
    gc.collect()
    files = Path("/proc/self/fd")
    listed = {OPEN_FILES: len(list(files.iterdir()))} if files.is_dir() else {}
    return {**listed, "threads": threading.active_count()}


def _resident() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if file.exists() else 0


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
