"""``python -m benchmarks``: each benchmark runs to its end and gives its figures. What they are, no test says."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.pairs import Measured, Pair, take_turns  # noqa: E402
from benchmarks.recording import in_process, over_ws  # noqa: E402


def test_recording_is_measured_with_and_without_in_process_and_over_ws(tmp_path: Path) -> None:
    for pair in (in_process(tmp_path / "process", 2, 3), over_ws(tmp_path / "ws", 2, 4, 2)):
        assert len(pair.without) == len(pair.with_it) == 2
        assert all(measured.wall_s > 0 for measured in (*pair.without, *pair.with_it))
    assert list((tmp_path / "process").glob("episodes-*")) and list((tmp_path / "ws").glob("episodes-*"))


def test_both_sides_of_a_pair_come_first_as_often() -> None:
    order: list[str] = []

    def side(name: str, cost: float) -> Measured:
        order.append(name)
        return Measured(cost, cost)

    pair = take_turns((lambda: side("without", 1.0), lambda: side("with", 2.0)), 4)
    assert order[2:] == ["without", "with", "with", "without"] * 2
    assert pair.ratios(lambda measured: measured.wall_s) == [2.0] * 4 and isinstance(pair, Pair)
