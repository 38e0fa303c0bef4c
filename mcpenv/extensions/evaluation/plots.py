"""Plots: the figures of an evaluation as SVG for an HTML page. Requires ``mcpenv[eval]``."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .results import EpisodeResult
from .summary import Summary

BLUE, GREY, RED = "#2563eb", "#94a3b8", "#dc2626"
WIDTH, HEIGHT = 4.6, 2.7
"""The size of a plot in inches; the page scales it."""

_MANY_BINS = 20
_FEW = 5
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
_STYLE: dict[Any, Any] = {
    # Keep text as text, which is smaller than paths and uses the page's font.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.color": "#334155",
    "ytick.color": "#334155",
}


@dataclass(frozen=True)
class Plot:
    """The plot as an ``svg`` element, with a caption."""

    svg: str
    words: str


def plots_of(summary: Summary, results: Sequence[EpisodeResult]) -> Iterator[Plot]:
    """Yield the plots that have data. They contain no text of tasks, agents or models."""
    returns = [result.score for result in results if result.score is not None]
    kinds = [(kind.replace("_", " "), count) for kind, count in summary.failures.items()]
    if summary.not_passed:
        kinds.append(("not passed", summary.not_passed))
    if summary.pass_at:
        words = "Probability that at least one of k samples of a task passes, with 95 % intervals."
        yield Plot(_svg("pass@k", lambda axes: _pass_at(axes, summary)), words)
    if returns:
        words = f"Returns of {len(returns)} scored episodes."
        yield Plot(_svg("Returns", lambda axes: _histogram(axes, returns, "return")), words)
    if results:
        words = f"Steps of {len(results)} episodes."
        yield Plot(_svg("Steps", lambda axes: _histogram(axes, [result.steps for result in results], "steps")), words)
    if kinds:
        yield Plot(_svg("Failures", lambda axes: _failures(axes, kinds)), "Episodes by failure.")


def _svg(title: str, draw: Callable[[Axes], None]) -> str:
    # Not pyplot, which keeps its figures and is not thread-safe. The salt makes the ids of a page's plots distinct.
    with rc_context({**_STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title)
        draw(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata=_NO_METADATA)
    # Drop the XML prologue, which an element in a page must not have.
    return text.getvalue()[text.getvalue().index("<svg") :]


def _pass_at(axes: Axes, summary: Summary) -> None:
    ks = list(summary.pass_at)
    values = [summary.pass_at[k].value for k in ks]
    axes.plot(range(len(ks)), values, "o-", color=BLUE)
    for at, estimate in enumerate(summary.pass_at.values()):
        if estimate.interval is not None:
            axes.vlines(at, *estimate.interval, color=BLUE, alpha=0.4, linewidth=4)
    axes.set_xticks(range(len(ks)), [str(k) for k in ks])
    axes.set_xlabel("k")
    axes.set_xlim(-0.5, len(ks) - 0.5)
    axes.set_ylim(-0.03, 1.03)
    axes.grid(axis="y", alpha=0.3)


def _histogram(axes: Axes, values: Sequence[float], name: str) -> None:
    different = sorted(set(values))
    if len(different) <= _MANY_BINS:
        # One bar for each value: most returns are 0 or 1, and bins between them would mislead.
        gaps = [after - before for before, after in pairwise(different)]
        wide = 0.8 if len(different) > _FEW else 0.4
        axes.bar(different, [values.count(each) for each in different], width=wide * min(gaps, default=1.0), color=BLUE)
        if len(different) <= _FEW:
            axes.set_xticks(different, [f"{each:.3g}" for each in different])
    else:
        axes.hist(values, bins=_MANY_BINS, color=BLUE)
    axes.set_xlabel(name)
    axes.set_ylabel("episodes")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _failures(axes: Axes, kinds: Sequence[tuple[str, int]]) -> None:
    names, counts = [kind for kind, _ in reversed(kinds)], [count for _, count in reversed(kinds)]
    bars = axes.barh(names, counts, color=RED, alpha=0.75)
    axes.bar_label(bars, padding=3)
    axes.margins(x=0.15)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("episodes")
