"""The command ``mcpenv top``: show a server's load, tools and errors, from its metrics."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mcpenv.errors import ConfigurationError

from .output import print_json, printable
from .sessions import REFRESH_S, ControlPlane
from .tokens import control_token

_SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Scrape:
    """The metrics of a server at one time.

    Attributes:
        at: monotonic seconds.
    """

    samples: tuple[Sample, ...]
    at: float

    def found(self, name: str, **labels: str) -> Iterator[Sample]:
        """Yield the samples of a metric that have these labels."""
        return (each for each in self.samples if each.name == name and labels.items() <= each.labels.items())

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric that have these labels."""
        return sum(each.value for each in self.found(name, **labels))

    def plain(self) -> dict[str, Any]:
        """Return the samples by metric, as plain JSON data."""
        metrics: dict[str, Any] = {}
        for each in self.samples:
            metrics.setdefault(each.name, []).append({"labels": each.labels, "value": each.value})
        return metrics


def top(
    url: str,
    /,
    *,
    token: Annotated[str | None, Parameter(name="--control-token", allow_leading_hyphen=True)] = None,
    token_file: Annotated[Path | None, Parameter(name="--control-token-file")] = None,
    once: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> int:
    """Show what a server does, until Ctrl-C.

    Args:
        url: URL of the server, or of its control plane if that has a port of its own.
        token: The control token, or the metrics token. On the command line, every user of this machine can see it
            (ps). Default: MCPENV_CONTROL_TOKEN.
        token_file: File with that token.
        once: Print the figures once.
        as_json: Print all metrics once, as one JSON document.
        debug: Show the traceback when something fails.
    """
    with ControlPlane(url, control_token(token, token_file)) as server:
        if as_json:
            print_json(_scrape(server).plain())
        elif once:
            Console(file=sys.stdout).print(_page(_scrape(server), None))
        else:
            _watch(server)
    return 0


def _scrape(server: ControlPlane) -> Scrape:
    found = _SAMPLE.finditer(server.scrape())
    samples = tuple(Sample(each[1], _labels(each[2] or ""), float(each[3])) for each in found)
    return Scrape(samples, time.monotonic())


def _labels(text: str) -> dict[str, str]:
    return {
        name: _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
        for name, value in _LABEL.findall(text)
    }


def _watch(server: ControlPlane) -> None:
    console = Console()
    if not console.is_terminal:
        raise ConfigurationError("top needs a terminal; use --once or --json")
    before = _scrape(server)
    with Live(_page(before, None), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_S)
            now = _scrape(server)
            live.update(_page(now, before), refresh=True)
            before = now


def _page(now: Scrape, before: Scrape | None) -> RenderableType:
    """Return the figures of a scrape, with rates since the one before."""
    info = next(now.found("mcpenv_info"), Sample("", {}, 0.0)).labels
    title = " ".join(printable(info.get(name, "")) for name in ("environment", "mode", "version"))
    ready = "" if now.total("mcpenv_ready") else ", takes no new sessions"
    sessions = (
        f"{now.total('mcpenv_sessions_taken'):g} of {now.total('mcpenv_sessions_max'):g} sessions, "
        f"{now.total('mcpenv_sessions_waiting'):g} waiting, {now.total('mcpenv_quarantined'):g} quarantined{ready}"
    )
    running = (
        f"{now.total('mcpenv_episodes_running'):g} episodes run, {now.total('mcpenv_episodes_total'):g} ended"
        f"{_rate(now, before, 'mcpenv_episodes_total')}, "
        f"{now.total('mcpenv_records_written_total'):g} recorded, {now.total('mcpenv_records_dropped_total'):g} dropped"
    )
    workers = now.total("mcpenv_workers")
    processes = f"{workers:g} process{'' if workers == 1 else 'es'}"
    memory = f"{now.total('process_resident_memory_bytes') / _MIB:.0f} MiB in {processes}"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("tool", "steps", "per s", "failed", "mean ms", "mean reward"):
        table.add_column(heading, justify="left" if heading == "tool" else "right", no_wrap=True)
    tools = sorted({each.labels["tool"] for each in now.found("mcpenv_steps_total")})
    for tool in sorted(tools, key=lambda tool: -now.total("mcpenv_steps_total", tool=tool)):
        table.add_row(*map(Text, _row(tool, now, before)))
    return Group(Text(title, "bold"), Text(sessions), Text(running), Text(memory), Text(), table)


def _row(tool: str, now: Scrape, before: Scrape | None) -> tuple[str, ...]:
    steps = now.total("mcpenv_steps_total", tool=tool)
    completed = now.total("mcpenv_steps_total", tool=tool, status="completed")
    rewards = now.total("mcpenv_step_reward_count", tool=tool)
    return (
        printable(tool),
        f"{steps:g}",
        _rate(now, before, "mcpenv_steps_total", tool=tool).strip(" ()/s"),
        f"{steps - completed:g}" if steps > completed else "",
        f"{now.total('mcpenv_step_duration_seconds_sum', tool=tool) / steps * 1000:.2f}",
        f"{now.total('mcpenv_step_reward_sum', tool=tool) / rewards:.3g}" if rewards else "",
    )


def _rate(now: Scrape, before: Scrape | None, name: str, **labels: str) -> str:
    if before is None or now.at <= before.at:
        return ""
    return f" ({(now.total(name, **labels) - before.total(name, **labels)) / (now.at - before.at):.1f}/s)"


__all__ = ["top"]
