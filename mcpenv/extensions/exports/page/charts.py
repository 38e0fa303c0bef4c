"""Charts of a page: SVG elements, whose colours are those of the page's style."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

from .markup import el

WIDTH, HEIGHT = 440.0, 240.0
"""The size of a chart in its own units; the page scales it."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 16.0, 12.0, 44.0
_ROW = 26.0
_MANY = 20
"""Maximum different values for which a histogram has a bar each."""


def histogram(values: Sequence[float], name: str, caption: str) -> Element:
    """Return the number of episodes by value.

    Args:
        values: one for each episode; not empty.
        name: what they are.
    """
    low, high = min(values), max(values)
    different = sorted(set(values))
    if len(different) <= _MANY:
        # One bar for each value: most returns are 0 or 1, and bins between them would mislead.
        centres = different
        gap = min((after - before for before, after in pairwise(different)), default=1.0)
        counts = [values.count(each) for each in different]
    else:
        gap = (high - low) / _MANY
        centres = [low + (number + 0.5) * gap for number in range(_MANY)]
        bins = [min(int((value - low) / gap), _MANY - 1) for value in values]
        counts = [bins.count(number) for number in range(_MANY)]
    x = _Axis(centres[0] - gap / 2, centres[-1] + gap / 2, _LEFT, WIDTH - _RIGHT)
    y = _Axis(0, max(counts), HEIGHT - _BOTTOM, _TOP)
    bar = abs(x.at(gap) - x.at(0)) * 0.8
    return _figure(
        HEIGHT,
        caption,
        *_scale(y, whole=True),
        *(
            _rect(
                x.at(centre) - bar / 2, y.at(count), bar, y.at(0) - y.at(count), "bar", f"{name} {centre:.4g}: {count}"
            )
            for centre, count in zip(centres, counts, strict=True)
            if count
        ),
        *(
            _text(f"{each:.3g}", x.at(each), HEIGHT - _BOTTOM + 16, "middle")
            for each in (different if len(different) <= 6 else x.ticks(whole=False))
        ),
        _text(name, (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, "middle"),
    )


def estimates(points: Sequence[tuple[str, float, tuple[float, float] | None]], name: str, caption: str) -> Element:
    """Return shares from 0 to 1, with their intervals.

    Args:
        points: a label, a share, and its interval or None.
        name: what the labels are.
    """
    x = _Axis(-0.5, len(points) - 0.5, _LEFT, WIDTH - _RIGHT)
    y = _Axis(0, 1, HEIGHT - _BOTTOM, _TOP)
    return _figure(
        HEIGHT,
        caption,
        *_scale(y, whole=False),
        *(
            _rect(
                x.at(at) - 3,
                y.at(interval[1]),
                6,
                y.at(interval[0]) - y.at(interval[1]),
                "interval",
                f"{label}: {interval[0]:.3g} to {interval[1]:.3g}",
            )
            for at, (label, _, interval) in enumerate(points)
            if interval is not None
        ),
        el(
            "polyline",
            points=" ".join(f"{x.at(at):.1f},{y.at(value):.1f}" for at, (_, value, _) in enumerate(points)),
            class_="part-0",
        ),
        *(
            el(
                "circle",
                el("title", f"{label}: {value:.3g}"),
                cx=f"{x.at(at):.1f}",
                cy=f"{y.at(value):.1f}",
                r="4",
                class_="bar",
            )
            for at, (label, value, _) in enumerate(points)
        ),
        *(_text(label, x.at(at), HEIGHT - _BOTTOM + 16, "middle") for at, (label, _, _) in enumerate(points)),
        _text(name, (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, "middle"),
    )


def lines(
    labels: Sequence[str], series: Sequence[tuple[str, Sequence[float | None]]], name: str, caption: str
) -> Element:
    """Return values over places in a row, as one line for each of at most six series, with a legend.

    Args:
        labels: of the places; not empty.
        series: names, each with a value for each place; None leaves the place out.
        name: what the labels are.
    """
    known = [value for _, values in series for value in values if value is not None]
    low, high = min([0.0, *known]), max([0.0, *known])
    x = _Axis(-0.5, len(labels) - 0.5, _LEFT, WIDTH - _RIGHT)
    y = _Axis(low, high if high > low else low + 1, HEIGHT - _BOTTOM, _TOP + 16)
    every = math.ceil(len(labels) / 6)
    found = [*_scale(y, whole=False)]
    for number, (title, values) in enumerate(series):
        points = [(at, value) for at, value in enumerate(values) if value is not None]
        way = " ".join(f"{x.at(at):.1f},{y.at(value):.1f}" for at, value in points)
        found.append(el("polyline", points=way, class_=f"part-{number}"))
        for at, value in points:
            told = el("title", f"{name} {labels[at]}: {title} {value:.4g}")
            place = {"cx": f"{x.at(at):.1f}", "cy": f"{y.at(value):.1f}"}
            found.append(el("circle", told, r="3", class_=f"part-{number}", **place))
        left = _LEFT + number * (WIDTH - _LEFT) / len(series)
        found.append(_rect(left, 2, 8, 8, f"part-{number}", title))
        found.append(_text(title, left + 12, 10, "start"))
    for at in range(0, len(labels), every):
        found.append(_text(labels[at], x.at(at), HEIGHT - _BOTTOM + 16, "middle"))
    found.append(_text(name, (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, "middle"))
    return _figure(HEIGHT, caption, *found)


def counts(rows: Sequence[tuple[str, int]], caption: str) -> Element:
    """Return a bar for each name, with its number."""
    x = _Axis(0, max(count for _, count in rows), 150, WIDTH - 50)
    found = []
    for number, (name, count) in enumerate(rows):
        top = _TOP + number * _ROW
        found += [
            _text(name, 142, top + 15, "end"),
            _rect(150, top, x.at(count) - 150, _ROW - 6, "bad", f"{name}: {count}"),
            _text(str(count), x.at(count) + 6, top + 15, "start"),
        ]
    return _figure(2 * _TOP + len(rows) * _ROW, caption, *found)


class _Axis:
    """The places of values between two ends."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self._low, self._high, self._first, self._last = low, high, first, last

    def at(self, value: float) -> float:
        return self._first + (value - self._low) / (self._high - self._low) * (self._last - self._first)

    def ticks(self, *, whole: bool) -> Iterator[float]:
        """Yield some five round values between the ends."""
        rough = (self._high - self._low) / 5
        magnitude = 10.0 ** math.floor(math.log10(rough))
        step = magnitude * next(factor for factor in (1, 2, 5, 10) if factor * magnitude >= rough)
        if whole:
            step = max(1.0, step)
        for number in range(math.ceil(self._low / step), math.floor(self._high / step + 1e-9) + 1):
            yield number * step


def _scale(axis: _Axis, *, whole: bool) -> Iterator[Element]:
    for value in axis.ticks(whole=whole):
        at = f"{axis.at(value):.1f}"
        yield el("line", x1=f"{_LEFT}", x2=f"{WIDTH - _RIGHT}", y1=at, y2=at)
        yield _text(f"{value:g}", _LEFT - 6, axis.at(value) + 4, "end")


def _figure(height: float, caption: str, *children: Element) -> Element:
    svg = el("svg", *children, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=caption)
    return el("figure", svg, el("figcaption", caption, class_="muted"), class_="card")


def _rect(x: float, y: float, width: float, height: float, kind: str, value: str) -> Element:
    return el(
        "rect",
        el("title", value),
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        width=f"{width:.1f}",
        height=f"{height:.1f}",
        class_=kind,
    )


def _text(text: str, x: float, y: float, anchor: str) -> Element:
    return el("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
