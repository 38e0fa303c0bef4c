"""The counters of one process. A step pays for a few additions; everything else happens at the scrape.

A worker's counters are in a file that it maps into its memory, so that the hub can read them if the worker is killed.
"""

from __future__ import annotations

import json
import math
import mmap
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from mcpenv.server.logs import AccessLog
from mcpenv_client.types.records import StepRecord, Trajectory
from mcpenv_client.types.status import COMPLETED, StatusCode
from mcpenv_client.types.tools import ToolErrorType

from .exposition import Samples, sample

BOUNDS_S = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
"""The upper bounds of the buckets of a tool's duration."""

MAX_TOOLS = 500
"""Maximum tools that are counted apart. Tools that are made for an episode could otherwise fill the memory."""

ORIGINS = ("socket", "http", "connection", "principal", "service")
"""The values of `mcpenv.server.sessions.session.Origin`."""

UNKNOWN, OTHER = "(unknown)", "(other)"
"""The names under which unknown tools, and those above `MAX_TOOLS`, are counted together."""

_STATUSES = {code: number for number, code in enumerate(StatusCode)}
_ERRORS = {kind.value: number for number, kind in enumerate(ToolErrorType)}


class _Layout:
    """The places of the numbers of a group, one after another."""

    def __init__(self) -> None:
        self.size = 0

    def add(self, many: int = 1) -> int:
        """Return the first place of ``many`` further numbers."""
        first, self.size = self.size, self.size + many
        return first


_tool = _Layout()
STATUSES = _tool.add(len(_STATUSES))
ERRORS = _tool.add(len(_ERRORS))
BUCKETS = _tool.add(len(BOUNDS_S) + 1)
SECONDS, REWARDS, REWARD_SUM = _tool.add(), _tool.add(), _tool.add(2)

COMPLETED_STEPS = STATUSES + _STATUSES[StatusCode.COMPLETED]

_head = _Layout()
EPISODES = _head.add(len(_STATUSES))
RETURNS, RETURN_SUM = _head.add(), _head.add(2)
RESETS, FAILED_RESETS, REFUSED, QUARANTINED, WRITTEN, DROPPED = (_head.add() for _ in range(6))
CONNECTIONS_CLOSED, CONNECTIONS_REFUSED = _head.add(), _head.add()
OPENED = _head.add(len(ORIGINS))

_BYTES = 8 * (_head.size + (MAX_TOOLS + 2) * _tool.size)
"""The size of all numbers. In a file, the names of the tools follow, as one JSON string a line."""


class Counters:
    """The counts of a process since its start.

    Args:
        path: a new file for them, which survives the process; None: the process's own memory.

    Attributes:
        numbers: the counts that belong to no tool, by the places that this module names.
        tools: the counts of each tool, likewise.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._names = None if path is None else path.open("a+b", buffering=0)
        if self._names is None:
            memory = memoryview(bytearray(_BYTES))
        else:
            self._names.truncate(_BYTES)
            memory = memoryview(mmap.mmap(self._names.fileno(), _BYTES))
        self._memory = memory.cast("d")
        self.numbers = self._memory[: _head.size]
        self.tools: dict[str, memoryview[float]] = {}

    def new_tool(self, record: StepRecord) -> memoryview[float]:
        """Return the counts of a tool that has none yet."""
        error, name = record.outcome.error, record.call.name
        if error is not None and error.error_type is ToolErrorType.TOOL_NOT_FOUND:
            name = UNKNOWN
        elif len(self.tools) >= MAX_TOOLS:
            name = OTHER
        if name not in self.tools:
            if self._names is not None:
                self._names.write(json.dumps(name).encode() + b"\n")
            self.tools[name] = _numbers_of_tool(self._memory, len(self.tools))
        return self.tools[name]

    def opened(self, origin: str) -> None:
        """Count a session that was opened."""
        self.numbers[OPENED + ORIGINS.index(origin)] += 1

    def recorded(self, written: int, dropped: int) -> None:
        """Set the counts of the recorded episodes."""
        self.numbers[WRITTEN], self.numbers[DROPPED] = written, dropped

    def samples(self) -> Samples:
        """Return the present counts."""
        return _samples(self.numbers, self.tools)


def samples_in(path: Path) -> Samples:
    """Return the counts in the file of a process that may be gone; none if it has not made the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    memory = memoryview(data[:_BYTES]).cast("d")
    names = [json.loads(line) for line in data[_BYTES:].splitlines()]
    return _samples(memory[: _head.size], {name: _numbers_of_tool(memory, number) for number, name in enumerate(names)})


def _numbers_of_tool(memory: memoryview[float], number: int) -> memoryview[float]:
    first = _head.size + number * _tool.size
    return memory[first : first + _tool.size]


