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
from benchmarks.sessions import ours

pytestmark = [pytest.mark.world, pytest.mark.timeout(600)]

AS_MUCH = 1.1
"""Times the instructions; seen: 1.01 and less."""


def test_a_step_with_many_sessions_does_as_much_as_with_few() -> None:
    assert counted(ours, OURS, 200) < AS_MUCH * counted(ours, OURS, 5)


def test_a_step_with_many_tools_does_as_much_as_with_one() -> None:
    assert counted(with_tools(200), OURS, 1) < AS_MUCH * counted(with_tools(1), OURS, 1)


def test_a_step_late_in_an_episode_does_as_much_as_an_early_one() -> None:
    assert counted(ours, OURS, 1, before=8_000) < AS_MUCH * counted(ours, OURS, 1, before=500)
