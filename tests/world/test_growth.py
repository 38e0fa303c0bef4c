"""A step does as much with many sessions, with many tools and late in an episode as with few: counted in instructions.

No machine is too busy for that, and a look at every session, tool or step would be seen at once.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.growth import with_tools
from benchmarks.instructions import counted
from benchmarks.rows import OURS

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]

AS_MUCH = 1.1
"""Times the instructions; seen: 1.01 and less."""


@pytest.fixture(scope="module")
def least() -> float:
    """Instructions of a step with one tool and five sessions, early in an episode."""
    return counted(with_tools(1), OURS, 5)


def test_a_late_step_with_many_sessions_does_as_much_as_an_early_one_with_few(least: float) -> None:
    assert counted(with_tools(1), OURS, 200, before=8_000) < AS_MUCH * least


def test_a_step_with_many_tools_does_as_much_as_with_one(least: float) -> None:
    assert counted(with_tools(200), OURS, 5) < AS_MUCH * least
