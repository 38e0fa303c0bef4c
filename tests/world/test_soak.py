"""A minute of the soak. Ten minutes of it: ``python tests/world/soak.py --minutes 10``."""

from __future__ import annotations

import pytest
import soak

pytestmark = [pytest.mark.world, pytest.mark.timeout(240)]


def test_for_a_minute_nobody_waits_for_disturbed_workers_and_counts_are_exact() -> None:
    figures = soak.run(1.0, clients=4, silent=20, period_s=15.0)
    assert figures["sound"], figures
    assert figures["disturbances"] >= 1 and figures["steps answered"] > 100, figures
