"""The text of metrics, as Prometheus scrapes it (text exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable

Samples = dict[str, float]
"""The values of samples by their name and labels, as `sample` writes them. Those of several processes are added up."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTER, _GAUGE, _HISTOGRAM, _SUMMARY = "counter", "gauge", "histogram", "summary"

FAMILIES: dict[str, tuple[str, str]] = {
    "mcpenv_info": (_GAUGE, "The version, the environment and the mode of the server; always 1."),
    "mcpenv_workers": (_GAUGE, "Processes that serve."),
    "mcpenv_workers_silent": (_GAUGE, "Processes that do not answer, whose gauges are missing here."),
    "mcpenv_ready": (_GAUGE, "1 if the server takes new sessions, else 0."),
    "mcpenv_sessions": (_GAUGE, "Open sessions by origin."),
    "mcpenv_sessions_taken": (_GAUGE, "Slots in use, by sessions that are opened, open or being closed."),
    "mcpenv_sessions_max": (_GAUGE, "Slots of the server."),
    "mcpenv_sessions_waiting": (_GAUGE, "Clients that wait for a slot."),
    "mcpenv_sessions_opened_total": (_COUNTER, "Sessions opened, by origin."),
    "mcpenv_sessions_refused_total": (_COUNTER, "Sessions refused because the server was full or ending."),
    "mcpenv_connections_closed_total": (_COUNTER, "Connections closed to make room for new ones."),
    "mcpenv_connections_refused_total": (_COUNTER, "Requests and WebSockets refused: all connections were in use."),
    "mcpenv_episodes_running": (_GAUGE, "Episodes that an orchestrator began and that have not ended."),
    "mcpenv_episodes_total": (_COUNTER, "Episodes that ended, by status."),
    "mcpenv_episode_return": (_SUMMARY, "Returns of the episodes that ended with a usable status."),
    "mcpenv_resets_total": (_COUNTER, "Resets, by result."),
    "mcpenv_steps_total": (_COUNTER, "Steps, which are tool calls and own actions, by tool and status."),
    "mcpenv_step_duration_seconds": (_HISTOGRAM, "Time in the tool, by tool."),
    "mcpenv_step_reward": (_SUMMARY, "Rewards of steps, by tool."),
    "mcpenv_tool_errors_total": (_COUNTER, "Failed tool calls, by tool and type of error."),
    "mcpenv_quarantined": (_GAUGE, "Instances with code that cannot be stopped."),
    "mcpenv_quarantined_max": (_GAUGE, "Quarantined instances above which new sessions are refused."),
    "mcpenv_quarantined_total": (_COUNTER, "Instances that were quarantined so far."),
    "mcpenv_records_written_total": (_COUNTER, "Recorded episodes that are on disk."),
    "mcpenv_records_dropped_total": (
        _COUNTER,
        "Recorded episodes that were lost, because the disk failed or was slow.",
    ),
    "mcpenv_records_waiting": (_GAUGE, "Recorded episodes that are not on disk yet."),
    "process_resident_memory_bytes": (_GAUGE, "Resident memory, of all workers."),
}
"""Type and help text of each metric. The samples of histograms and summaries have suffixes."""

_SUFFIXES = ("_bucket", "_sum", "_count")


def sample(name: str, **labels: str) -> str:
    """Return the name of a sample with its labels."""
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    return f"{name}{{{pairs}}}"


def added(several: Iterable[Samples]) -> Samples:
    """Return the sums of the samples of several processes."""
    sums: Samples = {}
    for samples in several:
        for name, value in samples.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def exposition(samples: Samples) -> str:
    """Return the text of the samples, grouped by metric."""
    groups: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name, value in samples.items():
        groups[_family(name)].append(f"{name} {value!r}")
    lines: list[str] = []
    for family, group in groups.items():
        if group:
            kind, text = FAMILIES[family]
            lines += [f"# HELP {family} {text}", f"# TYPE {family} {kind}", *group]
    return "\n".join([*lines, ""])


def _family(name: str) -> str:
    metric = name.partition("{")[0]
    if metric in FAMILIES:
        return metric
    return next(metric.removesuffix(suffix) for suffix in _SUFFIXES if metric.endswith(suffix))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
