"""The charts of a page: bars and points where the values are."""

from __future__ import annotations

from xml.etree.ElementTree import Element

import pytest

from mcpenv.extensions.exports.page.charts import counts, estimates, histogram


def heights(chart: Element) -> list[float]:
    return [float(bar.get("height", "")) for bar in chart.iter("rect")]


def texts(chart: Element) -> list[str]:
    return [text.text or "" for text in chart.iter("text")]


def test_few_values_have_a_bar_each_as_high_as_their_number() -> None:
    chart = histogram([0.0, 1.0, 1.0, 1.0], "return", "Returns.")
    low, high = heights(chart)
    assert high == pytest.approx(3 * low, abs=0.2)
    assert {"0", "1", "2", "3", "return"} <= set(texts(chart))


def test_many_values_are_counted_in_bins() -> None:
    chart = histogram([number / 1000 for number in range(1001)], "return", "Returns.")
    assert len(heights(chart)) == 20
    assert max(heights(chart)) < 1.3 * min(heights(chart))


@pytest.mark.parametrize("values", [[0.5], [-3.0, -3.0], [float(10**9), 0.0], [float(n) for n in range(-30, 0)]])
def test_all_bars_are_within_the_picture(values: list[float]) -> None:
    chart = histogram(values, "return", "Returns.")
    width, height = map(float, (chart[0].get("viewBox") or "").split()[2:])
    for bar in chart.iter("rect"):
        x, y, wide, high = (float(bar.get(name, "")) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width and 0 <= y <= y + high <= height and high > 0


def test_an_estimate_is_a_point_with_its_interval_if_there_is_one() -> None:
    chart = estimates([("1", 0.5, (0.25, 0.75)), ("2", 1.0, None)], "k", "pass@k.")
    one, other = (float(point.get("cy", "")) for point in chart.iter("circle"))
    assert other < one
    (interval,) = chart.iter("rect")
    top = float(interval.get("y", ""))
    assert top < one < top + float(interval.get("height", ""))


def test_counts_have_names_and_numbers() -> None:
    chart = counts([("a <b>", 4), ("c", 2)], "Failures.")
    assert texts(chart) == ["a <b>", "4", "c", "2"]
    long, short = (float(bar.get("width", "")) for bar in chart.iter("rect"))
    assert long == pytest.approx(2 * short)
