"""The counters of one process. A step pays for a few additions; everything else happens at the scrape."""

from __future__ import annotations

import logging
from bisect import bisect_left

from mcpenv.server.logs import access
from mcpenv_client.types.records import StepRecord, Trajectory
from mcpenv_client.types.status import COMPLETED, StatusCode
from mcpenv_client.types.tools import ToolErrorType

from .exposition import Samples, sample

BOUNDS_S = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
"""The upper bounds of the buckets of a tool's duration."""

SHORTEST_S = BOUNDS_S[0]

MAX_TOOLS = 500
"""Maximum tools that are counted apart. Tools that are made for an episode could otherwise fill the memory."""

UNKNOWN, OTHER = "(unknown)", "(other)"
"""The names under which unknown tools, and those above `MAX_TOOLS`, are counted together."""

MAX_NAME = 100
"""Maximum characters of a tool's name in the access log. An agent may ask for any name."""


class ToolCounter:
    """The counts of one tool or own action."""

    __slots__ = ("buckets", "completed", "errors", "reward_sum", "rewards", "seconds", "short", "statuses")

    def __init__(self) -> None:
        self.completed = 0
        self.statuses: dict[StatusCode, int] = {}
        self.errors: dict[str, int] = {}
        self.seconds = 0.0
        self.short = 0  # up to `SHORTEST_S`; most steps are, and need no search for their bucket
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.rewards = 0
        self.reward_sum = 0.0

    def add_to(self, samples: Samples, tool: str) -> None:
        """Add the samples of the counts."""
        statuses = {**self.statuses, StatusCode.COMPLETED: self.completed}
        for code, count in statuses.items():
            if count:
                samples[sample("mcpenv_steps_total", tool=tool, status=code.value)] = count
        for error_type, count in self.errors.items():
            samples[sample("mcpenv_tool_errors_total", tool=tool, type=error_type)] = count
        below = self.short
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.buckets, strict=True):
            below += count
            samples[sample("mcpenv_step_duration_seconds_bucket", tool=tool, le=bound)] = below
        samples[sample("mcpenv_step_duration_seconds_count", tool=tool)] = below
        samples[sample("mcpenv_step_duration_seconds_sum", tool=tool)] = self.seconds
        samples[sample("mcpenv_step_reward_count", tool=tool)] = self.rewards
        samples[sample("mcpenv_step_reward_sum", tool=tool)] = self.reward_sum


class Counters:
    """The counts of a process since its start.

    Attributes:
        tools: the counts of each tool.
        episodes: the ended episodes by status.
        returns, return_sum: the number of ended episodes whose return is about the agent, and their sum.
        resets, failed_resets: the resets, restores not included.
        opened: the sessions opened so far, by origin.
        refused: the sessions refused because the server was full or ending.
    """

    def __init__(self) -> None:
        self.tools: dict[str, ToolCounter] = {}
        self.episodes: dict[StatusCode, int] = {}
        self.returns, self.return_sum = 0, 0.0
        self.resets = self.failed_resets = 0
        self.opened: dict[str, int] = {}
        self.refused = 0

    def new_tool(self, record: StepRecord) -> ToolCounter:
        """Return the counter of a tool that has none yet."""
        error, name = record.outcome.error, record.call.name
        if error is not None and error.error_type is ToolErrorType.TOOL_NOT_FOUND:
            name = UNKNOWN
        elif len(self.tools) >= MAX_TOOLS:
            name = OTHER
        return self.tools.setdefault(name, ToolCounter())

    def samples(self) -> Samples:
        """Return the present counts."""
        samples: Samples = {
            sample("mcpenv_resets_total", result="ok"): self.resets,
            sample("mcpenv_resets_total", result="failed"): self.failed_resets,
            "mcpenv_sessions_refused_total": self.refused,
            "mcpenv_episode_return_count": self.returns,
            "mcpenv_episode_return_sum": self.return_sum,
        }
        for name, tool in self.tools.items():
            tool.add_to(samples, name)
        for code, count in self.episodes.items():
            samples[sample("mcpenv_episodes_total", status=code.value)] = count
        for origin, count in self.opened.items():
            samples[sample("mcpenv_sessions_opened_total", origin=origin)] = count
        return samples


class SessionObserver:
    """The observer of one session's instance: counts, and the access log.

    Args:
        label: names the session in the log, and lets nobody join it.
    """

    __slots__ = ("_counters", "_logs", "_tools", "label")

    def __init__(self, counters: Counters, label: str) -> None:
        self._counters = counters
        self._tools = counters.tools
        self.label = label
        self._logs = access.isEnabledFor(logging.INFO)

    def step_over(self, record: StepRecord) -> None:
        """Count a step, and log it."""
        reward, duration_s = record.reward, record.outcome.duration_s
        tool = self._tools.get(record.call.name) or self._counters.new_tool(record)
        if record.status is COMPLETED:
            tool.completed += 1
        else:
            _count_failure(tool, record)
        tool.seconds += duration_s
        if duration_s <= SHORTEST_S:
            tool.short += 1
        else:
            tool.buckets[bisect_left(BOUNDS_S, duration_s)] += 1
        if reward is not None:
            tool.rewards += 1
            tool.reward_sum += reward.value
        if self._logs:
            self._log(record)

    def episode_over(self, trajectory: Trajectory) -> None:
        """Count an episode."""
        counters, status = self._counters, trajectory.status
        if status is None:
            return
        counters.episodes[status.code] = counters.episodes.get(status.code, 0) + 1
        if status.usable:
            counters.returns += 1
            counters.return_sum += trajectory.total_reward

    def reset_over(self, *, failed: bool) -> None:
        """Count a reset."""
        if failed:
            self._counters.failed_resets += 1
        else:
            self._counters.resets += 1

    def _log(self, record: StepRecord) -> None:
        name = record.call.name[:MAX_NAME]
        fields = {
            "session": self.label,
            "tool": name if name.isprintable() else ascii(name)[1:-1],
            "status": record.status.code.value,
            "ms": round(record.outcome.duration_s * 1000, 2),
        }
        text = " ".join(f"{field}={value}" for field, value in fields.items())
        access.info("%s", text, extra={"fields": fields})


def _count_failure(tool: ToolCounter, record: StepRecord) -> None:
    code, outcome = record.status.code, record.outcome
    tool.statuses[code] = tool.statuses.get(code, 0) + 1
    if outcome.error is not None:
        error_type = outcome.error.error_type.value
    elif outcome.result is not None and outcome.result.is_error:
        error_type = ToolErrorType.EXECUTION_ERROR.value
    else:
        return
    tool.errors[error_type] = tool.errors.get(error_type, 0) + 1


__all__ = ["Counters", "SessionObserver"]