def _samples(numbers: memoryview[float], tools: dict[str, memoryview[float]]) -> Samples:
    samples: Samples = {
        sample("mcpenv_resets_total", result="ok"): numbers[RESETS],
        sample("mcpenv_resets_total", result="failed"): numbers[FAILED_RESETS],
        "mcpenv_sessions_refused_total": numbers[REFUSED],
        "mcpenv_connections_closed_total": numbers[CONNECTIONS_CLOSED],
        "mcpenv_connections_refused_total": numbers[CONNECTIONS_REFUSED],
        "mcpenv_quarantined_total": numbers[QUARANTINED],
        "mcpenv_episode_return_count": numbers[RETURNS],
        "mcpenv_episode_return_sum": numbers[RETURN_SUM],
        "mcpenv_records_written_total": numbers[WRITTEN],
        "mcpenv_records_dropped_total": numbers[DROPPED],
    }
    for name, tool in tools.items():
        samples.update(_samples_of_tool(name, tool))
    for code, number in _STATUSES.items():
        if count := numbers[EPISODES + number]:
            samples[sample("mcpenv_episodes_total", status=code.value)] = count
    for number, origin in enumerate(ORIGINS):
        if count := numbers[OPENED + number]:
            samples[sample("mcpenv_sessions_opened_total", origin=origin)] = count
    # Sums of rewards may overflow.
    return {name: value for name, value in samples.items() if math.isfinite(value)}


def _samples_of_tool(tool: str, numbers: memoryview[float]) -> Iterable[tuple[str, float]]:
    for code, number in _STATUSES.items():
        if count := numbers[STATUSES + number]:
            yield sample("mcpenv_steps_total", tool=tool, status=code.value), count
    for error_type, number in _ERRORS.items():
        if count := numbers[ERRORS + number]:
            yield sample("mcpenv_tool_errors_total", tool=tool, type=error_type), count
    below = 0.0
    for number, bound in enumerate((*map(str, BOUNDS_S), "+Inf")):
        below += numbers[BUCKETS + number]
        yield sample("mcpenv_step_duration_seconds_bucket", tool=tool, le=bound), below
    yield sample("mcpenv_step_duration_seconds_count", tool=tool), below
    yield sample("mcpenv_step_duration_seconds_sum", tool=tool), numbers[SECONDS]
    yield sample("mcpenv_step_reward_count", tool=tool), numbers[REWARDS]
    yield sample("mcpenv_step_reward_sum", tool=tool), numbers[REWARD_SUM]


class Watched(Protocol):
    """The watchers of a session.

    Attributes:
        watched: True while there are any.
    """

    watched: bool

    def tell(self) -> None:
        """Wake them: there is something new."""
        ...


class _Unwatched:
    watched = False

    def tell(self) -> None:
        """Do nothing."""


UNWATCHED = _Unwatched()


class SessionObserver:
    """The observer of one session's instance: counts, and the access log.

    Args:
        label: names the session in the log, and lets nobody join it.
        live: those who watch the session; None: it cannot be watched.
    """

    __slots__ = ("_counters", "_live", "_log", "_tools", "label")

    def __init__(self, counters: Counters, label: str, live: Watched | None = None) -> None:
        self._live: Watched = UNWATCHED if live is None else live
        self._counters = counters
        self._tools = counters.tools
        self.label = label
        self._log = AccessLog(label)

    def step_over(self, record: StepRecord) -> None:
        """Count a step, and log it."""
        reward, duration_s = record.reward, record.outcome.duration_s
        tool = self._tools.get(record.call.name)
        if tool is None:
            tool = self._counters.new_tool(record)
        if record.status is COMPLETED:
            tool[COMPLETED_STEPS] += 1
        else:
            _count_failure(tool, record)
        tool[SECONDS] += duration_s
        tool[BUCKETS + bisect_left(BOUNDS_S, duration_s)] += 1
        if reward is not None:
            tool[REWARDS] += 1
            _add(tool, REWARD_SUM, reward.value)
        if self._log.enabled:
            self._log.write(record.call.name, record.status.code.value, duration_s)
        if self._live.watched:
            self._live.tell()

    def episode_over(self, trajectory: Trajectory) -> None:
        """Count an episode."""
        if self._live.watched:
            self._live.tell()
        numbers, status = self._counters.numbers, trajectory.status
        if status is None:
            return
        numbers[EPISODES + _STATUSES[status.code]] += 1
        if status.usable:
            numbers[RETURNS] += 1
            _add(numbers, RETURN_SUM, trajectory.total_reward)

    def reset_over(self, *, failed: bool) -> None:
        """Count a reset."""
        self._counters.numbers[FAILED_RESETS if failed else RESETS] += 1
        if self._live.watched:
            self._live.tell()


def _add(numbers: memoryview[float], place: int, value: float) -> None:
    """Add to a sum, whose rounding error so far is in the next place (Kahan's summation)."""
    before, value = numbers[place], value - numbers[place + 1]
    numbers[place] = before + value
    numbers[place + 1] = (numbers[place] - before) - value


def _count_failure(tool: memoryview[float], record: StepRecord) -> None:
    outcome = record.outcome
    tool[STATUSES + _STATUSES[record.status.code]] += 1
    if outcome.error is not None:
        error_type = outcome.error.error_type.value
    elif outcome.result is not None and outcome.result.is_error:
        error_type = ToolErrorType.EXECUTION_ERROR.value
    else:
        return
    tool[ERRORS + _ERRORS[error_type]] += 1
